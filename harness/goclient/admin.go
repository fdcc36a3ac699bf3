package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"

	"github.com/apache/pulsar-client-go/pulsaradmin"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/rest"
	"github.com/apache/pulsar-client-go/pulsaradmin/pkg/utils"
)

// The package pulsaradmin has some 300 methods in groups; they are called by their names, with
// arguments that are decoded as the types of their parameters want it. What a method gives is what
// the package made of the broker's answer.

func newAdmin(p *program, asked *request) (any, error) {
	args, err := arguments[struct {
		URL string `json:"url"`
	}](asked)
	if err != nil {
		return nil, err
	}
	made, err := pulsaradmin.NewClient(&pulsaradmin.Config{WebServiceURL: args.URL})
	if err != nil {
		return nil, err
	}
	p.keep(asked.As, made)
	return nil, nil
}

// adminMethods lists what each group has, without the twins that take a context.
func adminMethods(p *program, asked *request) (any, error) {
	client, err := object[pulsaradmin.Client](p, asked.On)
	if err != nil {
		return nil, err
	}
	all := map[string][]string{}
	for group, methods := range adminGroups(client) {
		names := []string{}
		kind := methods.Type()
		for i := 0; i < kind.NumMethod(); i++ {
			if name := kind.Method(i).Name; !strings.HasSuffix(name, "WithContext") {
				names = append(names, name)
			}
		}
		sort.Strings(names)
		all[group] = names
	}
	return all, nil
}

// adminGroups has the values behind the groups' interfaces.
func adminGroups(client pulsaradmin.Client) map[string]reflect.Value {
	groups := map[string]reflect.Value{}
	kind := reflect.TypeOf((*pulsaradmin.Client)(nil)).Elem()
	for i := 0; i < kind.NumMethod(); i++ {
		name := kind.Method(i).Name
		made := reflect.ValueOf(client).MethodByName(name).Call(nil)[0]
		groups[name] = made.Convert(kind.Method(i).Type.Out(0))
	}
	if topic, err := pulsaradmin.TopicPoliciesOf(client, false); err == nil {
		groups["TopicPolicies"] = reflect.ValueOf(&topic).Elem()
	}
	return groups
}

func callAdmin(p *program, asked *request) (any, error) {
	args, err := arguments[struct {
		Group     string            `json:"group"`
		Method    string            `json:"method"`
		Arguments []json.RawMessage `json:"arguments"`
	}](asked)
	if err != nil {
		return nil, err
	}
	client, err := object[pulsaradmin.Client](p, asked.On)
	if err != nil {
		return nil, err
	}
	group, ok := adminGroups(client)[args.Group]
	if !ok {
		return nil, &badArguments{asked.Op, fmt.Errorf("there is no group %q", args.Group)}
	}
	method := group.MethodByName(args.Method)
	if !method.IsValid() {
		return nil, &badArguments{asked.Op, fmt.Errorf("%s has no %q", args.Group, args.Method)}
	}
	values, err := adminArguments(method.Type(), args.Arguments)
	if err != nil {
		return nil, &badArguments{asked.Op, fmt.Errorf("%s: %w", args.Method, err)}
	}
	return adminResults(method.Call(values))
}

var contextType = reflect.TypeOf((*context.Context)(nil)).Elem()

// adminArguments are values for the parameters, the last of which may be any number.
func adminArguments(method reflect.Type, given []json.RawMessage) ([]reflect.Value, error) {
	values := []reflect.Value{}
	at := 0
	for i := 0; i < method.NumIn(); i++ {
		kind := method.In(i)
		if kind == contextType {
			values = append(values, reflect.ValueOf(context.Background()))
			continue
		}
		count := 1
		if method.IsVariadic() && i == method.NumIn()-1 {
			kind, count = kind.Elem(), len(given)-at
		}
		for ; count > 0; count-- {
			if at >= len(given) {
				return nil, fmt.Errorf("argument %d is missing", at)
			}
			value, err := adminArgument(kind, given[at])
			if err != nil {
				return nil, fmt.Errorf("argument %d: %w", at, err)
			}
			values = append(values, value)
			at++
		}
	}
	if at < len(given) {
		return nil, fmt.Errorf("%d arguments, and %d were given", at, len(given))
	}
	return values, nil
}

func adminArgument(kind reflect.Type, given json.RawMessage) (reflect.Value, error) {
	name := ""
	switch kind {
	case reflect.TypeOf(utils.TopicName{}):
		if err := json.Unmarshal(given, &name); err != nil {
			return reflect.Value{}, err
		}
		topic, err := utils.GetTopicName(name)
		if err != nil {
			return reflect.Value{}, err
		}
		return reflect.ValueOf(*topic), nil
	case reflect.TypeOf(utils.NameSpaceName{}):
		if err := json.Unmarshal(given, &name); err != nil {
			return reflect.Value{}, err
		}
		namespace, err := utils.GetNamespaceName(name)
		if err != nil {
			return reflect.Value{}, err
		}
		return reflect.ValueOf(*namespace), nil
	}
	into := reflect.New(kind)
	if err := json.Unmarshal(given, into.Interface()); err != nil {
		return reflect.Value{}, err
	}
	if kind.Kind() == reflect.Struct {
		if err := setUnsent(into.Elem(), given); err != nil {
			return reflect.Value{}, err
		}
	}
	return into.Elem(), nil
}

// setUnsent sets what is of a path, and not of the JSON that a broker gets: by its name in Go.
func setUnsent(into reflect.Value, given json.RawMessage) error {
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(given, &fields); err != nil {
		return err
	}
	for i := 0; i < into.NumField(); i++ {
		field := into.Type().Field(i)
		if value, ok := fields[field.Name]; ok && field.Tag.Get("json") == "-" {
			if err := json.Unmarshal(value, into.Field(i).Addr().Interface()); err != nil {
				return err
			}
		}
	}
	return nil
}

// adminResults is {"values": [...]}, or {"code": ..., "reason": ...} of a broker's refusal.
func adminResults(results []reflect.Value) (any, error) {
	values := []any{}
	for _, result := range results {
		err, ok := result.Interface().(error)
		var refused rest.Error
		switch {
		case ok && errors.As(err, &refused):
			return map[string]any{"code": refused.Code, "reason": refused.Reason}, nil
		case ok:
			return nil, err
		case result.Type().Implements(reflect.TypeOf((*error)(nil)).Elem()):
			continue
		default:
			values = append(values, result.Interface())
		}
	}
	return map[string]any{"values": values}, nil
}

package main

import (
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
)

// schemaArguments is a schema as the asking side writes it: a name of `schemas`, and a definition
// where the type has one.
type schemaArguments struct {
	Type       string            `json:"type"`
	Definition string            `json:"definition"`
	Properties map[string]string `json:"properties"`
}

var schemas = map[string]func(*schemaArguments) (pulsar.Schema, error){
	"AVRO": func(args *schemaArguments) (pulsar.Schema, error) {
		return pulsar.NewAvroSchemaWithValidation(args.Definition, args.Properties)
	},
	"JSON": func(args *schemaArguments) (pulsar.Schema, error) {
		return pulsar.NewJSONSchemaWithValidation(args.Definition, args.Properties)
	},
	"STRING": func(args *schemaArguments) (pulsar.Schema, error) {
		return pulsar.NewStringSchema(args.Properties), nil
	},
	"INT32": func(args *schemaArguments) (pulsar.Schema, error) {
		return pulsar.NewInt32Schema(args.Properties), nil
	},
}

// schemaOf makes the schema that is asked for; none where nothing is.
func schemaOf(args *schemaArguments) (pulsar.Schema, error) {
	if args == nil {
		return nil, nil
	}
	make, ok := schemas[args.Type]
	if !ok {
		return nil, &badArguments{"schema", fmt.Errorf("%q is not offered", args.Type)}
	}
	return make(args)
}

package main

import (
	"fmt"
	"os"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
	"github.com/apache/pulsar-client-go/pulsar/log"
	"github.com/sirupsen/logrus"
)

type clientArguments struct {
	URL                  string  `json:"service_url"`
	OperationTimeoutS    float64 `json:"operation_timeout_seconds"`
	ConnectionTimeoutMs  int64   `json:"connection_timeout_ms"`
	KeepAliveMs          int64   `json:"keep_alive_interval_ms"`
	ConnectionsPerBroker int     `json:"connections_per_broker"`
	MemoryLimitBytes     int64   `json:"memory_limit_bytes"`
	ListenerName         string  `json:"listener_name"`
	Description          string  `json:"description"`
	TrustCerts           string  `json:"tls_trust_certs_file_path"`
	Certificate          string  `json:"tls_certificate_file_path"`
	Key                  string  `json:"tls_key_file_path"`
	ValidateHostname     bool    `json:"tls_validate_hostname"`
	AuthPlugin           string  `json:"auth_plugin"`
	AuthParams           string  `json:"auth_params"`
	EnableTransaction    bool    `json:"enable_transaction"`
}

func newClient(p *program, asked *request) (any, error) {
	args, err := arguments[clientArguments](asked)
	if err != nil {
		return nil, err
	}
	logger := logrus.New()
	logger.SetOutput(os.Stderr)
	logger.SetLevel(logrus.FatalLevel)
	if os.Getenv("GOCLIENT_LOG") != "" {
		logger.SetLevel(logrus.DebugLevel)
	}
	var authentication pulsar.Authentication // without a plugin: none
	if args.AuthPlugin != "" {
		authentication, err = pulsar.NewAuthentication(args.AuthPlugin, args.AuthParams)
		if err != nil {
			return nil, err
		}
	}
	made, err := pulsar.NewClient(pulsar.ClientOptions{
		URL:                     args.URL,
		OperationTimeout:        time.Duration(args.OperationTimeoutS * float64(time.Second)),
		ConnectionTimeout:       milliseconds(args.ConnectionTimeoutMs),
		KeepAliveInterval:       milliseconds(args.KeepAliveMs),
		MaxConnectionsPerBroker: args.ConnectionsPerBroker,
		MemoryLimitBytes:        args.MemoryLimitBytes,
		ListenerName:            args.ListenerName,
		Description:             args.Description,
		TLSTrustCertsFilePath:   args.TrustCerts,
		TLSCertificateFile:      args.Certificate,
		TLSKeyFilePath:          args.Key,
		TLSValidateHostname:     args.ValidateHostname,
		Authentication:          authentication,
		EnableTransaction:       args.EnableTransaction,
		Logger:                  log.NewLoggerWithLogrus(logger),
	})
	if err != nil {
		return nil, err
	}
	p.keep(asked.As, made)
	return nil, nil
}

func closeClient(p *program, asked *request) (any, error) {
	client, err := object[pulsar.Client](p, asked.On)
	if err != nil {
		return nil, err
	}
	client.Close()
	return nil, nil
}

func partitions(p *program, asked *request) (any, error) {
	client, err := object[pulsar.Client](p, asked.On)
	if err != nil {
		return nil, err
	}
	args, err := arguments[struct {
		Topic string `json:"topic"`
	}](asked)
	if err != nil {
		return nil, err
	}
	return client.TopicPartitions(args.Topic)
}

func milliseconds(count int64) time.Duration {
	return time.Duration(count) * time.Millisecond
}

// pick returns the value that a name of the asking side stands for; an empty name is the first
// value of the Go type, its default.
func pick[T any](what, name string, values map[string]T) (T, error) {
	var first T
	if name == "" {
		return first, nil
	}
	value, ok := values[name]
	if !ok {
		return first, &badArguments{what, fmt.Errorf("%q is not offered", name)}
	}
	return value, nil
}

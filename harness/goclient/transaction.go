package main

import (
	"context"

	"github.com/apache/pulsar-client-go/pulsar"
)

// newTransaction answers with the id of the transaction that it keeps under a handle.
func newTransaction(p *program, asked *request) (any, error) {
	client, err := object[pulsar.Client](p, asked.On)
	if err != nil {
		return nil, err
	}
	args, err := arguments[struct {
		TimeoutMs int64 `json:"timeout_ms"`
	}](asked)
	if err != nil {
		return nil, err
	}
	made, err := client.NewTransaction(milliseconds(args.TimeoutMs))
	if err != nil {
		return nil, err
	}
	p.keep(asked.As, made)
	id := made.GetTxnID()
	return map[string]uint64{"most": id.MostSigBits, "least": id.LeastSigBits}, nil
}

func commit(p *program, asked *request) (any, error) {
	transaction, err := object[pulsar.Transaction](p, asked.On)
	if err != nil {
		return nil, err
	}
	return nil, transaction.Commit(context.Background())
}

func abort(p *program, asked *request) (any, error) {
	transaction, err := object[pulsar.Transaction](p, asked.On)
	if err != nil {
		return nil, err
	}
	return nil, transaction.Abort(context.Background())
}

func transactionState(p *program, asked *request) (any, error) {
	transaction, err := object[pulsar.Transaction](p, asked.On)
	if err != nil {
		return nil, err
	}
	return transaction.GetState().String(), nil
}

type ackWithinArguments struct {
	Message     idArgument `json:"message"`
	Transaction int64      `json:"transaction"`
}

func acknowledgeWithin(p *program, asked *request) (any, error) {
	consumer, args, err := of[ackWithinArguments](p, asked)
	if err != nil {
		return nil, err
	}
	transaction, err := object[pulsar.Transaction](p, args.Transaction)
	if err != nil {
		return nil, err
	}
	message, err := p.message(args.Message)
	if err != nil {
		return nil, err
	}
	return nil, consumer.AckWithTxn(message, transaction)
}

package main

import (
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

type readerArguments struct {
	Topic             string            `json:"topic"`
	Start             idArgument        `json:"start_message_id"`
	StartInclusive    bool              `json:"start_message_id_inclusive"`
	Name              string            `json:"reader_name"`
	QueueSize         int               `json:"receiver_queue_size"`
	RolePrefix        string            `json:"subscription_role_prefix"`
	Subscription      string            `json:"subscription_name"`
	ReadCompacted     bool              `json:"is_read_compacted"`
	Properties        map[string]string `json:"properties"`
	MaxPendingChunked int               `json:"max_pending_chunked_message"`
}

func createReader(p *program, asked *request) (any, error) {
	client, err := object[pulsar.Client](p, asked.On)
	if err != nil {
		return nil, err
	}
	args, err := arguments[readerArguments](asked)
	if err != nil {
		return nil, err
	}
	start, err := p.id(args.Start)
	if err != nil {
		return nil, err
	}
	made, err := client.CreateReader(pulsar.ReaderOptions{
		Topic:                    args.Topic,
		StartMessageID:           start,
		StartMessageIDInclusive:  args.StartInclusive,
		Name:                     args.Name,
		ReceiverQueueSize:        args.QueueSize,
		SubscriptionRolePrefix:   args.RolePrefix,
		SubscriptionName:         args.Subscription,
		ReadCompacted:            args.ReadCompacted,
		Properties:               args.Properties,
		MaxPendingChunkedMessage: args.MaxPendingChunked,
	})
	if err != nil {
		return nil, err
	}
	p.keep(asked.As, made)
	return nil, nil
}

func readNext(p *program, asked *request) (any, error) {
	reader, err := object[pulsar.Reader](p, asked.On)
	if err != nil {
		return nil, err
	}
	args, err := arguments[waitArguments](asked)
	if err != nil {
		return nil, err
	}
	waiting, end := args.waiting()
	defer end()
	message, err := reader.Next(waiting)
	if err != nil {
		return nil, err
	}
	return p.keepMessage(message), nil
}

func hasNext(p *program, asked *request) (any, error) {
	reader, err := object[pulsar.Reader](p, asked.On)
	if err != nil {
		return nil, err
	}
	return reader.HasNext(), nil
}

func readerSeek(p *program, asked *request) (any, error) {
	reader, err := object[pulsar.Reader](p, asked.On)
	if err != nil {
		return nil, err
	}
	args, err := arguments[seekArguments](asked)
	if err != nil {
		return nil, err
	}
	if args.ID == nil {
		return nil, reader.SeekByTime(time.UnixMilli(args.TimeMs))
	}
	id, err := p.placeToSeek(*args.ID)
	if err != nil {
		return nil, err
	}
	return nil, reader.Seek(id)
}

func readerLastID(p *program, asked *request) (any, error) {
	reader, err := object[pulsar.Reader](p, asked.On)
	if err != nil {
		return nil, err
	}
	id, err := reader.GetLastMessageID()
	if err != nil {
		return nil, err
	}
	return p.keepID(id, nil), nil
}

func closeReader(p *program, asked *request) (any, error) {
	reader, err := object[pulsar.Reader](p, asked.On)
	if err != nil {
		return nil, err
	}
	reader.Close()
	return nil, nil
}

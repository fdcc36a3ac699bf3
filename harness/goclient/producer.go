package main

import (
	"context"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

// producer is the client's producer and the line of what was asked of it, which one goroutine
// works off: sends keep their order, and a flush comes behind the sends before it.
type producer struct {
	pulsar.Producer
	queue *queue
}

// inOrder has what is asked of a producer in order. Each answers by itself.
var inOrder = map[string]func(*program, *producer, *request){
	"send":             send,
	"send_async":       sendAsync,
	"flush":            flush,
	"last_sequence_id": lastSequenceID,
}

type producerArguments struct {
	Topic              string            `json:"topic"`
	Name               string            `json:"producer_name"`
	Properties         map[string]string `json:"properties"`
	SendTimeoutMs      int64             `json:"send_timeout_millis"`
	Compression        string            `json:"compression_type"`
	MaxPending         int               `json:"max_pending_messages"`
	BlockIfFull        bool              `json:"block_if_queue_full"`
	Batching           bool              `json:"batching_enabled"`
	BatchingMessages   uint              `json:"batching_max_messages"`
	BatchingBytes      uint              `json:"batching_max_allowed_size_in_bytes"`
	BatchingDelayMs    int64             `json:"batching_max_publish_delay_ms"`
	BatchingType       string            `json:"batching_type"`
	Chunking           bool              `json:"chunking_enabled"`
	ChunkBytes         uint              `json:"chunk_max_message_size"`
	Routing            string            `json:"message_routing_mode"`
	Hashing            string            `json:"hashing_scheme"`
	AccessMode         string            `json:"access_mode"`
	PartitionsUpdateMs int64             `json:"partitions_update_interval_ms"`
	Schema             *schemaArguments  `json:"schema"`
}

var (
	compressions = map[string]pulsar.CompressionType{
		"NONE":   pulsar.NoCompression,
		"LZ4":    pulsar.LZ4,
		"ZLib":   pulsar.ZLib,
		"ZSTD":   pulsar.ZSTD,
		"SNAPPY": pulsar.SNAPPY,
	}
	batchingTypes = map[string]pulsar.BatcherBuilderType{
		"Default":  pulsar.DefaultBatchBuilder,
		"KeyBased": pulsar.KeyBasedBatchBuilder,
	}
	accessModes = map[string]pulsar.ProducerAccessMode{
		"Shared":           pulsar.ProducerAccessModeShared,
		"Exclusive":        pulsar.ProducerAccessModeExclusive,
		"WaitForExclusive": pulsar.ProducerAccessModeWaitForExclusive,
	}
	hashings = map[string]pulsar.HashingScheme{
		"JavaStringHash": pulsar.JavaStringHash,
		"Murmur3_32Hash": pulsar.Murmur3_32Hash,
	}
	routings = map[string]bool{ // whether one partition is chosen for good
		"RoundRobinDistribution": false,
		"UseSinglePartition":     true,
	}
)

func createProducer(p *program, asked *request) (any, error) {
	client, err := object[pulsar.Client](p, asked.On)
	if err != nil {
		return nil, err
	}
	args, err := arguments[producerArguments](asked)
	if err != nil {
		return nil, err
	}
	options, err := producerOptions(args)
	if err != nil {
		return nil, err
	}
	made, err := client.CreateProducer(options)
	if err != nil {
		return nil, err
	}
	p.keep(asked.As, &producer{made, newQueue()})
	return map[string]string{"producer_name": made.Name(), "topic": made.Topic()}, nil
}

func producerOptions(args producerArguments) (pulsar.ProducerOptions, error) {
	options := pulsar.ProducerOptions{
		Topic:                           args.Topic,
		Name:                            args.Name,
		Properties:                      args.Properties,
		SendTimeout:                     milliseconds(args.SendTimeoutMs),
		DisableBlockIfQueueFull:         !args.BlockIfFull,
		MaxPendingMessages:              args.MaxPending,
		DisableBatching:                 !args.Batching,
		BatchingMaxPublishDelay:         milliseconds(args.BatchingDelayMs),
		BatchingMaxMessages:             args.BatchingMessages,
		BatchingMaxSize:                 args.BatchingBytes,
		EnableChunking:                  args.Chunking,
		ChunkMaxMessageSize:             args.ChunkBytes,
		PartitionsAutoDiscoveryInterval: milliseconds(args.PartitionsUpdateMs),
	}
	var err error
	if options.CompressionType, err = pick("compression", args.Compression, compressions); err != nil {
		return options, err
	}
	options.BatcherBuilderType, err = pick("batching type", args.BatchingType, batchingTypes)
	if err != nil {
		return options, err
	}
	options.ProducerAccessMode, err = pick("access mode", args.AccessMode, accessModes)
	if err != nil {
		return options, err
	}
	if options.Schema, err = schemaOf(args.Schema); err != nil {
		return options, err
	}
	if options.HashingScheme, err = pick("hashing scheme", args.Hashing, hashings); err != nil {
		return options, err
	}
	single, err := pick("routing mode", args.Routing, routings)
	if single {
		options.MessageRouter = pulsar.NewSinglePartitionRouter()
	}
	return options, err
}

func closeProducer(p *program, asked *request) (any, error) {
	made, err := object[*producer](p, asked.On)
	if err != nil {
		return nil, err
	}
	made.Close()
	return nil, nil
}

type sendArguments struct {
	Content            []byte            `json:"content"`
	Properties         map[string]string `json:"properties"`
	Key                string            `json:"partition_key"`
	OrderingKey        string            `json:"ordering_key"`
	SequenceID         *int64            `json:"sequence_id"`
	Clusters           []string          `json:"replication_clusters"`
	DisableReplication bool              `json:"disable_replication"`
	EventMs            int64             `json:"event_timestamp"`
	DeliverAtMs        int64             `json:"deliver_at"`
	DeliverAfterMs     int64             `json:"deliver_after_ms"`
	Transaction        int64             `json:"transaction"`
}

func outgoing(p *program, asked *request) (*pulsar.ProducerMessage, error) {
	args, err := arguments[sendArguments](asked)
	if err != nil {
		return nil, err
	}
	message := &pulsar.ProducerMessage{
		Payload:             args.Content,
		Properties:          args.Properties,
		Key:                 args.Key,
		OrderingKey:         args.OrderingKey,
		SequenceID:          args.SequenceID,
		ReplicationClusters: args.Clusters,
		DisableReplication:  args.DisableReplication,
		DeliverAfter:        milliseconds(args.DeliverAfterMs),
	}
	if args.EventMs != 0 {
		message.EventTime = time.UnixMilli(args.EventMs)
	}
	if args.Transaction != 0 {
		if message.Transaction, err = object[pulsar.Transaction](p, args.Transaction); err != nil {
			return nil, err
		}
	}
	if args.DeliverAtMs != 0 {
		message.DeliverAt = time.UnixMilli(args.DeliverAtMs)
	}
	return message, nil
}

func send(p *program, made *producer, asked *request) {
	message, err := outgoing(p, asked)
	if err != nil {
		p.answer(asked.ID, nil, err)
		return
	}
	id, err := made.Send(context.Background(), message)
	p.answerSent(asked.ID, id, err)
}

func sendAsync(p *program, made *producer, asked *request) {
	message, err := outgoing(p, asked)
	if err != nil {
		p.answer(asked.ID, nil, err)
		return
	}
	done := func(id pulsar.MessageID, _ *pulsar.ProducerMessage, err error) {
		p.answerSent(asked.ID, id, err)
	}
	made.SendAsync(context.Background(), message, done)
}

func (p *program) answerSent(number int64, id pulsar.MessageID, err error) {
	if err != nil {
		p.answer(number, nil, err)
		return
	}
	p.answer(number, p.keepID(id, nil), nil)
}

// flush waits in a goroutine of its own: sends that come behind it need not wait.
func flush(p *program, made *producer, asked *request) {
	go func() {
		p.answer(asked.ID, nil, made.FlushWithCtx(context.Background()))
	}()
}

func lastSequenceID(p *program, made *producer, asked *request) {
	p.answer(asked.ID, made.LastSequenceID(), nil)
}

// queue runs functions one after another. Putting never waits, because the reader of the input
// must not wait for a producer whose queue is full.
type queue struct {
	mutex   sync.Mutex
	filled  *sync.Cond
	waiting []func()
}

func newQueue() *queue {
	q := &queue{}
	q.filled = sync.NewCond(&q.mutex)
	go q.run()
	return q
}

func (q *queue) put(work func()) {
	q.mutex.Lock()
	defer q.mutex.Unlock()
	q.waiting = append(q.waiting, work)
	q.filled.Signal()
}

func (q *queue) run() {
	for {
		q.mutex.Lock()
		for len(q.waiting) == 0 {
			q.filled.Wait()
		}
		batch := q.waiting
		q.waiting = nil
		q.mutex.Unlock()
		for _, work := range batch {
			work()
		}
	}
}

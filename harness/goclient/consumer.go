package main

import (
	"context"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"
)

type consumerArguments struct {
	Topic                  string               `json:"topic"`
	Topics                 []string             `json:"topics"`
	Pattern                string               `json:"topics_pattern"`
	DiscoveryS             float64              `json:"pattern_auto_discovery_period"`
	Subscription           string               `json:"subscription_name"`
	Type                   string               `json:"consumer_type"`
	Name                   string               `json:"consumer_name"`
	QueueSize              int                  `json:"receiver_queue_size"`
	InitialPosition        string               `json:"initial_position"`
	Properties             map[string]string    `json:"properties"`
	SubscriptionProperties map[string]string    `json:"subscription_properties"`
	NackDelayMs            int64                `json:"negative_ack_redelivery_delay_ms"`
	NackPrecisionBits      *int64               `json:"nack_precision_bits"`
	AckWithResponse        bool                 `json:"ack_with_response"`
	AckGroupMs             *int64               `json:"ack_group_ms"`
	BatchIndexAck          bool                 `json:"batch_index_ack_enabled"`
	ReadCompacted          bool                 `json:"is_read_compacted"`
	ReplicateState         bool                 `json:"replicate_subscription_state_enabled"`
	MaxPendingChunked      int                  `json:"max_pending_chunked_message"`
	AutoAckChunked         bool                 `json:"auto_ack_oldest_chunked_message_on_queue_full"`
	ExpireChunkedMs        int64                `json:"expire_time_of_incomplete_chunked_message_ms"`
	StartInclusive         bool                 `json:"start_message_id_inclusive"`
	Mode                   string               `json:"subscription_mode"`
	RetryEnable            bool                 `json:"retry_enable"`
	DeadLetter             *deadLetterArguments `json:"dead_letter_policy"`
	KeyShared              *keySharedArguments  `json:"key_shared_policy"`
	Schema                 *schemaArguments     `json:"schema"`
	Listen                 bool                 `json:"listen_for_active"`
}

type deadLetterArguments struct {
	MaxRedeliveries     uint32 `json:"max_redeliver_count"`
	DeadLetterTopic     string `json:"dead_letter_topic"`
	RetryLetterTopic    string `json:"retry_letter_topic"`
	InitialSubscription string `json:"initial_subscription_name"`
}

type keySharedArguments struct {
	Mode            string `json:"key_shared_mode"`
	AllowOutOfOrder bool   `json:"allow_out_of_order_delivery"`
	StickyRanges    []int  `json:"sticky_ranges"` // first, last, first, last, ...
}

var (
	subscriptionTypes = map[string]pulsar.SubscriptionType{
		"Exclusive": pulsar.Exclusive,
		"Shared":    pulsar.Shared,
		"Failover":  pulsar.Failover,
		"KeyShared": pulsar.KeyShared,
	}
	positions = map[string]pulsar.SubscriptionInitialPosition{
		"Latest":   pulsar.SubscriptionPositionLatest,
		"Earliest": pulsar.SubscriptionPositionEarliest,
	}
	subscriptionModes = map[string]pulsar.SubscriptionMode{
		"Durable":    pulsar.Durable,
		"NonDurable": pulsar.NonDurable,
	}
	keySharedModes = map[string]pulsar.KeySharedPolicyMode{
		"AutoSplit": pulsar.KeySharedPolicyModeAutoSplit,
		"Sticky":    pulsar.KeySharedPolicyModeSticky,
	}
)

func subscribe(p *program, asked *request) (any, error) {
	client, err := object[pulsar.Client](p, asked.On)
	if err != nil {
		return nil, err
	}
	args, err := arguments[consumerArguments](asked)
	if err != nil {
		return nil, err
	}
	options, err := consumerOptions(args)
	if err != nil {
		return nil, err
	}
	if args.Listen {
		options.EventListener = &activeListener{p, asked.As}
	}
	made, err := client.Subscribe(options)
	if err != nil {
		return nil, err
	}
	p.keep(asked.As, made)
	return map[string]string{"consumer_name": made.Name()}, nil
}

func consumerOptions(args consumerArguments) (pulsar.ConsumerOptions, error) {
	options := pulsar.ConsumerOptions{
		Topic:                          args.Topic,
		Topics:                         args.Topics,
		TopicsPattern:                  args.Pattern,
		AutoDiscoveryPeriod:            time.Duration(args.DiscoveryS * float64(time.Second)),
		SubscriptionName:               args.Subscription,
		Name:                           args.Name,
		ReceiverQueueSize:              args.QueueSize,
		EnableZeroQueueConsumer:        args.QueueSize == 0,
		Properties:                     args.Properties,
		SubscriptionProperties:         args.SubscriptionProperties,
		NackRedeliveryDelay:            milliseconds(args.NackDelayMs),
		NackPrecisionBit:               args.NackPrecisionBits,
		AckWithResponse:                args.AckWithResponse,
		EnableBatchIndexAcknowledgment: args.BatchIndexAck,
		ReadCompacted:                  args.ReadCompacted,
		ReplicateSubscriptionState:     args.ReplicateState,
		MaxPendingChunkedMessage:       args.MaxPendingChunked,
		AutoAckIncompleteChunk:         args.AutoAckChunked,
		ExpireTimeOfIncompleteChunk:    milliseconds(args.ExpireChunkedMs),
		StartMessageIDInclusive:        args.StartInclusive,
		RetryEnable:                    args.RetryEnable,
	}
	if args.AckGroupMs != nil {
		options.AckGroupingOptions = &pulsar.AckGroupingOptions{
			MaxSize: 1000, MaxTime: milliseconds(*args.AckGroupMs),
		}
	}
	if policy := args.DeadLetter; policy != nil {
		options.DLQ = &pulsar.DLQPolicy{
			MaxDeliveries:           deliveries(args),
			DeadLetterTopic:         policy.DeadLetterTopic,
			RetryLetterTopic:        policy.RetryLetterTopic,
			InitialSubscriptionName: policy.InitialSubscription,
		}
	}
	var err error
	if options.Type, err = pick("consumer type", args.Type, subscriptionTypes); err != nil {
		return options, err
	}
	options.SubscriptionInitialPosition, err = pick("position", args.InitialPosition, positions)
	if err != nil {
		return options, err
	}
	if options.Schema, err = schemaOf(args.Schema); err != nil {
		return options, err
	}
	if options.SubscriptionMode, err = pick("mode", args.Mode, subscriptionModes); err != nil {
		return options, err
	}
	if args.KeyShared != nil {
		options.KeySharedPolicy, err = keySharedPolicy(args.KeyShared)
	}
	return options, err
}

// deliveries translates the number of redeliveries that a dead letter policy allows. This client
// counts the first delivery as well, but not so when it counts the rounds over a retry letter
// topic.
func deliveries(args consumerArguments) uint32 {
	if args.RetryEnable {
		return args.DeadLetter.MaxRedeliveries
	}
	return args.DeadLetter.MaxRedeliveries + 1
}

func keySharedPolicy(args *keySharedArguments) (*pulsar.KeySharedPolicy, error) {
	mode, err := pick("key shared mode", args.Mode, keySharedModes)
	if err != nil {
		return nil, err
	}
	return &pulsar.KeySharedPolicy{
		Mode:                    mode,
		HashRanges:              args.StickyRanges,
		AllowOutOfOrderDelivery: args.AllowOutOfOrder,
	}, nil
}

// activeListener tells the asking side of ACTIVE_CONSUMER_CHANGE.
type activeListener struct {
	program *program
	handle  int64
}

func (l *activeListener) BecameActive(_ pulsar.Consumer, topic string, partition int32) {
	l.tell(topic, partition, true)
}

func (l *activeListener) BecameInactive(_ pulsar.Consumer, topic string, partition int32) {
	l.tell(topic, partition, false)
}

func (l *activeListener) tell(topic string, partition int32, active bool) {
	l.program.write(map[string]any{
		"event": "active", "on": l.handle,
		"topic": topic, "partition": partition, "active": active,
	})
}

type waitArguments struct {
	TimeoutMs *int64 `json:"timeout_millis"`
}

// waiting returns the context of a wait; without a time it has no end.
func (a waitArguments) waiting() (context.Context, context.CancelFunc) {
	if a.TimeoutMs == nil {
		return context.WithCancel(context.Background())
	}
	return context.WithTimeout(context.Background(), milliseconds(*a.TimeoutMs))
}

// of returns the consumer that is asked, and the arguments.
func of[T any](p *program, asked *request) (pulsar.Consumer, T, error) {
	args, err := arguments[T](asked)
	if err != nil {
		return nil, args, err
	}
	consumer, err := object[pulsar.Consumer](p, asked.On)
	return consumer, args, err
}

func receive(p *program, asked *request) (any, error) {
	consumer, args, err := of[waitArguments](p, asked)
	if err != nil {
		return nil, err
	}
	waiting, end := args.waiting()
	defer end()
	message, err := consumer.Receive(waiting)
	if err != nil {
		return nil, err
	}
	return p.keepMessage(message), nil
}

func acknowledge(p *program, asked *request) (any, error) {
	consumer, named, err := of[idArgument](p, asked)
	if err != nil {
		return nil, err
	}
	id, err := p.id(named)
	if err != nil {
		return nil, err
	}
	return nil, consumer.AckID(id)
}

func acknowledgeCumulative(p *program, asked *request) (any, error) {
	consumer, named, err := of[idArgument](p, asked)
	if err != nil {
		return nil, err
	}
	id, err := p.id(named)
	if err != nil {
		return nil, err
	}
	return nil, consumer.AckIDCumulative(id)
}

func acknowledgeList(p *program, asked *request) (any, error) {
	consumer, named, err := of[[]idArgument](p, asked)
	if err != nil {
		return nil, err
	}
	ids := make([]pulsar.MessageID, len(named))
	for index, one := range named {
		if ids[index], err = p.id(one); err != nil {
			return nil, err
		}
	}
	return nil, consumer.AckIDList(ids)
}

func negativeAcknowledge(p *program, asked *request) (any, error) {
	consumer, named, err := of[idArgument](p, asked)
	if err != nil {
		return nil, err
	}
	if message, err := p.message(named); err == nil {
		consumer.Nack(message)
		return nil, nil
	}
	id, err := p.id(named)
	if err != nil {
		return nil, err
	}
	consumer.NackID(id)
	return nil, nil
}

type reconsumeArguments struct {
	Message    idArgument        `json:"message"`
	DelayMs    int64             `json:"delay_ms"`
	Properties map[string]string `json:"properties"`
}

func reconsumeLater(p *program, asked *request) (any, error) {
	consumer, args, err := of[reconsumeArguments](p, asked)
	if err != nil {
		return nil, err
	}
	message, err := p.message(args.Message)
	if err != nil {
		return nil, err
	}
	delay := milliseconds(args.DelayMs)
	consumer.ReconsumeLaterWithCustomProperties(message, args.Properties, delay)
	return nil, nil
}

type seekArguments struct {
	ID     *idArgument `json:"id"`
	TimeMs int64       `json:"time_ms"`
}

func seek(p *program, asked *request) (any, error) {
	consumer, args, err := of[seekArguments](p, asked)
	if err != nil {
		return nil, err
	}
	if args.ID == nil {
		return nil, consumer.SeekByTime(time.UnixMilli(args.TimeMs))
	}
	id, err := p.placeToSeek(*args.ID)
	if err != nil {
		return nil, err
	}
	return nil, consumer.Seek(id)
}

func lastIDs(p *program, asked *request) (any, error) {
	consumer, err := object[pulsar.Consumer](p, asked.On)
	if err != nil {
		return nil, err
	}
	ids, err := consumer.GetLastMessageIDs()
	if err != nil {
		return nil, err
	}
	answers := make([]idAnswer, len(ids))
	for index, id := range ids {
		answers[index] = p.keepID(id, nil)
	}
	return answers, nil
}

func unsubscribe(p *program, asked *request) (any, error) {
	consumer, args, err := of[struct {
		Force bool `json:"force"`
	}](p, asked)
	if err != nil {
		return nil, err
	}
	if args.Force {
		return nil, consumer.UnsubscribeForce()
	}
	return nil, consumer.Unsubscribe()
}

func closeConsumer(p *program, asked *request) (any, error) {
	consumer, err := object[pulsar.Consumer](p, asked.On)
	if err != nil {
		return nil, err
	}
	consumer.Close()
	return nil, nil
}

package main

import (
	"fmt"

	"github.com/apache/pulsar-client-go/pulsar"
)

// kept is something that the asking side may name again: an id, and the message it came with.
type kept struct {
	id      pulsar.MessageID
	message pulsar.Message
}

// idAnswer is an id as it goes out. Bytes is the form that every client can read.
type idAnswer struct {
	Kept      int64  `json:"kept"`
	Ledger    int64  `json:"ledger"`
	Entry     int64  `json:"entry"`
	Batch     int32  `json:"batch"`
	BatchSize int32  `json:"batch_size"`
	Partition int32  `json:"partition"`
	Topic     string `json:"topic"`
	Bytes     []byte `json:"bytes"`
}

// messageAnswer is a message as it goes out.
type messageAnswer struct {
	ID              idAnswer          `json:"id"`
	Data            []byte            `json:"data"`
	Key             string            `json:"key"`
	OrderingKey     string            `json:"ordering_key"`
	Properties      map[string]string `json:"properties"`
	PublishMs       int64             `json:"publish_ms"`
	EventMs         int64             `json:"event_ms"`
	RedeliveryCount uint32            `json:"redelivery_count"`
	Topic           string            `json:"topic"`
	ProducerName    string            `json:"producer_name"`
	ReplicatedFrom  string            `json:"replicated_from"`
}

// idArgument names an id: one that was given out here, or the bytes of any client's id, or the
// ends of a topic.
type idArgument struct {
	Kept  int64  `json:"kept"`
	Bytes []byte `json:"bytes"`
	End   string `json:"end"` // earliest, latest
}

func (p *program) keepID(id pulsar.MessageID, message pulsar.Message) idAnswer {
	p.mutex.Lock()
	p.lastOf++
	number := p.lastOf
	p.kept[number] = kept{id, message}
	p.mutex.Unlock()
	answer := idAnswer{
		Kept:      number,
		Ledger:    id.LedgerID(),
		Entry:     id.EntryID(),
		Batch:     id.BatchIdx(),
		BatchSize: id.BatchSize(),
		Partition: id.PartitionIdx(),
		Bytes:     id.Serialize(),
	}
	if ofTopic, ok := id.(pulsar.TopicMessageID); ok {
		answer.Topic = ofTopic.Topic()
	}
	return answer
}

func (p *program) keepMessage(message pulsar.Message) messageAnswer {
	return messageAnswer{
		ID:              p.keepID(message.ID(), message),
		Data:            message.Payload(),
		Key:             message.Key(),
		OrderingKey:     message.OrderingKey(),
		Properties:      message.Properties(),
		PublishMs:       message.PublishTime().UnixMilli(),
		EventMs:         message.EventTime().UnixMilli(),
		RedeliveryCount: message.RedeliveryCount(),
		Topic:           message.Topic(),
		ProducerName:    message.ProducerName(),
		ReplicatedFrom:  message.GetReplicatedFrom(),
	}
}

func (p *program) drop(numbers []int64) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	for _, number := range numbers {
		delete(p.kept, number)
	}
}

func keptCount(p *program, _ *request) (any, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	return len(p.kept), nil
}

// id returns the id that an argument names.
func (p *program) id(named idArgument) (pulsar.MessageID, error) {
	switch {
	case named.End == "earliest":
		return pulsar.EarliestMessageID(), nil
	case named.End == "latest":
		return pulsar.LatestMessageID(), nil
	case named.Kept != 0:
		p.mutex.Lock()
		defer p.mutex.Unlock()
		found, ok := p.kept[named.Kept]
		if !ok {
			return nil, fmt.Errorf("the id %d was dropped", named.Kept)
		}
		return found.id, nil
	default:
		return foreignID(named.Bytes)
	}
}

// foreignID reads the id of another client. Those leave the partition of a plain topic out; this
// client calls it 0 and refuses an id without, so the field is written behind the others.
func foreignID(encoded []byte) (pulsar.MessageID, error) {
	id, err := pulsar.DeserializeMessageID(encoded)
	if err != nil || id.PartitionIdx() >= 0 {
		return id, err
	}
	return pulsar.DeserializeMessageID(append(encoded, partitionTag, 0))
}

// partitionTag is the tag of MessageIdData.partition, field 3, a varint.
const partitionTag = 3 << 3

// placeToSeek returns the id that an argument names, in the form that a consumer can seek to: its
// own constants for the ends of a topic have no partition, and it refuses them here.
func (p *program) placeToSeek(named idArgument) (pulsar.MessageID, error) {
	id, err := p.id(named)
	if err != nil || named.End == "" {
		return id, err
	}
	return pulsar.NewMessageID(id.LedgerID(), id.EntryID(), -1, 0), nil
}

// message returns the whole message that an argument names.
func (p *program) message(named idArgument) (pulsar.Message, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	found, ok := p.kept[named.Kept]
	if !ok || found.message == nil {
		return nil, fmt.Errorf("there is no message %d", named.Kept)
	}
	return found.message, nil
}

// A program that lets tests in Python drive Apache Pulsar's Go client.
//
// It reads one JSON object a line from standard input and answers each with one line:
//
//	{"id": 7, "op": "receive", "on": 3, "args": {...}, "drop": [12, 13]}
//	{"id": 7, "ok": ...}
//	{"id": 7, "error": {"result": "ConsumerBusy", "text": "..."}}
//
// `on` is the handle of the client, producer, consumer or reader that is asked. The asking side
// chooses these handles (`as`, when one is made). Messages and ids that are given out are kept
// under numbers of this side until they are named in `drop`, for the client acknowledges by its
// own objects. Bytes are base64, times are milliseconds. Requests are served at the same time;
// what is asked of one producer is served in order. Between the answers come events:
//
//	{"event": "active", "on": 3, "topic": "...", "partition": 0, "active": true}
//
// The end of the input ends the program.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

type request struct {
	ID   int64           `json:"id"`
	Op   string          `json:"op"`
	On   int64           `json:"on"`
	As   int64           `json:"as"`
	Drop []int64         `json:"drop"`
	Args json.RawMessage `json:"args"`
}

// handler serves one request and returns what goes under "ok".
type handler func(*program, *request) (any, error)

// handlers has what can be asked. The producers' part is ordered, see producer.go.
var handlers = map[string]handler{
	"new_client":      newClient,
	"close_client":    closeClient,
	"kept_count":      keptCount,
	"partitions":      partitions,
	"create_producer": createProducer,
	"close_producer":  closeProducer,
	"subscribe":       subscribe,
	"receive":         receive,
	"ack":             acknowledge,
	"ack_cumulative":  acknowledgeCumulative,
	"ack_list":        acknowledgeList,
	"nack":            negativeAcknowledge,
	"reconsume_later": reconsumeLater,
	"seek":            seek,
	"last_ids":        lastIDs,
	"unsubscribe":     unsubscribe,
	"close_consumer":  closeConsumer,
	"create_reader":   createReader,
	"read_next":       readNext,
	"has_next":        hasNext,
	"reader_seek":     readerSeek,
	"reader_last_id":  readerLastID,
	"close_reader":    closeReader,
	"new_transaction": newTransaction,
	"commit":          commit,
	"abort":           abort,
	"state":           transactionState,
	"ack_within":      acknowledgeWithin,
	"new_admin":       newAdmin,
	"admin_methods":   adminMethods,
	"call_admin":      callAdmin,
}

// program holds everything that the asking side knows by a number.
type program struct {
	mutex   sync.Mutex
	objects map[int64]any // clients, producers, consumers, readers and transactions
	kept    map[int64]kept
	lastOf  int64 // the last number given in kept

	writing sync.Mutex
	output  *bufio.Writer
}

func main() {
	p := &program{
		objects: map[int64]any{},
		kept:    map[int64]kept{},
		output:  bufio.NewWriter(os.Stdout),
	}
	// The package pulsaradmin prints some errors, which are no answers.
	os.Stdout = os.Stderr
	input := bufio.NewReaderSize(os.Stdin, 1<<16)
	for {
		line, err := input.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			panic(err)
		}
		asked := &request{}
		if err := json.Unmarshal(line, asked); err != nil {
			panic(fmt.Sprintf("not a request: %.200q: %v", line, err))
		}
		p.drop(asked.Drop)
		p.serve(asked)
	}
}

// serve starts the work of a request and returns at once, so that a receive that waits holds up
// nobody else.
func (p *program) serve(asked *request) {
	if work, ok := inOrder[asked.Op]; ok {
		made, err := object[*producer](p, asked.On)
		if err != nil {
			p.answer(asked.ID, nil, err)
			return
		}
		made.queue.put(func() { work(p, made, asked) })
		return
	}
	work, ok := handlers[asked.Op]
	if !ok {
		p.answer(asked.ID, nil, fmt.Errorf("there is no operation %q", asked.Op))
		return
	}
	go func() {
		result, err := work(p, asked)
		p.answer(asked.ID, result, err)
	}()
}

func (p *program) answer(id int64, result any, err error) {
	if err != nil {
		name, text := describe(err)
		failure := map[string]string{"result": name, "text": text}
		p.write(map[string]any{"id": id, "error": failure})
		return
	}
	p.write(map[string]any{"id": id, "ok": result})
}

func (p *program) write(value any) {
	line, err := json.Marshal(value)
	if err != nil {
		panic(err)
	}
	p.writing.Lock()
	defer p.writing.Unlock()
	if _, err := p.output.Write(append(line, '\n')); err != nil {
		panic(err)
	}
	if err := p.output.Flush(); err != nil {
		panic(err)
	}
}

// keep remembers an object under the handle that the asking side chose for it.
func (p *program) keep(handle int64, made any) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.objects[handle] = made
}

// object returns what a handle stands for; another kind is an error.
func object[T any](p *program, handle int64) (T, error) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	found, ok := p.objects[handle].(T)
	if !ok {
		return found, fmt.Errorf("handle %d is not a %T", handle, found)
	}
	return found, nil
}

// arguments decodes the arguments of a request. A field that is not known is an error, so that no
// option is passed over in silence.
func arguments[T any](asked *request) (T, error) {
	var into T
	decoder := json.NewDecoder(bytes.NewReader(asked.Args))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&into); err != nil {
		return into, &badArguments{asked.Op, err}
	}
	return into, nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/apache/pulsar-client-go/pulsar"
)

// badArguments is an option that the Go client does not have, or a value it cannot take.
type badArguments struct {
	op  string
	err error
}

func (e *badArguments) Error() string {
	return fmt.Sprintf("%s of the Go client: %v", e.op, e.err)
}

// What a broker answered stands in the client's errors as text only; for a lookup the text is the
// ServerError's name and nothing else.
var (
	serverError = regexp.MustCompile(`(?:server|ack response) error: (\w+):`)
	bareName    = regexp.MustCompile(`^\w+$`)
)

var resultNames = map[pulsar.Result]string{
	pulsar.InvalidConfiguration:                  "InvalidConfiguration",
	pulsar.TimeoutError:                          "Timeout",
	pulsar.LookupError:                           "LookupError",
	pulsar.ConnectError:                          "ConnectError",
	pulsar.ReadError:                             "ReadError",
	pulsar.AuthenticationError:                   "AuthenticationError",
	pulsar.AuthorizationError:                    "AuthorizationError",
	pulsar.BrokerMetadataError:                   "BrokerMetadataError",
	pulsar.BrokerPersistenceError:                "BrokerPersistenceError",
	pulsar.ChecksumError:                         "ChecksumError",
	pulsar.ConsumerBusy:                          "ConsumerBusy",
	pulsar.NotConnectedError:                     "NotConnected",
	pulsar.AlreadyClosedError:                    "AlreadyClosed",
	pulsar.InvalidMessage:                        "InvalidMessage",
	pulsar.TooManyLookupRequestException:         "TooManyLookupRequestException",
	pulsar.InvalidTopicName:                      "InvalidTopicName",
	pulsar.InvalidURL:                            "InvalidUrl",
	pulsar.ServiceUnitNotReady:                   "ServiceUnitNotReady",
	pulsar.OperationNotSupported:                 "OperationNotSupported",
	pulsar.ProducerBlockedQuotaExceededError:     "ProducerBlockedQuotaExceededError",
	pulsar.ProducerBlockedQuotaExceededException: "ProducerBlockedQuotaExceededException",
	pulsar.ProducerQueueIsFull:                   "ProducerQueueIsFull",
	pulsar.MessageTooBig:                         "MessageTooBig",
	pulsar.TopicNotFound:                         "TopicNotFound",
	pulsar.SubscriptionNotFound:                  "SubscriptionNotFound",
	pulsar.ConsumerNotFound:                      "ConsumerNotFound",
	pulsar.UnsupportedVersionError:               "UnsupportedVersionError",
	pulsar.TopicTerminated:                       "TopicTerminated",
	pulsar.CryptoError:                           "CryptoError",
	pulsar.ConsumerClosed:                        "AlreadyClosed",
	pulsar.ProducerClosed:                        "AlreadyClosed",
	pulsar.SchemaFailure:                         "IncompatibleSchema",
	pulsar.ClientMemoryBufferIsFull:              "MemoryBufferIsFull",
	pulsar.ProducerFenced:                        "ProducerFenced",
	pulsar.InvalidStatus:                         "InvalidTxnStatus",
	pulsar.TransactionNoFoundError:               "TransactionNotFound",
}

// describe names an error: the ServerError of a broker's refusal, else the client's own result
// under the name it has in the other official clients, else UnknownError; and its text.
func describe(err error) (name, text string) {
	text = err.Error()
	var arguments *badArguments
	if errors.As(err, &arguments) {
		return "BadArguments", text
	}
	if bareName.MatchString(text) {
		return text, text
	}
	if found := serverError.FindStringSubmatch(text); found != nil {
		return found[1], text
	}
	// Before the time that an operation has: a broker that is not there uses all of it up.
	if strings.Contains(text, "connection error") || strings.Contains(text, "connection refused") {
		return "ConnectError", text
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return "Timeout", text
	}
	var own *pulsar.Error
	if errors.As(err, &own) {
		if name, ok := resultNames[own.Result()]; ok {
			return name, text
		}
	}
	if strings.Contains(text, "non-open transaction") {
		return "InvalidTxnStatus", text
	}
	if strings.Contains(text, "cumulative ack is not allowed") {
		return "CumulativeAcknowledgementNotAllowedError", text
	}
	return "UnknownError", text
}

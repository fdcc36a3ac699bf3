import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.Message;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.MessageIdAdv;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.TopicMessageId;
import org.apache.pulsar.client.api.TypedMessageBuilder;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.shade.com.fasterxml.jackson.core.type.TypeReference;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.node.ObjectNode;

/** Messages and their ids: out, in, and back to the broker. */
final class Messages {
    private static final TypeReference<Map<String, String>> STRINGS = new TypeReference<>() {};

    private Messages() {}

    static CompletableFuture<Object> send(Main program, JsonNode asked) {
        try {
            @SuppressWarnings("unchecked")
            Producer<Object> producer = (Producer<Object>) program.object(asked);
            return message(program, producer, asked.get("args"))
                    .sendAsync()
                    .thenApply(id -> told(program, id));
        } catch (Exception error) {
            return CompletableFuture.failedFuture(error);
        }
    }

    private static TypedMessageBuilder<Object> message(
            Main program, Producer<Object> producer, JsonNode args) throws Exception {
        JsonNode schema = args.get("schema");
        TypedMessageBuilder<Object> builder;
        if (args.has("transaction")) {
            long handle = args.get("transaction").longValue();
            builder = producer.newMessage((Transaction) program.object(handle));
        } else if (args.has("another_schema")) {
            builder = producer.newMessage(Schemas.of(schema));
        } else {
            builder = producer.newMessage();
        }
        builder.value(Values.made(schema, args.get("value")));
        for (Map.Entry<String, JsonNode> each : args.properties()) {
            JsonNode value = each.getValue();
            switch (each.getKey()) {
                case "value", "schema", "another_schema", "transaction" -> {}
                case "key" -> builder.key(value.textValue());
                case "key_bytes" -> builder.keyBytes(Values.bytes(value));
                case "ordering_key" -> builder.orderingKey(Values.bytes(value));
                case "properties" -> builder.properties(Main.MAPPER.convertValue(value, STRINGS));
                case "event_time" -> builder.eventTime(value.longValue());
                case "sequence_id" -> builder.sequenceId(value.longValue());
                case "deliver_at" -> builder.deliverAt(value.longValue());
                default -> throw new IllegalArgumentException("no message has " + each.getKey());
            }
        }
        return builder;
    }

    static Object receive(Main program, JsonNode asked) throws Exception {
        int timeout = asked.get("args").get("timeout_ms").intValue();
        Consumer<?> consumer = (Consumer<?>) program.object(asked);
        return told(program, consumer.receive(timeout, TimeUnit.MILLISECONDS));
    }

    static Object readNext(Main program, JsonNode asked) throws Exception {
        int timeout = asked.get("args").get("timeout_ms").intValue();
        Reader<?> reader = (Reader<?>) program.object(asked);
        return told(program, reader.readNext(timeout, TimeUnit.MILLISECONDS));
    }

    /** All that a message says of itself; why its value cannot be told, if so. */
    private static Object told(Main program, Message<?> message) throws TimeoutException {
        if (message == null) {
            throw new TimeoutException("no message came");
        }
        ObjectNode line = Main.MAPPER.createObjectNode();
        line.put("kept", program.keep(message));
        line.set("id", (JsonNode) told(program, message.getMessageId()));
        line.set("data", Values.told(message.getData()));
        try {
            line.set("value", Values.told(message.getValue()));
        } catch (RuntimeException error) {
            line.put("undecodable", error + ", caused by " + error.getCause());
        }
        line.put("key", message.hasKey() ? message.getKey() : null);
        line.set("key_bytes", Values.told(message.hasKey() ? message.getKeyBytes() : null));
        line.set("ordering_key", Values.told(message.getOrderingKey()));
        line.set("properties", Main.MAPPER.valueToTree(message.getProperties()));
        line.put("topic", message.getTopicName());
        line.put("producer_name", message.getProducerName());
        line.put("sequence_id", message.getSequenceId());
        line.put("publish_time", message.getPublishTime());
        line.put("event_time", message.getEventTime());
        line.put("redelivery_count", message.getRedeliveryCount());
        line.set("schema_version", Values.told(message.getSchemaVersion()));
        line.set("schema_id", Values.told(message.getSchemaId().orElse(null)));
        line.put("broker_publish_time", message.getBrokerPublishTime().orElse(null));
        line.put("index", message.getIndex().orElse(null));
        line.put("encrypted", message.getEncryptionCtx().isPresent());
        return line;
    }

    private static Object told(Main program, MessageId id) {
        ObjectNode line = Main.MAPPER.createObjectNode();
        line.put("kept", program.keep(id));
        line.set("bytes", Values.told(id.toByteArray()));
        if (id instanceof MessageIdAdv parts) {
            line.put("ledger_id", parts.getLedgerId());
            line.put("entry_id", parts.getEntryId());
            line.put("partition", parts.getPartitionIndex());
            line.put("batch_index", parts.getBatchIndex());
            MessageIdAdv first = parts.getFirstChunkMessageId();
            line.put("first_chunk_entry_id", first == null ? null : first.getEntryId());
        }
        line.put("topic", id instanceof TopicMessageId of ? of.getOwnerTopic() : null);
        return line;
    }

    /** The id that a request names: "earliest", "latest", its number, or its bytes. */
    static MessageId id(Main program, JsonNode name) throws IOException {
        if (name.isTextual()) {
            return name.textValue().equals("earliest") ? MessageId.earliest : MessageId.latest;
        }
        if (name.isObject()) {
            return MessageId.fromByteArray(Values.bytes(name));
        }
        Object found = program.kept(name);
        return found instanceof Message<?> message ? message.getMessageId() : (MessageId) found;
    }

    static Object acknowledge(Main program, JsonNode asked) throws Exception {
        JsonNode args = asked.get("args");
        Consumer<?> consumer = (Consumer<?>) program.object(asked);
        if (args.path("cumulative").asBoolean()) {
            consumer.acknowledgeCumulative(id(program, args.get("messages").get(0)));
            return null;
        }
        List<MessageId> ids = new ArrayList<>();
        for (JsonNode each : args.get("messages")) {
            ids.add(id(program, each));
        }
        if (ids.size() == 1) {
            consumer.acknowledge(ids.get(0));
        } else {
            consumer.acknowledge(ids);
        }
        return null;
    }

    static Object negativeAcknowledge(Main program, JsonNode asked) {
        Object message = program.kept(asked.get("args").get("message"));
        ((Consumer<?>) program.object(asked)).negativeAcknowledge((Message<?>) message);
        return null;
    }

    static Object reconsumeLater(Main program, JsonNode asked) throws PulsarClientException {
        JsonNode args = asked.get("args");
        Message<?> message = (Message<?>) program.kept(args.get("message"));
        ((Consumer<?>) program.object(asked))
                .reconsumeLater(message, args.get("delay_ms").longValue(), TimeUnit.MILLISECONDS);
        return null;
    }

    static Object seek(Main program, JsonNode asked) throws Exception {
        JsonNode args = asked.get("args");
        Object object = program.object(asked);
        CompletableFuture<Void> done;
        if (args.has("time_ms")) {
            long time = args.get("time_ms").longValue();
            done =
                    object instanceof Consumer<?> consumer
                            ? consumer.seekAsync(time)
                            : ((Reader<?>) object).seekAsync(time);
        } else {
            MessageId id = id(program, args.get("id"));
            done =
                    object instanceof Consumer<?> consumer
                            ? consumer.seekAsync(id)
                            : ((Reader<?>) object).seekAsync(id);
        }
        done.get();
        return null;
    }

    static Object lastIds(Main program, JsonNode asked)
            throws PulsarClientException, ExecutionException, InterruptedException {
        Object object = program.object(asked);
        List<TopicMessageId> ids =
                object instanceof Consumer<?> consumer
                        ? consumer.getLastMessageIds()
                        : ((Reader<?>) object).getLastMessageIdsAsync().get();
        List<Object> all = new ArrayList<>();
        for (TopicMessageId each : ids) {
            all.add(told(program, each));
        }
        return all;
    }

    static Object entries(Main program, JsonNode asked) {
        TableView<?> view = (TableView<?>) program.object(asked);
        ObjectNode all = Main.MAPPER.createObjectNode();
        view.forEach((key, value) -> all.set(key, Values.told(value)));
        return all;
    }
}

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import io.netty.buffer.ByteBufUtil;
import io.netty.buffer.Unpooled;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executors;
import java.util.concurrent.ScheduledExecutorService;
import org.apache.bookkeeper.client.MemoryLedgers;
import org.apache.bookkeeper.client.api.LedgerMetadata;
import org.apache.bookkeeper.meta.LedgerMetadataSerDe;
import org.apache.bookkeeper.mledger.Entry;
import org.apache.bookkeeper.mledger.Position;
import org.apache.bookkeeper.mledger.PositionFactory;
import org.apache.pulsar.broker.ServiceConfiguration;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.RawMessage;
import org.apache.pulsar.client.api.RawReader;
import org.apache.pulsar.client.impl.MessageIdImpl;
import org.apache.pulsar.client.impl.RawBatchConverter;
import org.apache.pulsar.client.impl.RawMessageImpl;
import org.apache.pulsar.common.api.proto.MessageIdData;
import org.apache.pulsar.common.api.proto.MessageMetadata;
import org.apache.pulsar.common.api.proto.SingleMessageMetadata;
import org.apache.pulsar.common.compression.CompressionCodecProvider;
import org.apache.pulsar.common.protocol.Commands;
import org.apache.pulsar.compaction.PublishingOrderCompactor;
import org.apache.pulsar.compaction.PulsarTopicCompactionService;
import org.apache.pulsar.compaction.TopicCompactionService.MessagePosition;

/**
 * Compacted ledgers, by the classes with which Apache Pulsar writes and reads them, over ledgers in
 * memory.
 */
final class CompactedLedgers {
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;
    private static final LedgerMetadataSerDe METADATA = new LedgerMetadataSerDe();
    private static final int ENTRIES_PER_READ = 3;

    private CompactedLedgers() {}

    // --- reading ----------------------------------------------------------------------------

    /**
     * What a broker of Apache Pulsar reads: {"open": LEDGER_ID, "metadata": BASE64 of its node,
     * "entries": [BASE64, ...], "horizon": [LEDGER_ID, ENTRY_ID], "since": PUBLISH_TIME}.
     */
    static ObjectNode open(JsonNode asked) throws Exception {
        long id = asked.get("open").longValue();
        LedgerMetadata metadata =
                METADATA.parseConfig(asked.get("metadata").binaryValue(), id, Optional.empty());
        MemoryLedgers ledgers = new MemoryLedgers(id + 1, "bookie:1");
        List<byte[]> entries = new ArrayList<>();
        for (JsonNode each : asked.get("entries")) {
            entries.add(each.binaryValue());
        }
        ledgers.add(id, metadata, entries);
        PulsarTopicCompactionService service =
                new PulsarTopicCompactionService("t", ledgers, () -> null);
        service.getCompactedTopic().newCompactedLedger(position(asked.get("horizon")), id).get();
        ObjectNode answer = NODES.objectNode();
        answer.set("metadata", told(metadata));
        answer.set("records", records(entries));
        answer.set("entries", view(service));
        answer.set("lastPosition", told(service.getLastCompactedPosition().get()));
        answer.set("lastMessage", told(service.getLastMessagePosition().get()));
        Position since = service.findEntryByPublishTime(asked.get("since").longValue()).get();
        answer.set("since", told(since));
        return answer;
    }

    private static ArrayNode view(PulsarTopicCompactionService service) throws Exception {
        ArrayNode found = NODES.arrayNode();
        Position next = PositionFactory.EARLIEST;
        while (true) {
            List<Entry> read = service.readCompactedEntries(next, ENTRIES_PER_READ).get();
            if (read.isEmpty()) {
                return found;
            }
            for (Entry each : read) {
                ObjectNode entry = messages(each.getDataBuffer());
                entry.set("position", told(each.getPosition()));
                found.add(entry);
                next = each.getPosition().getNext();
                each.release();
            }
        }
    }

    /** The metadata and the messages of an entry, as a client takes it apart. */
    private static ObjectNode messages(ByteBuf headersAndPayload) throws Exception {
        ObjectNode entry = NODES.objectNode();
        ByteBuf buffer = headersAndPayload.duplicate();
        Commands.skipBrokerEntryMetadataIfExist(buffer);
        if (Commands.hasChecksum(buffer)) {
            int stored = Commands.readChecksum(buffer);
            entry.put("checksumIsRight", stored == checksum(buffer));
        }
        MessageMetadata metadata = Commands.parseMessageMetadata(buffer);
        entry.set("metadata", ProtobufRecords.told(metadata));
        ByteBuf payload =
                CompressionCodecProvider.getCompressionCodec(metadata.getCompression())
                        .decode(
                                buffer,
                                metadata.hasUncompressedSize()
                                        ? metadata.getUncompressedSize()
                                        : buffer.readableBytes());
        ArrayNode messages = entry.putArray("messages");
        if (!metadata.hasNumMessagesInBatch()) {
            messages.add(
                    message(
                            metadata.hasPartitionKey() ? metadata.getPartitionKey() : null,
                            false,
                            payload));
            return entry;
        }
        int count = metadata.getNumMessagesInBatch();
        for (int i = 0; i < count; i++) {
            SingleMessageMetadata single = new SingleMessageMetadata();
            ByteBuf value =
                    Commands.deSerializeSingleMessageInBatch(payload, single, i, count);
            messages.add(
                    message(
                            single.hasPartitionKey() ? single.getPartitionKey() : null,
                            single.isCompactedOut(),
                            value));
        }
        entry.put("left", payload.readableBytes());
        return entry;
    }

    private static int checksum(ByteBuf buffer) {
        return com.scurrilous.circe.checksum.Crc32cIntChecksum.computeChecksum(buffer);
    }

    private static ObjectNode message(String key, boolean isCompactedOut, ByteBuf value) {
        ObjectNode message = NODES.objectNode();
        message.put("key", key);
        message.put("isCompactedOut", isCompactedOut);
        message.put("value", ByteBufUtil.getBytes(value));
        return message;
    }

    /** The records as RawMessageImpl reads them, and what it writes of each. */
    private static ArrayNode records(List<byte[]> entries) throws Exception {
        ArrayNode found = NODES.arrayNode();
        for (byte[] each : entries) {
            try (RawMessage message = RawMessageImpl.deserializeFrom(Unpooled.copiedBuffer(each))) {
                ObjectNode record = found.addObject();
                record.set("id", ProtobufRecords.told(message.getMessageIdData()));
                record.put("again", ByteBufUtil.getBytes(message.serialize()));
                if (RawBatchConverter.isReadableBatch(message)) {
                    ArrayNode kept = record.putArray("kept");
                    RawBatchConverter.extractIdsAndKeysAndSize(message)
                            .forEach(one -> kept.add(one.getLeft() + " " + one.getMiddle()));
                }
            }
        }
        return found;
    }

    private static ObjectNode told(LedgerMetadata metadata) {
        ObjectNode fields = NODES.objectNode();
        fields.put("state", metadata.getState().name());
        fields.put("lastEntryId", metadata.getLastEntryId());
        fields.put("length", metadata.getLength());
        fields.put("digestType", metadata.getDigestType().name());
        fields.put("password", metadata.getPassword());
        ObjectNode custom = fields.putObject("customMetadata");
        metadata.getCustomMetadata().forEach(custom::put);
        byte[] compactedTo = metadata.getCustomMetadata().get("pulsar/compactedTo");
        if (compactedTo != null) {
            try {
                fields.put("compactedTo", MessageId.fromByteArray(compactedTo).toString());
            } catch (java.io.IOException error) {
                throw new IllegalArgumentException(error);
            }
        }
        return fields;
    }

    private static ArrayNode told(Position position) {
        return position == null
                ? null
                : NODES.arrayNode().add(position.getLedgerId()).add(position.getEntryId());
    }

    private static ArrayNode told(MessagePosition message) {
        return NODES.arrayNode()
                .add(message.ledgerId())
                .add(message.entryId())
                .add(message.batchIndex())
                .add(message.publishTime());
    }

    private static Position position(JsonNode given) {
        return PositionFactory.create(given.get(0).longValue(), given.get(1).longValue());
    }

    // --- writing ----------------------------------------------------------------------------

    /**
     * What Apache Pulsar's compactor makes of a log: {"compact": TOPIC, "partition": NUMBER,
     * "ledgerId": of the compacted ledger, "bookie": its bookie, "retainsKeyless": BOOLEAN, "log":
     * [{"position": [LEDGER_ID, ENTRY_ID], "entry": BASE64}, ...]}.
     */
    static ObjectNode compact(JsonNode asked) throws Exception {
        long first = asked.get("ledgerId").longValue();
        MemoryLedgers ledgers = new MemoryLedgers(first, asked.get("bookie").textValue());
        ServiceConfiguration conf = new ServiceConfiguration();
        conf.setManagedLedgerDefaultEnsembleSize(1);
        conf.setManagedLedgerDefaultWriteQuorum(1);
        conf.setManagedLedgerDefaultAckQuorum(1);
        conf.setTopicCompactionRetainNullKey(asked.get("retainsKeyless").booleanValue());
        Log log = new Log(asked);
        ScheduledExecutorService scheduler = Executors.newSingleThreadScheduledExecutor();
        try {
            long id = new Compactor(conf, ledgers, scheduler).run(log).get();
            ObjectNode answer = NODES.objectNode();
            answer.put("ledgerId", id);
            answer.put("metadata", METADATA.serialize(ledgers.metadataOf(id)));
            ArrayNode entries = answer.putArray("entries");
            ledgers.entriesOf(id).forEach(entries::add);
            answer.set("properties", Records.told(log.properties));
            answer.set(
                    "horizon",
                    NODES.arrayNode()
                            .add(log.acknowledged.getLedgerId())
                            .add(log.acknowledged.getEntryId()));
            return answer;
        } finally {
            scheduler.shutdownNow();
        }
    }

    private static final class Compactor extends PublishingOrderCompactor {
        Compactor(
                ServiceConfiguration conf,
                MemoryLedgers ledgers,
                ScheduledExecutorService scheduler) {
            super(conf, null, ledgers, scheduler);
        }

        CompletableFuture<Long> run(RawReader reader) {
            return doCompaction(reader, bk);
        }
    }

    /** A log in memory, and what is acknowledged of it. */
    private static final class Log implements RawReader {
        private final List<MessageIdImpl> ids = new ArrayList<>();
        private final List<byte[]> entries = new ArrayList<>();
        private final String topic;
        private int next;
        private MessageIdImpl acknowledged;
        private Map<String, Long> properties;

        Log(JsonNode asked) throws Exception {
            topic = asked.get("compact").textValue();
            int partition = asked.get("partition").intValue();
            for (JsonNode each : asked.get("log")) {
                JsonNode at = each.get("position");
                ids.add(
                        new MessageIdImpl(
                                at.get(0).longValue(), at.get(1).longValue(), partition));
                entries.add(each.get("entry").binaryValue());
            }
        }

        @Override
        public String getTopic() {
            return topic;
        }

        @Override
        public CompletableFuture<Boolean> hasMessageAvailableAsync() {
            return CompletableFuture.completedFuture(next < ids.size());
        }

        @Override
        public CompletableFuture<Void> seekAsync(MessageId to) {
            next = 0;
            while (ids.get(next).compareTo(to) < 0) {
                next++;
            }
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public CompletableFuture<RawMessage> readNextAsync() {
            if (next == ids.size()) {
                return new CompletableFuture<>();
            }
            MessageIdImpl at = ids.get(next);
            MessageIdData id =
                    new MessageIdData()
                            .setLedgerId(at.getLedgerId())
                            .setEntryId(at.getEntryId())
                            .setPartition(at.getPartitionIndex());
            ByteBuf entry = Unpooled.copiedBuffer(entries.get(next));
            next++;
            return CompletableFuture.completedFuture(new RawMessageImpl(id, entry));
        }

        @Override
        public CompletableFuture<Void> acknowledgeCumulativeAsync(
                MessageId to, Map<String, Long> given) {
            acknowledged = (MessageIdImpl) to;
            properties = given;
            return CompletableFuture.completedFuture(null);
        }

        @Override
        public CompletableFuture<MessageId> getLastMessageIdAsync() {
            return CompletableFuture.completedFuture(ids.get(ids.size() - 1));
        }

        @Override
        public CompletableFuture<Void> closeAsync() {
            return CompletableFuture.completedFuture(null);
        }
    }
}

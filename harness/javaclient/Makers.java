import java.lang.reflect.Field;
import java.nio.charset.StandardCharsets;
import java.security.KeyPair;
import java.security.KeyPairGenerator;
import java.security.spec.ECGenParameterSpec;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.TimeUnit;
import java.util.regex.Pattern;
import org.apache.pulsar.client.api.BatcherBuilder;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.ConsumerBuilder;
import org.apache.pulsar.client.api.DeadLetterPolicy;
import org.apache.pulsar.client.api.KeySharedPolicy;
import org.apache.pulsar.client.api.Producer;
import org.apache.pulsar.client.api.ProducerBuilder;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.PulsarClientException;
import org.apache.pulsar.client.api.PulsarClientSharedResources;
import org.apache.pulsar.client.api.Range;
import org.apache.pulsar.client.api.Reader;
import org.apache.pulsar.client.api.ReaderBuilder;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.TableView;
import org.apache.pulsar.client.api.TableViewBuilder;
import org.apache.pulsar.client.impl.ProducerImpl;
import org.apache.pulsar.client.impl.TableViewConfigurationData;
import org.apache.pulsar.client.impl.conf.ClientConfigurationData;
import org.apache.pulsar.client.impl.conf.ConsumerConfigurationData;
import org.apache.pulsar.client.impl.conf.ProducerConfigurationData;
import org.apache.pulsar.client.impl.conf.ReaderConfigurationData;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * Makes clients and their objects. "conf" has fields of the client's configuration classes under
 * their Java names (the builders' loadConf); what is not of plain values stands beside it.
 */
final class Makers {
    // A client that has threads of its own takes two seconds to close.
    private static final PulsarClientSharedResources THREADS =
            PulsarClientSharedResources.builder().build();

    private Makers() {}

    static Object client(Main program, JsonNode asked) throws PulsarClientException {
        Map<String, Object> conf = conf(asked, ClientConfigurationData.class);
        program.made(asked, PulsarClient.builder().loadConf(conf).sharedResources(THREADS).build());
        return null;
    }

    static Object producer(Main program, JsonNode asked) throws PulsarClientException {
        JsonNode args = asked.get("args");
        Schema<Object> schema = Schemas.of(args.get("schema"));
        ProducerBuilder<Object> builder =
                clientOf(program, asked)
                        .newProducer(schema)
                        .loadConf(conf(asked, ProducerConfigurationData.class));
        if (args.path("key_based_batches").asBoolean()) {
            builder.batcherBuilder(BatcherBuilder.KEY_BASED);
        }
        if (args.has("encrypt")) {
            builder.defaultCryptoKeyReader(data(args.get("encrypt"))).addEncryptionKey("key");
        }
        Producer<Object> made = builder.create();
        program.made(asked, made);
        return made.getProducerName();
    }

    static Object consumer(Main program, JsonNode asked) throws PulsarClientException {
        JsonNode args = asked.get("args");
        ConsumerBuilder<Object> builder =
                clientOf(program, asked)
                        .newConsumer(Schemas.of(args.get("schema")))
                        .loadConf(conf(asked, ConsumerConfigurationData.class));
        if (args.has("pattern")) {
            builder.topicsPattern(Pattern.compile(args.get("pattern").textValue()));
        }
        if (args.has("dead_letters")) {
            builder.deadLetterPolicy(deadLetters(args.get("dead_letters")));
        }
        if (args.has("sticky_ranges")) {
            List<Range> ranges = new ArrayList<>();
            for (JsonNode each : args.get("sticky_ranges")) {
                ranges.add(Range.of(each.get(0).intValue(), each.get(1).intValue()));
            }
            builder.keySharedPolicy(KeySharedPolicy.stickyHashRange().ranges(ranges));
        }
        if (args.has("decrypt")) {
            builder.defaultCryptoKeyReader(data(args.get("decrypt")));
        }
        Consumer<Object> made = builder.subscribe();
        program.made(asked, made);
        return made.getConsumerName();
    }

    private static DeadLetterPolicy deadLetters(JsonNode args) {
        DeadLetterPolicy.DeadLetterPolicyBuilder builder = DeadLetterPolicy.builder();
        builder.maxRedeliverCount(args.get("max_redeliver_count").intValue());
        builder.deadLetterTopic(args.path("topic").textValue());
        builder.retryLetterTopic(args.path("retry_topic").textValue());
        builder.initialSubscriptionName(args.path("initial_subscription").textValue());
        return builder.build();
    }

    static Object reader(Main program, JsonNode asked) throws Exception {
        JsonNode args = asked.get("args");
        ReaderBuilder<Object> builder =
                clientOf(program, asked)
                        .newReader(Schemas.of(args.get("schema")))
                        .loadConf(conf(asked, ReaderConfigurationData.class));
        if (args.has("rollback_s")) {
            long seconds = args.get("rollback_s").longValue();
            builder.startMessageFromRollbackDuration(seconds, TimeUnit.SECONDS);
        } else {
            builder.startMessageId(Messages.id(program, args.get("start")));
        }
        if (args.has("decrypt")) {
            builder.defaultCryptoKeyReader(data(args.get("decrypt")));
        }
        Reader<Object> made = builder.create();
        program.made(asked, made);
        return null;
    }

    static Object tableView(Main program, JsonNode asked) throws PulsarClientException {
        TableViewBuilder<Object> builder =
                clientOf(program, asked)
                        .newTableView(Schemas.of(asked.get("args").get("schema")))
                        .loadConf(conf(asked, TableViewConfigurationData.class));
        TableView<Object> made = builder.create();
        program.made(asked, made);
        return null;
    }

    static Object partitions(Main program, JsonNode asked)
            throws ExecutionException, InterruptedException {
        String topic = asked.get("args").get("topic").textValue();
        return clientOf(program, asked).getPartitionsForTopic(topic, true).get();
    }

    /** The epoch that the broker gave to a producer; its client tells nobody. */
    static Object topicEpoch(Main program, JsonNode asked) throws ReflectiveOperationException {
        Field field = ProducerImpl.class.getDeclaredField("topicEpoch");
        field.setAccessible(true);
        return ((Optional<?>) field.get(program.object(asked))).orElse(null);
    }

    /** A pair of keys for encryption, as the client's key reader takes them. */
    static Object keys(Main program, JsonNode asked) throws Exception {
        // Quicker to find than primes for RSA.
        KeyPairGenerator generator = KeyPairGenerator.getInstance("EC");
        generator.initialize(new ECGenParameterSpec("secp256r1"));
        KeyPair pair = generator.generateKeyPair();
        ObjectNode keys = Main.MAPPER.createObjectNode();
        keys.put("public", pem("PUBLIC KEY", pair.getPublic().getEncoded()));
        keys.put("private", pem("PRIVATE KEY", pair.getPrivate().getEncoded()));
        return keys;
    }

    private static String pem(String kind, byte[] value) {
        String body = Base64.getMimeEncoder(64, new byte[] {'\n'}).encodeToString(value);
        return "-----BEGIN " + kind + "-----\n" + body + "\n-----END " + kind + "-----\n";
    }

    private static String data(JsonNode pem) {
        byte[] text = pem.textValue().getBytes(StandardCharsets.US_ASCII);
        return "data:application/x-pem-file;base64," + Base64.getEncoder().encodeToString(text);
    }

    private static PulsarClient clientOf(Main program, JsonNode asked) {
        return (PulsarClient) program.object(asked);
    }

    /** The fields of a configuration class; one that it does not have is an error. */
    private static Map<String, Object> conf(JsonNode asked, Class<?> type) {
        Map<String, Object> found = new HashMap<>();
        for (Map.Entry<String, JsonNode> each : asked.get("args").get("conf").properties()) {
            try {
                type.getDeclaredField(each.getKey());
            } catch (NoSuchFieldException error) {
                throw new IllegalArgumentException(
                        type.getSimpleName() + " has no " + each.getKey(), error);
            }
            found.put(each.getKey(), Main.MAPPER.convertValue(each.getValue(), Object.class));
        }
        return found;
    }
}

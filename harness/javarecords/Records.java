import com.fasterxml.jackson.databind.JavaType;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.Constructor;
import java.lang.reflect.Field;
import java.lang.reflect.Modifier;
import java.lang.reflect.ParameterizedType;
import java.lang.reflect.Type;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.Collection;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.events.PulsarEvent;
import org.apache.pulsar.common.partition.PartitionedTopicMetadata;
import org.apache.pulsar.common.policies.data.ClusterData;
import org.apache.pulsar.common.policies.data.FailureDomainImpl;
import org.apache.pulsar.common.policies.data.LocalPolicies;
import org.apache.pulsar.common.policies.data.Policies;
import org.apache.pulsar.common.policies.data.ResourceGroup;
import org.apache.pulsar.common.policies.data.TenantInfo;
import org.apache.pulsar.common.util.ObjectMapperFactory;

/**
 * Reads and writes records with Apache Pulsar's own classes, as its brokers do: the JSON in the
 * metadata store, the Avro of topic policies, and protobuf (ProtobufRecords). Requests and answers
 * are lines of JSON.
 *
 * <p>{"read": KIND, "value": BASE64} is answered by {"fields": ...}: the Java fields of the object
 * that Apache Pulsar makes of the bytes. {"write": KIND} makes an object with a value in every
 * field, those of "but" where it names a field ({"a.b": VALUE}), and is answered by its fields and
 * the bytes that Apache Pulsar makes of it. "open" and "compact" are of CompactedLedgers. What
 * cannot be done is answered by {"error": TEXT}.
 */
public final class Records {
    private static final Map<String, Class<?>> JSON_KINDS =
            Map.of(
                    "ClusterData", ClusterData.class,
                    "FailureDomain", FailureDomainImpl.class,
                    "LocalPolicies", LocalPolicies.class,
                    "PartitionedTopicMetadata", PartitionedTopicMetadata.class,
                    "Policies", Policies.class,
                    "ResourceGroup", ResourceGroup.class,
                    "TenantInfo", TenantInfo.class);
    private static final Schema<PulsarEvent> EVENT = Schema.AVRO(PulsarEvent.class);
    static final ObjectMapper MAPPER = ObjectMapperFactory.getMapper().getObjectMapper();
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

    public static void main(String[] args) throws Exception {
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        BufferedReader in =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            ObjectNode answer = NODES.objectNode();
            try {
                JsonNode asked = MAPPER.readTree(line);
                if (asked.has("open")) {
                    answer = CompactedLedgers.open(asked);
                } else if (asked.has("compact")) {
                    answer = CompactedLedgers.compact(asked);
                } else if (ProtobufRecords.knows(asked)) {
                    answer = ProtobufRecords.answer(asked);
                } else if (asked.has("read")) {
                    byte[] value = asked.get("value").binaryValue();
                    answer.set("fields", told(decode(asked.get("read").textValue(), value)));
                } else {
                    String kind = asked.get("write").textValue();
                    Object made = new Sample().ofClass(classOf(kind));
                    for (Map.Entry<String, JsonNode> each : asked.path("but").properties()) {
                        set(made, each.getKey(), each.getValue());
                    }
                    answer.set("fields", told(made));
                    answer.put("value", Base64.getEncoder().encodeToString(encode(kind, made)));
                }
            } catch (Exception error) {
                Throwable cause = error.getCause() == null ? error : error.getCause();
                answer.removeAll();
                answer.put("error", cause.toString());
            }
            out.println(answer);
        }
    }

    private static Class<?> classOf(String kind) {
        if (kind.equals("PulsarEvent")) {
            return PulsarEvent.class;
        }
        Class<?> found = JSON_KINDS.get(kind);
        if (found == null) {
            throw new IllegalArgumentException("there is no kind " + kind);
        }
        return found;
    }

    private static Object decode(String kind, byte[] value) throws Exception {
        if (classOf(kind) == PulsarEvent.class) {
            return EVENT.decode(value);
        }
        return MAPPER.readValue(value, classOf(kind));
    }

    private static byte[] encode(String kind, Object value) throws Exception {
        if (value instanceof PulsarEvent) {
            return EVENT.encode((PulsarEvent) value);
        }
        return MAPPER.writeValueAsBytes(value);
    }

    /** What an object says, by its Java fields; the elements of a set are sorted. */
    static JsonNode told(Object value) throws Exception {
        if (value == null || value instanceof Boolean || value instanceof Number) {
            return MAPPER.valueToTree(value);
        }
        if (value instanceof byte[]) {
            return NODES.textNode(Base64.getEncoder().encodeToString((byte[]) value));
        }
        if (value instanceof String || value instanceof Enum) {
            return NODES.textNode(name(value));
        }
        if (value instanceof Collection) {
            Collection<?> elements = (Collection<?>) value;
            ArrayNode list = NODES.arrayNode();
            if (value instanceof Set) {
                Set<String> names = new TreeSet<>();
                elements.forEach(each -> names.add(name(each)));
                elements = names;
            }
            for (Object each : elements) {
                list.add(told(each));
            }
            return list;
        }
        ObjectNode object = NODES.objectNode();
        if (value instanceof Map) {
            for (Map.Entry<?, ?> each : ((Map<?, ?>) value).entrySet()) {
                object.set(name(each.getKey()), told(each.getValue()));
            }
            return object;
        }
        for (Field field : fields(value.getClass())) {
            object.set(field.getName(), told(field.get(value)));
        }
        return object;
    }

    private static String name(Object value) {
        return value instanceof Enum ? ((Enum<?>) value).name() : (String) value;
    }

    private static List<Field> fields(Class<?> type) {
        List<Field> found = new ArrayList<>();
        for (Class<?> each = type; each != Object.class; each = each.getSuperclass()) {
            for (Field field : each.getDeclaredFields()) {
                if (!Modifier.isStatic(field.getModifiers())) {
                    field.setAccessible(true);
                    found.add(field);
                }
            }
        }
        return found;
    }

    private static void set(Object object, String path, JsonNode value) throws Exception {
        Object at = object;
        List<String> names = List.of(path.split("\\."));
        for (String name : names.subList(0, names.size() - 1)) {
            at = field(at, name).get(at);
        }
        Field last = field(at, names.get(names.size() - 1));
        JavaType type = MAPPER.constructType(last.getGenericType());
        last.set(at, MAPPER.readerFor(type).readValue(value));
    }

    private static Field field(Object object, String name) throws NoSuchFieldException {
        for (Field each : fields(object.getClass())) {
            if (each.getName().equals(name)) {
                return each;
            }
        }
        throw new NoSuchFieldException(object.getClass() + " " + name);
    }

    /** Makes objects with a value in every field, no two numbers alike. */
    static final class Sample {
        // Downwards, as an ensemble is declared before its quorums.
        private int number = 1_000;

        private Object of(Type type, Object before) throws Exception {
            if (!(type instanceof ParameterizedType)) {
                Class<?> kind = (Class<?>) type;
                return ofClass(kind.isInterface() && before != null ? before.getClass() : kind);
            }
            Type[] of = ((ParameterizedType) type).getActualTypeArguments();
            Class<?> raw = (Class<?>) ((ParameterizedType) type).getRawType();
            if (Map.class.isAssignableFrom(raw)) {
                Map<Object, Object> map = new LinkedHashMap<>();
                map.put(of(of[0], null), of(of[1], null));
                return map;
            }
            Collection<Object> elements =
                    raw == List.class ? new ArrayList<>() : new LinkedHashSet<>();
            elements.add(of(of[0], null));
            return elements;
        }

        Object ofClass(Class<?> type) throws Exception {
            number--;
            if (type == int.class || type == Integer.class) {
                return number;
            }
            if (type == long.class || type == Long.class) {
                return (long) number;
            }
            if (type == double.class || type == Double.class) {
                return number + 0.5;
            }
            if (type == boolean.class || type == Boolean.class) {
                return true;
            }
            if (type == String.class) {
                return "text " + number;
            }
            if (type == byte[].class) {
                return ("bytes " + number).getBytes(StandardCharsets.UTF_8);
            }
            if (type.isEnum()) {
                Object[] constants = type.getEnumConstants();
                return constants[constants.length - 1];
            }
            Object made = empty(concrete(type));
            for (Field field : fields(made.getClass())) {
                field.set(made, of(field.getGenericType(), field.get(made)));
            }
            return made;
        }

        private static Class<?> concrete(Class<?> type) throws ClassNotFoundException {
            if (!type.isInterface()) {
                return type;
            }
            String home = type.getPackageName() + ".";
            try {
                return Class.forName(home + type.getSimpleName() + "Impl");
            } catch (ClassNotFoundException error) {
                return Class.forName(home + "impl." + type.getSimpleName() + "Impl");
            }
        }

        private static Object empty(Class<?> type) throws Exception {
            for (Constructor<?> each : type.getDeclaredConstructors()) {
                if (each.getParameterCount() == 0) {
                    each.setAccessible(true);
                    return each.newInstance();
                }
            }
            return MAPPER.readValue("{}", type);
        }
    }
}

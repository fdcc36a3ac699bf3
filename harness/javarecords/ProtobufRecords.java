import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.JsonNodeFactory;
import com.fasterxml.jackson.databind.node.ObjectNode;
import io.netty.buffer.ByteBuf;
import java.lang.reflect.Method;
import java.nio.charset.StandardCharsets;
import java.util.Arrays;
import java.util.Base64;
import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import org.apache.bookkeeper.mledger.proto.ManagedCursorInfo;
import org.apache.bookkeeper.mledger.proto.ManagedLedgerInfo;
import org.apache.bookkeeper.mledger.proto.PositionInfo;
import org.apache.pulsar.broker.service.schema.SchemaEntry;
import org.apache.pulsar.broker.service.schema.SchemaLocator;
import org.apache.pulsar.broker.service.schema.proto.SchemaInfo;
import org.apache.pulsar.client.impl.schema.KeyValueSchemaInfo;
import org.apache.pulsar.common.protocol.schema.SchemaData;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Protobuf records, by the classes that Apache Pulsar's build makes of their definitions. A message
 * is told by its getters: what it has, repeated fields as lists, bytes in Base64.
 *
 * <p>Two kinds are not messages but what Apache Pulsar's registry makes of them: StoredSchema, the
 * SchemaData of a SchemaInfo record, and KeyValueSchema, key, value and encoding of one.
 */
final class ProtobufRecords {
    private static final Map<String, Class<?>> MESSAGES =
            Map.of(
                    "ManagedCursorInfo", ManagedCursorInfo.class,
                    "ManagedLedgerInfo", ManagedLedgerInfo.class,
                    "PositionInfo", PositionInfo.class,
                    "SchemaEntry", SchemaEntry.class,
                    "SchemaInfo", SchemaInfo.class,
                    "SchemaLocator", SchemaLocator.class);
    private static final List<String> SCHEMAS = List.of("StoredSchema", "KeyValueSchema");
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

    private ProtobufRecords() {}

    private static String kindOf(JsonNode asked) {
        return asked.path(asked.has("read") ? "read" : "write").textValue();
    }

    static boolean knows(JsonNode asked) {
        return MESSAGES.containsKey(kindOf(asked)) || SCHEMAS.contains(kindOf(asked));
    }

    /** The answer to a request for one of its kinds. */
    static ObjectNode answer(JsonNode asked) throws Exception {
        ObjectNode answer = NODES.objectNode();
        byte[] value;
        if (asked.has("read")) {
            value = asked.get("value").binaryValue();
        } else {
            value = write(kindOf(asked), asked.path("but"));
            answer.put("value", Base64.getEncoder().encodeToString(value));
        }
        answer.set("fields", read(kindOf(asked), value));
        return answer;
    }

    /** What the bytes of a record say. */
    private static JsonNode read(String kind, byte[] value) throws Exception {
        if (MESSAGES.containsKey(kind)) {
            return told(parse(MESSAGES.get(kind), value));
        }
        SchemaData schema =
                (SchemaData) registry("schemaInfoToSchema", parse(SchemaInfo.class, value));
        return kind.equals("StoredSchema") ? Records.told(schema) : halves(schema);
    }

    /** Makes a record with a value in every field, those of but where it names one (null: none). */
    private static byte[] write(String kind, JsonNode but) throws Exception {
        Object made;
        if (MESSAGES.containsKey(kind)) {
            made = MESSAGES.get(kind).getDeclaredConstructor().newInstance();
            fill(made, but, new Records.Sample());
        } else {
            made = stored(kind.equals("StoredSchema") ? schemaData(but) : keyValue(but), but);
        }
        return (byte[]) made.getClass().getMethod("toByteArray").invoke(made);
    }

    private static Object parse(Class<?> type, byte[] value) throws Exception {
        Object made = type.getDeclaredConstructor().newInstance();
        type.getMethod("parseFrom", byte[].class).invoke(made, (Object) value);
        return made;
    }

    // --- messages ---------------------------------------------------------------------------

    static JsonNode told(Object value) throws Exception {
        if (!MESSAGES.containsValue(value.getClass()) && !isMessage(value.getClass())) {
            return Records.told(value);
        }
        ObjectNode fields = NODES.objectNode();
        for (Method method : methods(value.getClass())) {
            String name = method.getName();
            if (name.startsWith("has") && method.getParameterCount() == 0) {
                if ((boolean) method.invoke(value)) {
                    fields.set(field(name), told(get(value, name.substring(3))));
                }
            } else if (name.startsWith("get") && name.endsWith("At")) {
                String one = name.substring(3, name.length() - 2);
                ArrayNode list = NODES.arrayNode();
                int count = (int) counter(value.getClass(), one).invoke(value);
                for (int i = 0; i < count; i++) {
                    list.add(told(method.invoke(value, i)));
                }
                fields.set(field("get" + one), list);
            }
        }
        return fields;
    }

    private static Object get(Object value, String name) throws Exception {
        Class<?> type = value.getClass();
        try {
            return type.getMethod("get" + name).invoke(value);
        } catch (NoSuchMethodException isBoolean) {
            return type.getMethod("is" + name).invoke(value);
        }
    }

    private static Method counter(Class<?> type, String one) throws NoSuchMethodException {
        String many = one.matches(".*[^aeo]y") ? one.substring(0, one.length() - 1) + "ies" : one + "s";
        return type.getMethod("get" + many + "Count");
    }

    private static boolean isMessage(Class<?> type) {
        return Arrays.stream(type.getInterfaces())
                .anyMatch(each -> each.getSimpleName().equals("LightProtoMessage"));
    }

    private static Method[] methods(Class<?> type) {
        Method[] found = type.getDeclaredMethods();
        Arrays.sort(found, Comparator.comparing(Method::getName));
        return found;
    }

    /** The name of a field, from a method's whose verb has three letters. */
    private static String field(String method) {
        return Character.toLowerCase(method.charAt(3)) + method.substring(4);
    }

    private static void fill(Object message, JsonNode but, Records.Sample sample)
            throws Exception {
        for (Method method : methods(message.getClass())) {
            String verb = method.getName().substring(0, 3);
            if (!verb.equals("set") && !verb.equals("add") || method.getName().equals("addAll")) {
                continue;
            }
            JsonNode wanted = but.path(field(method.getName()));
            if (wanted.isNull()) {
                continue;
            }
            Class<?>[] types = method.getParameterTypes();
            if (types.length == 0) {
                int count = wanted.isArray() ? wanted.size() : 1;
                for (int i = 0; i < count; i++) {
                    fill(method.invoke(message), wanted.isArray() ? wanted.get(i) : wanted, sample);
                }
            } else if (types[0] != ByteBuf.class && types[0] != Iterable.class) {
                method.invoke(message, value(types[0], wanted, sample));
            }
        }
    }

    private static Object value(Class<?> type, JsonNode wanted, Records.Sample sample)
            throws Exception {
        if (wanted.isMissingNode()) {
            return sample.ofClass(type);
        }
        if (type.isEnum()) {
            return type.getMethod("valueOf", String.class).invoke(null, wanted.textValue());
        }
        return Records.MAPPER.readerFor(type).readValue(wanted);
    }

    // --- what the registry makes of a SchemaInfo --------------------------------------------

    /** A function of Apache Pulsar's SchemaRegistryServiceImpl. */
    private static Object registry(String name, Object... given) throws Exception {
        Class<?> home =
                Class.forName(
                        "org.apache.pulsar.broker.service.schema.SchemaRegistryServiceImpl"
                                + "$Functions");
        for (Method method : home.getDeclaredMethods()) {
            if (method.getName().equals(name)) {
                method.setAccessible(true);
                return method.invoke(null, given);
            }
        }
        throw new NoSuchMethodException(name);
    }

    /** The record of a schema, as SchemaRegistryServiceImpl.putSchema makes it. */
    private static SchemaInfo stored(SchemaData schema, JsonNode but) throws Exception {
        SchemaInfo info =
                new SchemaInfo()
                        .setType(
                                (SchemaInfo.SchemaType)
                                        registry("convertFromDomainType", schema.getType()))
                        .setSchema(schema.getData())
                        .setSchemaId(but.path("schemaId").asText("a/x/t"))
                        .setUser(schema.getUser())
                        .setDeleted(schema.isDeleted())
                        .setTimestamp(schema.getTimestamp());
        registry("addProps", info, schema.getProps());
        return info;
    }

    private static SchemaData schemaData(JsonNode but) throws Exception {
        Map<String, String> properties = new TreeMap<>();
        for (Map.Entry<String, JsonNode> each : but.path("props").properties()) {
            properties.put(each.getKey(), each.getValue().textValue());
        }
        return SchemaData.builder()
                .type(SchemaType.valueOf(but.get("type").textValue()))
                .data(but.get("data").binaryValue())
                .user(but.path("user").asText(""))
                .timestamp(but.path("timestamp").asLong())
                .isDeleted(but.path("isDeleted").asBoolean())
                .props(properties)
                .build();
    }

    private static SchemaData keyValue(JsonNode but) throws Exception {
        SchemaData key = schemaData(but.get("key"));
        SchemaData value = schemaData(but.get("value"));
        SchemaData made =
                SchemaData.fromSchemaInfo(
                        KeyValueSchemaInfo.encodeKeyValueSchemaInfo(
                                "KeyValue",
                                key.toSchemaInfo(),
                                value.toSchemaInfo(),
                                KeyValueEncodingType.valueOf(but.get("encoding").textValue())));
        return SchemaData.builder()
                .type(made.getType())
                .data(made.getData())
                .props(made.getProps())
                .user("")
                .build();
    }

    private static JsonNode halves(SchemaData schema) throws Exception {
        KeyValue<?, ?> found = KeyValueSchemaInfo.decodeKeyValueSchemaInfo(schema.toSchemaInfo());
        ObjectNode fields = NODES.objectNode();
        fields.set("key", Records.told(found.getKey()));
        fields.set("value", Records.told(found.getValue()));
        fields.put(
                "encoding",
                KeyValueSchemaInfo.decodeKeyValueEncodingType(schema.toSchemaInfo()).name());
        return fields;
    }
}

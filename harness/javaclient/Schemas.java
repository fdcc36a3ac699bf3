import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.KeyValueEncodingType;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode;

/**
 * The client's schemas by what the asking side calls them. A text is one of the constants of
 * Schema, or AUTO_CONSUME, or AUTO_PRODUCE_BYTES. An object has one of these fields:
 *
 * <pre>
 * {"AVRO": "User"}, {"JSON": "User"}         a class of Types
 * {"PROTOBUF": CLASS}, {"PROTOBUF_NATIVE": CLASS}
 * {"key": SCHEMA, "value": SCHEMA, "encoding": "INLINE"}
 * {"generic": "AVRO", "definition": TEXT}    records without a class: AVRO, JSON, PROTOBUF_NATIVE
 * {"native_avro": TEXT}, {"auto_produce": SCHEMA}, {"external": NAME}
 * </pre>
 */
final class Schemas {
    private Schemas() {}

    @SuppressWarnings("unchecked")
    static Schema<Object> of(JsonNode name) {
        if (name == null || name.isNull()) {
            return (Schema<Object>) (Schema<?>) Schema.BYTES;
        }
        try {
            return (Schema<Object>) (name.isTextual() ? named(name.textValue()) : made(name));
        } catch (ReflectiveOperationException error) {
            throw new IllegalArgumentException("no schema: " + name, error);
        }
    }

    private static Schema<?> named(String name) throws ReflectiveOperationException {
        return switch (name) {
            case "AUTO_CONSUME" -> Schema.AUTO_CONSUME();
            case "AUTO_PRODUCE_BYTES" -> Schema.AUTO_PRODUCE_BYTES();
            default -> (Schema<?>) Schema.class.getField(name).get(null);
        };
    }

    private static Schema<?> made(JsonNode name) throws ReflectiveOperationException {
        if (name.has("AVRO")) {
            return Schema.AVRO(pojo(name.get("AVRO")));
        }
        if (name.has("JSON")) {
            return Schema.JSON(pojo(name.get("JSON")));
        }
        if (name.has("PROTOBUF")) {
            return Schema.PROTOBUF(message(name.get("PROTOBUF")));
        }
        if (name.has("PROTOBUF_NATIVE")) {
            return Schema.PROTOBUF_NATIVE(message(name.get("PROTOBUF_NATIVE")));
        }
        if (name.has("key")) {
            KeyValueEncodingType encoding =
                    KeyValueEncodingType.valueOf(name.path("encoding").asText("INLINE"));
            return Schema.KeyValue(of(name.get("key")), of(name.get("value")), encoding);
        }
        if (name.has("generic")) {
            return Schema.generic(info(name));
        }
        if (name.has("native_avro")) {
            String definition = name.get("native_avro").textValue();
            return Schema.NATIVE_AVRO(
                    new org.apache.pulsar.shade.org.apache.avro.Schema.Parser().parse(definition));
        }
        if (name.has("auto_produce")) {
            return Schema.AUTO_PRODUCE_BYTES(of(name.get("auto_produce")));
        }
        if (name.has("external")) {
            return new ExternalText(name.get("external").textValue());
        }
        throw new IllegalArgumentException("no schema: " + name);
    }

    private static SchemaInfo info(JsonNode name) {
        return SchemaInfo.builder()
                .name("generic")
                .type(SchemaType.valueOf(name.get("generic").textValue()))
                .schema(name.get("definition").textValue().getBytes(StandardCharsets.UTF_8))
                .properties(Map.of())
                .build();
    }

    static Class<?> pojo(JsonNode name) throws ClassNotFoundException {
        return Class.forName("Types$" + name.textValue());
    }

    static Class<? extends com.google.protobuf.Message> message(JsonNode name)
            throws ClassNotFoundException {
        return Class.forName(name.textValue()).asSubclass(com.google.protobuf.Message.class);
    }
}

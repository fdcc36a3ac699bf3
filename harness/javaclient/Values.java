import com.google.protobuf.Descriptors.FieldDescriptor;
import com.google.protobuf.Message;
import java.nio.ByteBuffer;
import java.sql.Time;
import java.sql.Timestamp;
import java.time.Instant;
import java.time.LocalDate;
import java.time.LocalDateTime;
import java.time.LocalTime;
import java.time.temporal.Temporal;
import java.util.Base64;
import java.util.Collection;
import java.util.Date;
import java.util.Map;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.client.api.schema.Field;
import org.apache.pulsar.client.api.schema.GenericObject;
import org.apache.pulsar.client.api.schema.GenericRecord;
import org.apache.pulsar.client.api.schema.GenericRecordBuilder;
import org.apache.pulsar.client.api.schema.GenericSchema;
import org.apache.pulsar.common.schema.KeyValue;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.node.ArrayNode;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.node.JsonNodeFactory;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.node.ObjectNode;
import org.apache.pulsar.shade.org.apache.avro.generic.GenericEnumSymbol;

/**
 * Values of schemas as JSON. Bytes are {"base64": ...}; dates and times are texts of ISO 8601, and
 * java.util.Date, Time and Timestamp are milliseconds; a generic record is {"type": ..., "fields":
 * ...}, and what AUTO_CONSUME makes of other types {"type": ..., "value": ...}.
 */
final class Values {
    private static final JsonNodeFactory NODES = JsonNodeFactory.instance;

    private Values() {}

    static byte[] bytes(JsonNode value) {
        return Base64.getDecoder().decode(value.get("base64").textValue());
    }

    /** What a schema can encode, of the JSON for it; schemas are named as in Schemas. */
    static Object made(JsonNode schema, JsonNode value) throws ReflectiveOperationException {
        if (value.isNull()) {
            return null;
        }
        if (value.has("base64")) {
            byte[] found = bytes(value);
            return schema.asText().equals("BYTEBUFFER") ? ByteBuffer.wrap(found) : found;
        }
        if (schema.isTextual()) {
            return plain(schema.textValue(), value);
        }
        if (schema.has("key")) {
            Object key = made(schema.get("key"), value.get("key"));
            return new KeyValue<>(key, made(schema.get("value"), value.get("value")));
        }
        if (schema.has("generic")) {
            return record((GenericSchema<?>) (Schema<?>) Schemas.of(schema), value);
        }
        if (schema.has("external")) {
            return value.textValue();
        }
        Map.Entry<String, JsonNode> one = schema.properties().iterator().next();
        return switch (one.getKey()) {
            case "PROTOBUF", "PROTOBUF_NATIVE" -> message(Schemas.message(one.getValue()), value);
            default -> Main.MAPPER.convertValue(value, Schemas.pojo(one.getValue()));
        };
    }

    private static Object plain(String type, JsonNode value) {
        return switch (type) {
            case "STRING" -> value.textValue();
            case "BOOL" -> value.booleanValue();
            case "INT8" -> (byte) value.intValue();
            case "INT16" -> value.shortValue();
            case "INT32" -> value.intValue();
            case "INT64" -> value.longValue();
            case "FLOAT" -> value.floatValue();
            case "DOUBLE" -> value.doubleValue();
            case "DATE" -> new Date(value.longValue());
            case "TIME" -> new Time(value.longValue());
            case "TIMESTAMP" -> new Timestamp(value.longValue());
            case "INSTANT" -> Instant.parse(value.textValue());
            case "LOCAL_DATE" -> LocalDate.parse(value.textValue());
            case "LOCAL_TIME" -> LocalTime.parse(value.textValue());
            case "LOCAL_DATE_TIME" -> LocalDateTime.parse(value.textValue());
            default -> throw new IllegalArgumentException("no value for " + type);
        };
    }

    private static GenericRecord record(GenericSchema<?> schema, JsonNode value) {
        GenericRecordBuilder builder = schema.newRecordBuilder();
        for (Map.Entry<String, JsonNode> each : value.properties()) {
            builder.set(each.getKey(), Main.MAPPER.convertValue(each.getValue(), Object.class));
        }
        return builder.build();
    }

    private static Message message(Class<?> type, JsonNode value)
            throws ReflectiveOperationException {
        Message.Builder builder = (Message.Builder) type.getMethod("newBuilder").invoke(null);
        for (Map.Entry<String, JsonNode> each : value.properties()) {
            FieldDescriptor field = builder.getDescriptorForType().findFieldByName(each.getKey());
            JsonNode found = each.getValue();
            builder.setField(
                    field,
                    switch (field.getJavaType()) {
                        case INT -> found.intValue();
                        case LONG -> found.longValue();
                        case STRING -> found.textValue();
                        default -> throw new IllegalArgumentException("no value for " + field);
                    });
        }
        return builder.build();
    }

    /** The JSON of what a schema has decoded, or a method returned. */
    static JsonNode told(Object value) {
        if (value == null) {
            return NODES.nullNode();
        } else if (value instanceof byte[] bytes) {
            return NODES.objectNode().put("base64", Base64.getEncoder().encodeToString(bytes));
        } else if (value instanceof ByteBuffer buffer) {
            byte[] bytes = new byte[buffer.remaining()];
            buffer.duplicate().get(bytes);
            return told(bytes);
        } else if (value instanceof KeyValue<?, ?> pair) {
            ObjectNode both = NODES.objectNode();
            both.set("key", told(pair.getKey()));
            both.set("value", told(pair.getValue()));
            return both;
        } else if (value instanceof GenericObject generic) {
            return generic(generic);
        } else if (value instanceof Message message) {
            ObjectNode fields = NODES.objectNode();
            message.getAllFields().forEach((field, each) -> fields.set(field.getName(), told(each)));
            return fields;
        } else if (value instanceof Date date) {
            return NODES.numberNode(date.getTime());
        } else if (value instanceof Temporal
                || value instanceof CharSequence
                || value instanceof GenericEnumSymbol) {
            return NODES.textNode(value.toString());
        } else if (value instanceof Collection<?> several) {
            ArrayNode all = NODES.arrayNode();
            several.forEach(each -> all.add(told(each)));
            return all;
        } else if (value instanceof Map<?, ?> map) {
            ObjectNode all = NODES.objectNode();
            map.forEach((key, each) -> all.set(key.toString(), told(each)));
            return all;
        }
        return Main.MAPPER.valueToTree(value);
    }

    private static JsonNode generic(GenericObject value) {
        ObjectNode answer = NODES.objectNode().put("type", value.getSchemaType().name());
        if (value instanceof GenericRecord record && value.getSchemaType().isStruct()) {
            ObjectNode fields = answer.putObject("fields");
            for (Field field : record.getFields()) {
                fields.set(field.getName(), told(record.getField(field)));
            }
        } else {
            answer.set("value", told(value.getNativeObject()));
        }
        return answer;
    }
}

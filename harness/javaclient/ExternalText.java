import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import org.apache.pulsar.client.api.EncodeData;
import org.apache.pulsar.client.api.Schema;
import org.apache.pulsar.common.schema.SchemaInfo;
import org.apache.pulsar.common.schema.SchemaType;

/**
 * Texts with a schema that some registry elsewhere keeps: each message names it by an id, and the
 * broker is told that there is one.
 */
final class ExternalText implements Schema<String> {
    private final String name;

    ExternalText(String name) {
        this.name = name;
    }

    @Override
    public byte[] encode(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    @Override
    public EncodeData encode(String topic, String text) {
        return new EncodeData(encode(text), name.getBytes(StandardCharsets.UTF_8));
    }

    @Override
    public String decode(String topic, ByteBuffer data, byte[] schemaId) {
        return new String(schemaId, StandardCharsets.UTF_8)
                + ":"
                + StandardCharsets.UTF_8.decode(data);
    }

    @Override
    public SchemaInfo getSchemaInfo() {
        return SchemaInfo.builder()
                .name(name)
                .type(SchemaType.EXTERNAL)
                .schema(new byte[0])
                .properties(Map.of("registry", name))
                .build();
    }

    @Override
    public Schema<String> clone() {
        return new ExternalText(name);
    }
}

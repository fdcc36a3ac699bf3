import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.Map;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/**
 * Runs command lines of pulsar-admin in one process: a line of JSON in, one out.
 *
 * <pre>
 * {"id": 7, "op": "http://127.0.0.1:8080", "args": ["tenants", "list"]}
 * {"id": 7, "ok": {"status": 0, "output": "public\n", "errors": ""}}
 * </pre>
 *
 * <p>One after another, since the tool prints to the standard output of the process. All lines for a
 * broker are run by one tool, as those of a pulsar-shell are: to make one takes longer than to run it.
 */
public final class Main extends PulsarAdminTool {
    private static final ObjectMapper MAPPER = new ObjectMapper();

    private Main(Properties properties) throws Exception {
        super(properties);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ByteArrayOutputStream output = new ByteArrayOutputStream();
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        System.setOut(new Open(output));
        System.setErr(new Open(errors));
        Map<String, Main> tools = new HashMap<>();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode asked = MAPPER.readTree(line);
            ObjectNode answer = MAPPER.createObjectNode();
            answer.set("id", asked.get("id"));
            String url = asked.get("op").textValue();
            if (!tools.containsKey(url)) {
                Properties properties = new Properties();
                properties.setProperty("webServiceUrl", url);
                tools.put(url, new Main(properties));
            }
            String[] words = MAPPER.convertValue(asked.get("args"), String[].class);
            ObjectNode told = answer.putObject("ok");
            told.put("status", tools.get(url).run(words) ? 0 : 1);
            System.out.flush();
            System.err.flush();
            told.put("output", output.toString(StandardCharsets.UTF_8));
            told.put("errors", errors.toString(StandardCharsets.UTF_8));
            output.reset();
            errors.reset();
            answers.println(answer);
            answers.flush();
        }
        System.exit(0);
    }

    /** Some commands close what they print to. */
    private static final class Open extends PrintStream {
        Open(ByteArrayOutputStream bytes) {
            super(bytes, true, StandardCharsets.UTF_8);
        }

        @Override
        public void close() {
            flush();
        }
    }
}

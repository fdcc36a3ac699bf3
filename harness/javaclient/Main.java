import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.CompletionException;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.atomic.AtomicLong;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.node.ObjectNode;

/**
 * A program that lets tests in Python drive Apache Pulsar's Java client. It reads one JSON object a
 * line from standard input and answers each with one line:
 *
 * <pre>
 * {"id": 7, "op": "receive", "on": 3, "as": 0, "args": {...}, "drop": [12, 13]}
 * {"id": 7, "ok": ...}
 * {"id": 7, "error": {"result": "ProducerFencedException", "text": "..."}}
 * </pre>
 *
 * <p>"on" is the handle of the client, producer, consumer, reader, table view or transaction that
 * is asked. The asking side chooses these handles ("as", when one is made). Messages and ids that are given out
 * are kept under numbers of this side until they are named in "drop", for the client acknowledges
 * by its own objects. Requests are served at the same time; what is sent goes out in the order in
 * which it was asked for. What is not in the table of operations is a public method of the object
 * without arguments. The end of the input ends the program.
 */
public final class Main {
    static final ObjectMapper MAPPER = new ObjectMapper();

    /** Serves a request and returns what goes under "ok". */
    interface Operation {
        Object serve(Main program, JsonNode asked) throws Exception;
    }

    private static final Map<String, Operation> OPERATIONS =
            Map.ofEntries(
                    Map.entry("new_client", Makers::client),
                    Map.entry("create_producer", Makers::producer),
                    Map.entry("subscribe", Makers::consumer),
                    Map.entry("create_reader", Makers::reader),
                    Map.entry("create_table_view", Makers::tableView),
                    Map.entry("new_keys", Makers::keys),
                    Map.entry("partitions", Makers::partitions),
                    Map.entry("topic_epoch", Makers::topicEpoch),
                    Map.entry("kept_count", (program, asked) -> program.kept.size()),
                    Map.entry("receive", Messages::receive),
                    Map.entry("read_next", Messages::readNext),
                    Map.entry("acknowledge", Messages::acknowledge),
                    Map.entry("negative_acknowledge", Messages::negativeAcknowledge),
                    Map.entry("reconsume_later", Messages::reconsumeLater),
                    Map.entry("seek", Messages::seek),
                    Map.entry("last_ids", Messages::lastIds),
                    Map.entry("entries", Messages::entries),
                    Map.entry("new_transaction", Transactions::start),
                    Map.entry("commit", Transactions::commit),
                    Map.entry("abort", Transactions::abort),
                    Map.entry("end_transaction", Transactions::end),
                    Map.entry("acknowledge_within", Transactions::acknowledge));

    private final ExecutorService workers = Executors.newCachedThreadPool();
    private final Map<Long, Object> objects = new ConcurrentHashMap<>();
    private final Map<Long, Object> kept = new ConcurrentHashMap<>();
    private final AtomicLong lastKept = new AtomicLong();
    private final PrintStream output = new PrintStream(System.out, false, StandardCharsets.UTF_8);

    public static void main(String[] arguments) throws IOException {
        Main program = new Main();
        BufferedReader input =
                new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            program.serve(MAPPER.readTree(line));
        }
        // The threads of clients that were not closed are no reason to stay.
        System.exit(0);
    }

    private void serve(JsonNode asked) {
        asked.path("drop").forEach(number -> kept.remove(number.longValue()));
        String name = asked.get("op").textValue();
        if (name.equals("send")) {
            // Not by a worker: the order is that of the requests.
            Messages.send(this, asked).whenComplete((id, error) -> answer(asked, id, error));
            return;
        }
        Operation operation = OPERATIONS.getOrDefault(name, Calls::method);
        workers.execute(
                () -> {
                    try {
                        answer(asked, operation.serve(this, asked), null);
                    } catch (Throwable error) {
                        answer(asked, null, error);
                    }
                });
    }

    private void answer(JsonNode asked, Object result, Throwable error) {
        ObjectNode line = MAPPER.createObjectNode();
        line.set("id", asked.get("id"));
        if (error == null) {
            line.set("ok", MAPPER.valueToTree(result));
        } else {
            Throwable cause = error;
            while (cause.getCause() != null
                    && (cause instanceof CompletionException
                            || cause instanceof ExecutionException)) {
                cause = cause.getCause();
            }
            ObjectNode failure = line.putObject("error");
            failure.put("result", cause.getClass().getSimpleName());
            failure.put("text", String.valueOf(cause.getMessage()));
        }
        synchronized (output) {
            output.println(line);
            output.flush();
        }
    }

    /** Remembers what a request has made under the handle that it chose. */
    void made(JsonNode asked, Object object) {
        objects.put(asked.get("as").longValue(), object);
    }

    /** The object that a request is for. */
    Object object(JsonNode asked) {
        return object(asked.get("on").longValue());
    }

    Object object(long handle) {
        return objects.get(handle);
    }

    void forget(JsonNode asked) {
        objects.remove(asked.get("on").longValue());
    }

    /** Keeps a message or an id until it is dropped; its number. */
    long keep(Object object) {
        long number = lastKept.incrementAndGet();
        kept.put(number, object);
        return number;
    }

    Object kept(JsonNode number) {
        Object found = kept.get(number.longValue());
        if (found == null) {
            throw new IllegalArgumentException("nothing is kept under " + number);
        }
        return found;
    }
}

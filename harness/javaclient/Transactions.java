import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.TimeUnit;
import org.apache.pulsar.client.api.Consumer;
import org.apache.pulsar.client.api.MessageId;
import org.apache.pulsar.client.api.PulsarClient;
import org.apache.pulsar.client.api.transaction.Transaction;
import org.apache.pulsar.client.api.transaction.TransactionCoordinatorClient;
import org.apache.pulsar.client.api.transaction.TxnID;
import org.apache.pulsar.client.impl.PulsarClientImpl;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.JsonNode;
import org.apache.pulsar.shade.com.fasterxml.jackson.databind.node.ObjectNode;

/** Transactions of a client; a request for a message or an ack names one by its handle. */
final class Transactions {
    private Transactions() {}

    static Object start(Main program, JsonNode asked) throws Exception {
        long timeout = asked.get("args").get("timeout_ms").longValue();
        Transaction made =
                ((PulsarClient) program.object(asked))
                        .newTransaction()
                        .withTransactionTimeout(timeout, TimeUnit.MILLISECONDS)
                        .build()
                        .get();
        program.made(asked, made);
        ObjectNode id = Main.MAPPER.createObjectNode();
        id.put("most", made.getTxnID().getMostSigBits());
        id.put("least", made.getTxnID().getLeastSigBits());
        return id;
    }

    static Object commit(Main program, JsonNode asked) throws Exception {
        return ((Transaction) program.object(asked)).commit().get();
    }

    static Object abort(Main program, JsonNode asked) throws Exception {
        return ((Transaction) program.object(asked)).abort().get();
    }

    /** Ends a transaction of any client by its id. */
    static Object end(Main program, JsonNode asked) throws Exception {
        JsonNode args = asked.get("args");
        TransactionCoordinatorClient coordinators =
                ((PulsarClientImpl) program.object(asked)).getTcClient();
        TxnID id = new TxnID(args.get("most").longValue(), args.get("least").longValue());
        if (args.get("commit").booleanValue()) {
            coordinators.commit(id);
        } else {
            coordinators.abort(id);
        }
        return null;
    }

    static Object acknowledge(Main program, JsonNode asked) throws Exception {
        JsonNode args = asked.get("args");
        Consumer<?> consumer = (Consumer<?>) program.object(asked);
        Transaction transaction = (Transaction) program.object(args.get("transaction").longValue());
        List<MessageId> ids = new ArrayList<>();
        for (JsonNode each : args.get("messages")) {
            ids.add(Messages.id(program, each));
        }
        if (args.path("cumulative").asBoolean()) {
            consumer.acknowledgeCumulativeAsync(ids.get(0), transaction).get();
        } else if (ids.size() == 1) {
            consumer.acknowledgeAsync(ids.get(0), transaction).get();
        } else {
            consumer.acknowledgeAsync(ids, transaction).get();
        }
        return null;
    }
}

"""Commands about transactions and their coordinators."""

from __future__ import annotations

from argparse import ArgumentTypeError

from pyxbroker.cli.admin.rows import Encoded, flag, get, milliseconds, option, post
from pyxbroker.cli.admin.rows import topic as topic_path_of

PATH = "/admin/v3/transactions"
OF_ID = "{most_sig_bits}/{least_sig_bits}"


def topic(text: str) -> Encoded:
    """Return the part of a path that names a persistent topic: `tenant/namespace/topic`."""
    domain, _, path = topic_path_of(text).partition("/")
    if domain != "persistent":
        raise ArgumentTypeError(f"{text!r} is non-persistent, and has no transactions.")
    return Encoded(path)


TOPIC = option("-t --topic", "The topic.", "{topic}", topic, required=True)
SUBSCRIPTION = option("-s --sub-name", "The subscription.", "{sub}", required=True)
OF_SUBSCRIPTION = option("-s --subscription-name", "The subscription.", "{sub}", required=True)
ID = (
    option("-m --most-sig-bits", "The first number of its id.", "{most_sig_bits}", int,
           required=True),
    option("-l --least-sig-bits", "The second number of its id.", "{least_sig_bits}", int,
           required=True),
)  # fmt: skip
COORDINATOR = option("-c --coordinator-id", "The id of a coordinator.", "?coordinatorId", int)
METADATA = flag("-m --metadata", "With the metadata of the ledgers.", "?metadata")
LOW_WATER_MARKS = flag(
    "-l --low-water-mark", "With the low water mark of each coordinator.", "?lowWaterMarks"
)

COMMANDS = {
    "coordinators-list": get("List the coordinators and their brokers.", f"{PATH}/coordinators"),
    "coordinator-stats": get(
        "Print the state of a coordinator, or of each.", f"{PATH}/coordinatorStats", COORDINATOR
    ),
    "coordinator-internal-stats": get(
        "Print the log of a coordinator.",
        f"{PATH}/coordinatorInternalStats/{{coordinator}}",
        COORDINATOR._replace(to="{coordinator}", is_required=True),
        METADATA,
    ),
    "slow-transactions": get(
        "List the open transactions with a longer timeout than a given time.",
        f"{PATH}/slowTransactions/{{time}}",
        option("-t --time", "The time: 1s, 10m, 5h or 3d.", "{time}", milliseconds, required=True),
        COORDINATOR,
    ),
    "transaction-metadata": get(
        "Print the state, the owner, the topics and the subscriptions of a transaction.",
        f"{PATH}/transactionMetadata/{OF_ID}",
        *ID,
    ),
    "abort-transaction": post("Abort a transaction.", f"{PATH}/abortTransaction/{OF_ID}", *ID),
    "transaction-buffer-stats": get(
        "Print the state of the transaction buffer of a topic.",
        f"{PATH}/transactionBufferStats/{{topic}}",
        TOPIC,
        LOW_WATER_MARKS,
        flag("-s --segment-stats", "With the segments of its snapshot.", "?segmentStats"),
    ),
    "buffer-snapshot-internal-stats": get(
        "Print the log of the snapshots of a topic.",
        f"{PATH}/transactionBufferInternalStats/{{topic}}",
        TOPIC,
        METADATA,
    ),
    "transaction-in-buffer-stats": get(
        "Print the messages of a transaction in a topic.",
        f"{PATH}/transactionInBufferStats/{{topic}}/{OF_ID}",
        TOPIC,
        *ID,
    ),
    "pending-ack-stats": get(
        "Print the state of the pending acknowledgements of a subscription.",
        f"{PATH}/pendingAckStats/{{topic}}/{{sub}}",
        TOPIC,
        SUBSCRIPTION,
        LOW_WATER_MARKS,
    ),
    "pending-ack-internal-stats": get(
        "Print the log of the pending acknowledgements of a subscription.",
        f"{PATH}/pendingAckInternalStats/{{topic}}/{{sub}}",
        TOPIC,
        OF_SUBSCRIPTION,
        METADATA,
    ),
    "transaction-in-pending-ack-stats": get(
        "Print the pending acknowledgement of a transaction in a subscription.",
        f"{PATH}/transactionInPendingAckStats/{{topic}}/{{sub}}/{OF_ID}",
        TOPIC,
        SUBSCRIPTION,
        *ID,
    ),
    "position-stats-in-pending-ack": get(
        "Print the state of a message in the pending acknowledgements of a subscription.",
        f"{PATH}/positionStatsInPendingAck/{{topic}}/{{sub}}/{{ledger}}/{{entry}}",
        TOPIC,
        OF_SUBSCRIPTION,
        option("-l --ledger-id", "The id of its ledger.", "{ledger}", int, required=True),
        option("-e --entry-id", "The id of its entry.", "{entry}", int, required=True),
        option("-b --batch-index", "Its place in the entry.", "?batchIndex", int),
    ),
    "scale-transactionCoordinators": post(
        "Set the number of coordinators, which can only grow.",
        f"{PATH}/transactionCoordinator/replicas",
        option("-r --replicas", "The number of coordinators.", "=", int, default=0),
    ),
}

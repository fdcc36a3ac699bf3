"""Space that comes back: what the disk holds before and after a TTL, a retention and a deletion.

    python -m bench.space
    python -m bench.space --megabytes 300

Three namespaces get a third each of what is published, to a few topics: one whose subscriptions
acknowledge nothing, one whose messages are all acknowledged and retained, and one that is deleted.
After a restart, which leaves the messages in entry logs alone, the first gets a TTL, the second
loses its retention, the topics of the third are deleted, one after the other. After each step the
disk is looked at until it does not change any more; told is when it last did, counted from the
request. What is left is the metadata and the journal, whose files are written again and again.

Only pyxbroker is asked: Apache Pulsar trims by timers of many minutes, and frees the space of
deleted entries when its bookie compacts.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection

from bench import rates, side_by_side
from bench.policies import Account, make_namespaces, restart, set_policy
from bench.side_by_side import Numbers

TOPICS = 4  # in each namespace
BODY = bytes(64 << 10)
BLOCK = 16  # messages in one write
LEDGER_MEGABYTES = 4
SETTINGS = {
    "managedLedgerMaxSizePerLedgerMbytes": str(LEDGER_MEGABYTES),
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
}
RETAINS_ALL = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}
RETAINS_NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
LOOK_S = 0.01
SETTLED_S = 5.0  # without a change
PATIENCE_S = 300.0
STEPS = {"ttl": "a TTL", "retention": "no retention any more", "delete": "topics are deleted"}

# (number, title, unit, decimals)
ROWS = [
    ("published_mib", "published", "MiB", 0),
    ("before_mib", "on disk then", "MiB", 0),
    ("journal_mib", "  of it the journal", "MiB", 0),
    *(
        row
        for name, title in STEPS.items()
        for row in (
            (f"{name}_mib", f"after {title}: on disk", "MiB", 0),
            (f"{name}_s", "  the last of it is free after", "s", 2),
            (f"{name}_cpu_s", "  broker CPU", "s", 2),
            (f"{name}_turn_ms", "  longest turn at most", "ms", 0),
        )
    ),
]


def disk_bytes(directory: Path) -> int:
    """What the files of a folder take, without their holes."""
    total = 0
    for path in directory.rglob("*"):
        with suppress(FileNotFoundError):  # That is what this is about.
            total += path.stat().st_blocks * 512
    return total


def settled(directory: Path, begin: Callable[[], None]) -> tuple[int, float]:
    """(bytes, seconds) when the disk does not change any more after something has begun."""
    began = changed = time.perf_counter()
    begin()
    last = disk_bytes(directory)
    while time.perf_counter() - changed < SETTLED_S:
        assert time.perf_counter() - began < PATIENCE_S, "the disk never settles"
        time.sleep(LOOK_S)
        now = disk_bytes(directory)
        if now != last:
            last, changed = now, time.perf_counter()
    return last, changed - began


def publish(broker: Broker, topic: str, messages: int) -> None:
    """Publishes to a topic that has a subscription."""
    with RawConnection(broker.port, timeout_s=PATIENCE_S) as raw:
        raw.subscribe(topic, "s")
        raw.producer(topic)
        left = messages

        def on_some(count: int) -> bool:
            nonlocal left
            left -= count
            return left > 0

        take = threading.Thread(target=rates.take, args=(raw, wire.SEND_RECEIPT, on_some))
        take.start()
        data = wire.send(1, 0, wire.metadata("p", 0, int(time.time() * 1000)), BODY)
        for at in range(0, messages, BLOCK):
            raw.write(data * min(BLOCK, messages - at))
        take.join()


def one_life(broker: Broker, megabytes: int) -> Numbers:
    broker.start()
    make_namespaces(broker, *STEPS)
    set_policy(broker, "namespaces/public/retention/retention", RETAINS_ALL)
    messages = max(megabytes * (1 << 20) // len(BODY) // TOPICS // len(STEPS), 1)
    for namespace in STEPS:
        for number in range(TOPICS):
            publish(broker, f"persistent://public/{namespace}/t-{number}", messages)
    topics = [f"t-{number}" for number in range(TOPICS)]

    def ask(method: str, path: str) -> None:
        status, answer = broker.request(method, f"/admin/v2/persistent/public/{path}")
        assert status == 204, (path, status, answer)

    def delete() -> None:
        for topic in topics:
            ask("DELETE", f"delete/{topic}?force=true")

    def retain_nothing() -> None:
        set_policy(broker, "namespaces/public/retention/retention", RETAINS_NOTHING)

    def expire() -> None:
        set_policy(broker, "namespaces/public/ttl/messageTTL", 1)

    for topic in topics:
        ask("POST", f"retention/{topic}/subscription/s/skip_all")
    # All that is published is in entry logs then, and once.
    restart(broker)
    for namespace in STEPS:
        for topic in topics:
            with RawConnection(broker.port, timeout_s=PATIENCE_S) as raw:
                raw.subscribe(f"persistent://public/{namespace}/{topic}", "s")
    before, _ = settled(broker.data, lambda: None)
    numbers: Numbers = {
        "published_mib": messages * len(BODY) * TOPICS * len(STEPS) / (1 << 20),
        "before_mib": before / (1 << 20),
        "journal_mib": disk_bytes(broker.data / "bookie" / "journal") / (1 << 20),
    }
    begins = {"ttl": expire, "retention": retain_nothing, "delete": delete}
    for name, begin in begins.items():
        account = Account(broker)
        size, seconds = settled(broker.data, begin)
        numbers |= {
            f"{name}_mib": size / (1 << 20),
            f"{name}_s": seconds,
            f"{name}_cpu_s": account.cpu_s(),
            f"{name}_turn_ms": account.turn_ms(),
        }
    return numbers


def main(arguments: list[str] | None = None) -> int:
    """Runs the broker and prints the table."""
    parser = side_by_side.parser(__doc__.splitlines()[0])
    parser.add_argument("--megabytes", type=int, default=1024, help="published in all [1024]")
    options = parser.parse_args(arguments)
    options.only = options.only or ["pyxbroker"]
    options.set = [*(f"{key}={value}" for key, value in SETTINGS.items()), *options.set]
    side_by_side.run(options, ROWS, lambda broker: one_life(broker, options.megabytes))
    return 0


if __name__ == "__main__":
    sys.exit(main())

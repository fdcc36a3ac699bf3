"""The figures: each drives one broker process and returns numbers by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from harness import wire
from harness.brokers import Broker
from harness.raw import ConnectionClosed, RawConnection

LOAD = Path(__file__).with_name("load.py")
TOPIC = "persistent://public/default/bench-"
Numbers = dict[str, float]


@dataclass
class Scale:
    """How much each figure does."""

    idle_s: float = 10.0
    sequential: int = 5_000
    unbatched: int = 100_000
    batched: int = 300_000
    cached: int = 60_000  # below what every broker keeps in memory by default
    end_to_end: int = 10_000
    topics: int = 500
    shared: int = 40_000
    fanout: int = 2_000

    @classmethod
    def short(cls) -> Scale:
        """For continuous integration: the machinery works and nothing is grossly slow."""
        return cls(2.0, 500, 12_000, 40_000, 8_000, 1_500, 60, 4_000, 200)


class LoadFailed(Exception):
    """The load generator ended without a result."""


def run_load(broker: Broker, load: str, topic: str, count: int) -> Numbers:
    """Run one load; adds the broker's CPU per message and its growth in memory."""
    process = subprocess.Popen(
        [sys.executable, str(LOAD), load, broker.url, topic, str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin is not None and process.stdout is not None
    samples: dict[str, tuple[float, int, float]] = {}
    result: Numbers | None = None
    for line in process.stdout:
        word, _, rest = line.strip().partition(" ")
        if word == "mark":
            samples[rest] = (broker.cpu_s(), broker.memory_kib(), time.perf_counter())
            process.stdin.write("\n")
            process.stdin.flush()
        elif word == "result":
            result = json.loads(rest)
    if process.wait() != 0 or result is None:
        raise LoadFailed(f"{load} against {broker.kind}:\n{broker.output(600)}")
    (cpu, memory, at), (cpu_end, memory_end, at_end) = samples["begin"], samples["end"]
    messages = result.pop("messages", count)
    result["broker_us"] = (cpu_end - cpu) / messages * 1e6
    result["broker_share"] = (cpu_end - cpu) / (at_end - at)
    result["grown_kib"] = (memory_end - memory) / messages
    return result


def start(broker: Broker, scale: Scale) -> Numbers:
    """From exec of the process to the first receipt."""
    broker.spawn()
    return {"first_ack_ms": _first_receipt(broker) * 1000}


def ready(broker: Broker, scale: Scale) -> Numbers:
    """From exec of the process to 200 on /admin/v2/clusters, which nobody else asks meanwhile."""
    broker.spawn()
    if broker.kind == "pulsar-lite":
        return {}  # It has no REST interface.
    while _may_still_start(broker):
        if broker.http_status("/admin/v2/clusters") == 200:
            return {"rest_ms": (time.monotonic() - broker.started_at) * 1000}
        time.sleep(0.002)
    raise LoadFailed(f"{broker.kind} did not answer /admin/v2/clusters:\n{broker.output(600)}")


def _may_still_start(broker: Broker) -> bool:
    assert broker.process is not None
    return broker.process.poll() is None and time.monotonic() - broker.started_at < 90


def _first_receipt(broker: Broker) -> float:
    while _may_still_start(broker):
        try:
            with RawConnection(broker.port) as connection:
                connection.producer(TOPIC + "first")
                connection.send(b"first", 0)
                connection.expect(wire.SEND_RECEIPT)
                return time.monotonic() - broker.started_at
        except (OSError, AssertionError, ConnectionClosed):
            # Not there yet, or there and not ready to serve the topic.
            time.sleep(0.002)
    raise LoadFailed(f"{broker.kind} acknowledged nothing:\n{broker.output()}")


def idle(broker: Broker, scale: Scale) -> Numbers:
    """Memory and CPU of a broker that just started and does nothing."""
    time.sleep(1.0 if broker.kind != "apache" else 15.0)
    cpu, began = broker.cpu_s(), time.monotonic()
    time.sleep(scale.idle_s)
    share = (broker.cpu_s() - cpu) / (time.monotonic() - began)
    return {
        "memory_mib": broker.memory_kib() / 1024,
        "distinct_mib": broker.distinct_memory_kib() / 1024,
        "cpu_percent": share * 100,
    }


def sequential(broker: Broker, scale: Scale) -> Numbers:
    """Unbatched 1 KiB, one at a time."""
    return run_load(broker, "sequential", TOPIC + "sequential", scale.sequential)


def unbatched4(broker: Broker, scale: Scale) -> Numbers:
    """Unbatched 1 KiB, four producers."""
    return run_load(broker, "unbatched4", TOPIC + "unbatched", scale.unbatched)


def batched(broker: Broker, scale: Scale) -> Numbers:
    """1 KiB in batches of 128 KiB, one producer."""
    return run_load(broker, "batched", TOPIC + "batched", scale.batched)


def backlog_cache(broker: Broker, scale: Scale) -> Numbers:
    """Read a batched backlog that fits into memory back from the running broker, five times."""
    run_load(broker, "batched", TOPIC + "cached", scale.cached)
    return run_load(broker, "backlog5", TOPIC + "cached", scale.cached)


def backlog_disk(broker: Broker, scale: Scale) -> Numbers:
    """Stop, drop the kernel's page cache, start, and read the batched backlog."""
    broker.stop(60)
    os.sync()
    dropped = _drop_page_cache()
    broker.start()
    time.sleep(1.0 if broker.kind != "apache" else 10.0)
    numbers = run_load(broker, "backlog", TOPIC + "batched", scale.batched)
    numbers["page_cache_dropped"] = float(dropped)
    return numbers


def _drop_page_cache() -> bool:
    try:
        Path("/proc/sys/vm/drop_caches").write_text("1\n")
    except OSError:
        return False
    return True


def end_to_end(broker: Broker, scale: Scale) -> Numbers:
    """100 bytes at 1,000/s, from send to receive."""
    return run_load(broker, "end_to_end", TOPIC + "latency", scale.end_to_end)


def paced(broker: Broker, scale: Scale) -> Numbers:
    """Unbatched 1 KiB at 1,000/s, from send to receipt."""
    return run_load(broker, "paced", TOPIC + "paced", scale.end_to_end)


def topics(broker: Broker, scale: Scale) -> Numbers:
    """A new topic with a producer, many times."""
    return run_load(broker, "topics", TOPIC + "topic", scale.topics)


def shared100(broker: Broker, scale: Scale) -> Numbers:
    """One producer, a Shared subscription with 100 consumers."""
    return run_load(broker, "shared100", TOPIC + "shared", scale.shared)


def fanout100(broker: Broker, scale: Scale) -> Numbers:
    """One producer, 100 subscriptions with a consumer each."""
    return run_load(broker, "fanout100", TOPIC + "fanout", scale.fanout)


Figure = Callable[[Broker, Scale], Numbers]
FIGURES: dict[str, Figure] = {
    "start": start,
    "ready": ready,
    "idle": idle,
    "sequential": sequential,
    "end_to_end": end_to_end,
    "unbatched4": unbatched4,
    "batched": batched,
    "backlog_cache": backlog_cache,
    "backlog_disk": backlog_disk,
    "topics": topics,
    "shared100": shared100,
    "fanout100": fanout100,
}
STARTS = ("start", "ready")
"""Figures of a broker that does not run yet."""
# A figure that reads what another one wrote brings it along.
NEEDS = {"backlog_disk": "batched"}

"""Shows with strace that every acknowledged entry was synced before its receipt left.

The broker runs under ``strace``; the official client publishes one message at a time, then many at
once.  Of the trace are taken: each write to a journal file with its bytes, each fdatasync of one,
and each sendmsg with its bytes.  For every SEND_RECEIPT in a sendmsg the ids of its entry must
stand in a journal write that had ended, followed by an fdatasync of that file that had ended with
0, before the sendmsg began.  Prints a table and the summary of ``strace -c``; exits 1 when a
receipt was early.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import struct
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

import pulsar
from compat_tests.conftest import official_client
from harness import wire
from harness.brokers import Broker

_CALL = re.compile(r"^(\d+) +\d+\.\d+ (\w+)\((\d+)<([^>]*)>(.*)$")
_RESUMED = re.compile(r"^(\d+) +\d+\.\d+ <\.\.\. (\w+) resumed>(.*)$")
_BYTES = re.compile(r'iov_base="((?:\\x[0-9a-f]{2})*)"')


@dataclass
class Trace:
    """What was seen so far, in the order of the trace."""

    written: dict[str, list[bytes]] = field(default_factory=dict)  # file -> not synced yet
    syncing: dict[str, list[bytes]] = field(default_factory=dict)  # pid -> what its sync covers
    durable: list[bytes] = field(default_factory=list)
    groups: int = 0
    syncs: int = 0
    sends: int = 0
    receipts: int = 0
    early: list[tuple[int, int]] = field(default_factory=list)

    def on_begin(self, pid: str, call: str, file: str, text: str) -> None:
        """A system call begins."""
        if call == "sendmsg":
            self._on_send(_payload(text))
        elif file.endswith(".journal") and call == "pwritev":
            self.groups += 1
            self.written.setdefault(file, []).append(_payload(text))
        elif file.endswith(".journal") and call == "fdatasync":
            self.syncing[pid] = self.written.pop(file, [])

    def on_end(self, pid: str, call: str, text: str) -> None:
        """A system call has returned."""
        if call == "fdatasync" and pid in self.syncing:
            covered = self.syncing.pop(pid)
            if text.rstrip().endswith("= 0"):
                self.syncs += 1
                self.durable.extend(covered)

    def _on_send(self, data: bytes) -> None:
        receipts = list(_receipts(data))
        self.sends += bool(receipts)
        for ledger_id, entry_id in receipts:
            self.receipts += 1
            needle = struct.pack(">qq", ledger_id, entry_id)
            if not any(needle in group for group in reversed(self.durable)):
                self.early.append((ledger_id, entry_id))


def _payload(text: str) -> bytes:
    """The bytes that a vector call was given."""
    return b"".join(_unhex(found) for found in _BYTES.findall(text))


def _unhex(text: str) -> bytes:
    """What strace -xx printed, which is hexadecimal for names of files too."""
    return bytes.fromhex(text.replace("\\x", "")) if "\\x" in text else text.encode()


def _receipts(data: bytes) -> list[tuple[int, int]]:
    """(ledger id, entry id) of each SEND_RECEIPT in the bytes of one sendmsg."""
    found = []
    reader = wire.FrameReader()
    for frame in reader.feed(data):
        if frame.type == wire.SEND_RECEIPT:
            found.append(wire.position(frame.data(3)))
    return found


def read_trace(file: Path) -> Trace:
    """Goes through the lines that strace wrote."""
    trace = Trace()
    with file.open() as lines:
        for line in lines:
            if (begun := _CALL.match(line)) is not None:
                pid, call, _, name, text = begun.groups()
                trace.on_begin(pid, call, _unhex(name).decode(errors="replace"), text)
                if "<unfinished" not in text:
                    trace.on_end(pid, call, text)
            elif (ended := _RESUMED.match(line)) is not None:
                trace.on_end(*ended.groups())
    return trace


def publish(url: str, singles: int, together: int) -> None:
    """One message at a time, then many without waiting."""
    client = official_client(url)
    producer = client.create_producer(
        "sync-order", batching_enabled=False, block_if_queue_full=True
    )
    for number in range(singles):
        producer.send(b"%d" % number)
    results: list[object] = []
    for number in range(together):
        # An exception in a callback would end the process: the results are looked at afterwards.
        producer.send_async(b"%d" % number, lambda result, _: results.append(result))
    producer.flush()
    client.close()
    refused = [result for result in results if result != pulsar.Result.Ok]
    assert not refused, refused[:5]


class TracedBroker(Broker):
    """Our broker under strace."""

    def __init__(self, directory: Path, options: list[str]) -> None:
        super().__init__("pyxbroker", directory)
        self._options = options

    def command(self) -> list[str]:
        return ["strace", "-f", "-I4", *self._options, *super().command()]

    def stop(self, timeout_s: float = 30.0) -> int:
        """Signals the whole group: strace itself blocks the signal, the broker stops on it."""
        assert self.process is not None
        os.killpg(self.process.pid, signal.SIGTERM)
        return self.process.wait(timeout_s)


def run(singles: int, together: int) -> int:
    """Returns the exit code."""
    if shutil.which("strace") is None:
        print("strace is missing: apt-get install strace", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch) / "trace"
        calls = "pwritev,fdatasync,sendmsg"
        options = ["-y", "-ttt", "-xx", "-s", "4194304", "-e", f"trace={calls}", "-o", str(output)]
        _serve(TracedBroker(Path(scratch) / "ordered", options), singles, together)
        trace = read_trace(output)
        summary = Path(scratch) / "summary"
        counted = ["-c", "-e", "trace=pwritev,pwrite64,fdatasync,fsync,sendmsg", "-o", str(summary)]
        _serve(TracedBroker(Path(scratch) / "counted", counted), singles, together)
        print(f"journal writes {trace.groups}, journal fdatasyncs {trace.syncs}")
        print(f"sendmsg with receipts {trace.sends}, receipts {trace.receipts}")
        print(f"receipts that left before their entry was synced: {len(trace.early)}")
        print(summary.read_text())
        complete = trace.receipts == singles + together and trace.syncs > 0
        return 0 if complete and not trace.early else 1


def _serve(broker: Broker, singles: int, together: int) -> None:
    try:
        broker.start()
        publish(broker.url, singles, together)
        broker.stop()
    finally:
        broker.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--singles", type=int, default=100, help="messages sent one at a time")
    parser.add_argument("--together", type=int, default=2000, help="messages sent at once")
    arguments = parser.parse_args()
    return run(arguments.singles, arguments.together)


if __name__ == "__main__":
    sys.exit(main())

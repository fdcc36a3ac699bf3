"""A broker that stores nothing: it shows what a load generator can do when no broker limits it.

    python -m bench.null_broker               prints its port, and serves until it is killed
    python -m bench.null_broker --ceiling     runs `pyxbroker perf produce` against it

It answers lookups, PRODUCER and each SEND. The answers to SEND come from null_broker.c.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness import wire
from harness.brokers import pyxbroker_command
from harness.preloaded import build

READ_BYTES = 4 << 20
OUT_BYTES = 1 << 20


class NullBroker:
    """Serves connections, each in a thread, until it is closed."""

    def __init__(self, directory: Path) -> None:
        library = ctypes.CDLL(str(build(Path(__file__).with_suffix(".c"), directory)))
        self._answer_sends = library.answer_sends
        self._answer_sends.restype = ctypes.c_size_t
        self._answer_sends.argtypes = [
            *(ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p, ctypes.c_size_t),
            *(ctypes.POINTER(ctypes.c_size_t), ctypes.POINTER(ctypes.c_size_t)),
        ]
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"pulsar://127.0.0.1:{self.port}"

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                one, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(one,), daemon=True).start()

    def _serve(self, one: socket.socket) -> None:
        one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = bytearray(READ_BYTES)
        out = bytearray(OUT_BYTES)
        data_at = ctypes.addressof((ctypes.c_char * len(data)).from_buffer(data))
        out_at = ctypes.addressof((ctypes.c_char * len(out)).from_buffer(out))
        view, used, needed = memoryview(data), ctypes.c_size_t(), ctypes.c_size_t()
        begin = end = 0
        with one, contextlib.suppress(ConnectionError):
            while count := one.recv_into(view[end:]):
                end += count
                while True:
                    begin += self._answer_sends(
                        *(data_at + begin, end - begin, out_at, len(out)),
                        *(ctypes.byref(used), ctypes.byref(needed)),
                    )
                    if used.value:
                        one.sendall(memoryview(out)[: used.value])
                        continue
                    size = 4 + int.from_bytes(data[begin : begin + 4], "big")
                    if end - begin < 10 or end - begin < size:
                        break
                    if data[begin + 9] == wire.SEND and needed.value:
                        break
                    frame = wire.parse_frame(bytes(view[begin + 4 : begin + size]))
                    one.sendall(_answer(frame, self.url))
                    begin += size
                if begin == end:
                    begin = end = 0
                elif len(data) - end < 2 << 20:
                    data[: end - begin] = data[begin:end]
                    begin, end = 0, end - begin


def _answer(frame: wire.Frame, url: str) -> bytes:
    request = frame.number(2) if frame.type in (wire.LOOKUP, wire.PARTITIONED_METADATA) else 0
    answers: dict[int, tuple[int, dict[int, Any]]] = {
        wire.CONNECT: (wire.CONNECTED, {1: "null", 2: 21, 3: 5 << 20}),
        wire.PARTITIONED_METADATA: (wire.PARTITIONED_METADATA_RESPONSE, {1: 0, 2: request, 3: 0}),
        wire.LOOKUP: (wire.LOOKUP_RESPONSE, {1: url, 3: 1, 4: request, 5: 1}),
        wire.PRODUCER: (
            wire.PRODUCER_SUCCESS,
            {1: frame.number(3), 2: f"null-{frame.number(2)}", 3: wire.MAX_UINT64, 4: b""},
        ),
        wire.PING: (wire.PONG, {}),
    }
    kind, fields = answers[frame.type]
    return wire.command(kind, fields)


def on_core(choose: Callable[[set[int]], int]) -> list[str]:
    """The beginning of a command line that runs on one core."""
    return ["taskset", "-c", str(choose(os.sched_getaffinity(0)))]


def measure(url: str, options: list[str], seconds: float) -> dict[str, float]:
    """Run `perf produce` on the last core; return its rate, CPU and latencies."""
    with tempfile.TemporaryDirectory() as directory:
        result = Path(directory) / "result.json"
        command = [
            *on_core(max),
            *pyxbroker_command(),
            "perf",
            "produce",
            "null",
            "-u",
            url,
            "--rate",
            "max",
        ]
        command += ["-time", str(seconds), "--json", str(result), "--interval", "0", *options]
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
        )
        whole = json.loads(result.read_text())
        group = whole["groups"][0]
        return {"rate": group["rate"], "cpu_share": whole["cpu_share"], **group["latency_ms"]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ceiling", action="store_true")
    parser.add_argument("--seconds", type=float, default=5.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        if not options.ceiling:
            broker = NullBroker(Path(directory))
            print(broker.url, flush=True)
            threading.Event().wait()
        serving = subprocess.Popen(
            [*on_core(min), sys.executable, "-m", "bench.null_broker"],
            stdout=subprocess.PIPE,
            text=True,
        )
        try:
            assert serving.stdout is not None
            url = serving.stdout.readline().strip()
            for name, more in (
                ("batched, 1 KiB", []),
                ("unbatched, 1 KiB", ["--disable-batching"]),
                ("unbatched, 128 B", ["--disable-batching", "--size", "128"]),
            ):
                found = measure(url, more, options.seconds)
                print(
                    f"{name:20} {found['rate']:12,.0f} msg/s  p50 {found['p50']:.3f} ms"
                    f"  {found['cpu_share']:.0%} of a core"
                )
        finally:
            serving.kill()
            serving.wait()
    return 0


if __name__ == "__main__":
    sys.exit(main())

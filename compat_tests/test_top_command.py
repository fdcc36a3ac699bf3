"""`pyxbroker top` against a broker with load: one page, and a terminal with keys."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Iterator
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker, free_ports

pytestmark = pytest.mark.pyxbroker
RATE = 200


def top(broker: Broker, *words: str) -> list[str]:
    return [sys.executable, "-m", "pyxbroker", "top", "--admin-url", broker.web_url, *words]


@pytest.fixture
def load(client: pulsar.Client, topic: str) -> Iterator[str]:
    """A topic with 200 messages per second and a subscription that acknowledges none."""
    consumer = client.subscribe(topic, "slow", receiver_queue_size=10, consumer_name="sleeper")
    producer = client.create_producer(topic, batching_enabled=False, producer_name="sender")
    ended = threading.Event()

    def send() -> None:
        while not ended.wait(1 / RATE):
            producer.send_async(b"x" * 100, lambda *_: None)

    thread = threading.Thread(target=send)
    thread.start()
    yield topic
    ended.set()
    thread.join()
    producer.flush()
    consumer.close()


def once(broker: Broker, *words: str) -> str:
    done = subprocess.run(
        top(broker, "--once", "--interval", "1", *words),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout


def test_one_page_shows_the_load_without_a_terminal(broker: Broker, load: str) -> None:
    found: dict[str, Any] = json.loads(once(broker, "--output", "json"))
    [row] = [each for each in found["topics"] if each["topic"] == load]
    assert 20 < row["messages_in_rate"] <= RATE * 1.1
    assert (row["producers"], row["subscriptions"]) == (1, 1)
    [row] = [each for each in found["subscriptions"] if each["topic"] == load]
    assert row["subscription"] == "slow" and row["backlog"] > 20
    assert 0 <= row["unacknowledged"] <= 10
    [row] = found["brokers"]
    assert row["broker"] == broker.web_url.partition("://")[2]
    assert row["connections"] >= 1 and row["memory_bytes"] > 1e6 and row["loop_p99_s"] > 0
    text = once(broker, "--sort", "backlog", "--rows", "1")
    assert text.startswith("pyxbroker top: 1 broker, in ")
    [line] = re.findall(rf"^{re.escape(load)} .*$", text, re.MULTILINE)
    assert re.fullmatch(rf"{re.escape(load)} +\d+ +\S+ +\d+ +1 +1 +\S+ +\S+ +\S+", line)
    assert re.search(rf"^slow {re.escape(load)} ", text, re.MULTILINE)


class Terminal:
    """A process on a pseudo-terminal of 30 lines and 140 columns."""

    def __init__(self, words: list[str], kind: str = "xterm") -> None:
        self._main, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 140, 0, 0))
        self._before = termios.tcgetattr(other)
        self._other = other
        # Curses prefers these to the size of the terminal.
        env = {name: each for name, each in os.environ.items() if name not in ("LINES", "COLUMNS")}
        self.process = subprocess.Popen(
            # A shell's background job ignores Ctrl-C, and its children would.
            ["env", "--default-signal=INT", *words],
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            env=env | {"TERM": kind},
        )
        self._shown = b""

    def press(self, keys: str) -> None:
        self._shown = b""
        os.write(self._main, keys.encode())

    def wait_for(self, text: str, timeout_s: float = 20.0) -> None:
        """Wait until a text is painted after the last key."""
        deadline = time.monotonic() + timeout_s
        os.set_blocking(self._main, False)
        while text.encode() not in self._shown:
            assert time.monotonic() < deadline, self._shown.decode(errors="replace")
            with contextlib.suppress(BlockingIOError):
                self._shown += os.read(self._main, 65536)
            time.sleep(0.01)

    def is_restored(self) -> bool:
        return bool(termios.tcgetattr(self._other)[3] == self._before[3])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._main)
        os.close(self._other)


@pytest.fixture
def terminal(broker: Broker) -> Iterator[Terminal]:
    one = Terminal(top(broker, "--interval", "0.3"))
    yield one
    one.close()


def test_keys_sort_filter_and_drill_down(broker: Broker, load: str, terminal: Terminal) -> None:
    terminal.wait_for("TOPICS by rate in")
    terminal.wait_for(load)
    terminal.press("b")
    terminal.wait_for("backlog")
    terminal.press("\t")
    terminal.wait_for("SUBSCRIPTION")
    terminal.wait_for("slow")
    terminal.press("/none of them\r")
    terminal.wait_for("none of them")
    terminal.press("\x1b")
    terminal.wait_for("slow")
    terminal.press(f"/{load}\r\r")
    terminal.wait_for("sender")
    terminal.wait_for("sleeper")
    terminal.press("\x1b")
    terminal.wait_for("BROKER")
    terminal.press("q")
    assert terminal.process.wait(20) == 0
    assert terminal.is_restored()


def test_ctrl_c_restores_the_terminal(terminal: Terminal) -> None:
    terminal.wait_for("TOPICS")
    os.killpg(terminal.process.pid, signal.SIGINT)
    assert terminal.process.wait(20) == 130
    assert terminal.is_restored()


def test_an_unknown_terminal_is_named(broker: Broker) -> None:
    one = Terminal(top(broker), "nonsense")
    one.wait_for("pyxbroker: TERM is 'nonsense', an unknown terminal: set it, or use --once.")
    assert one.process.wait(20) == 2
    one.close()


def test_without_a_terminal_or_a_broker_one_sentence_says_why(broker: Broker) -> None:
    [port] = free_ports(1)
    for words, status, sentence in (
        ([], 2, "use --once"),
        (["--once", "--admin-url", f"http://127.0.0.1:{port}"], 1, "that the broker runs"),
        (["--once", "--admin-url", "pulsar://x"], 2, "expected http://"),
    ):
        done = subprocess.run(
            top(broker, *words),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert done.returncode == status
        assert sentence in done.stderr and "Traceback" not in done.stderr

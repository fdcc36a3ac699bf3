"""A run of a `pyxbroker client` command: its connection, Ctrl-C and what it prints on stderr."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import sys
import time
from argparse import ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable
from typing import NoReturn

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.topic_name import TopicName
from pyxbroker.cli import INTERRUPTED, Parser, fail
from pyxbroker.cli.connecting import check_service_url, client_settings, failure
from pyxbroker.cli.login_options import add_login_options, add_service_url, complete
from pyxbroker.client.client import Client
from pyxbroker.client.errors import ClientError
from pyxbroker.client.settings import ClientSettings

PROGRESS_AFTER_S = 1.0


class UsageError(Exception):
    """Options, or what they name, cannot be used. The command exits with status 2."""


class InputError(Exception):
    """The input cannot be sent, or a message cannot be shown. The command exits with status 1."""


def parser_of(name: str, about: str, arguments: str = "[OPTIONS] TOPIC") -> Parser:
    """Return a parser with the topic and the options of the connection."""
    parser = Parser(f"client {name}", about, arguments)
    parser.add_argument("topic", metavar="TOPIC", help="The topic, or one of its partitions.")
    add = parser.options.add_argument
    add_service_url(parser, "--url")
    add("--listener-name", metavar="NAME", help="The advertised listener of brokers to use.")
    add_login_options(parser)
    add("-ml", "--memory-limit", help="Accepted for scripts of pulsar-client; without effect.")
    return parser


class Counts:
    """The messages of a run so far, and a line about them on stderr if that is a terminal."""

    def __init__(self, done: str, is_shown: bool) -> None:
        """done: "produced" or another participle."""
        self.messages = 0
        self._done = done
        self._is_shown = is_shown and sys.stderr.isatty()
        self._started_at = time.monotonic()
        self._has_line = False

    def sentence(self) -> str:
        """Return the line of pulsar-client about what was done."""
        return f"{self.messages} messages successfully {self._done}"

    async def show(self) -> None:
        """Refresh the line each second."""
        while self._is_shown:
            await asyncio.sleep(PROGRESS_AFTER_S)
            passed_s = time.monotonic() - self._started_at
            rate = self.messages / passed_s
            text = f"\r{self.messages} messages {self._done}, {rate:.0f}/s, {passed_s:.0f} s\x1b[K"
            print(text, end="", file=sys.stderr, flush=True)
            self._has_line = True

    def clear(self) -> None:
        """Remove the line, so that the next text begins in its place."""
        if self._has_line:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._has_line = False


def run(
    options: Namespace,
    counts: Counts,
    check: Callable[[Namespace], None],
    work: Callable[[Client], Awaitable[None]],
) -> None:
    """Check the options, connect and do the work of a command. Exits with a sentence if it fails.

    Ctrl-C cancels the work, which may take a moment to end; the second one ends the process.
    """
    complete(options)
    url = options.service_url
    check_service_url(url, "--url")
    settings = client_settings(options, url, listener=options.listener_name or "")
    try:
        TopicName.get(options.topic)
        check(options)
        asyncio.run(_run(settings, counts, work))
    except asyncio.CancelledError:
        _end(counts, f"Interrupted: {counts.sentence()}", INTERRUPTED)
    except (UsageError, InvalidTopicName) as error:
        _end(counts, str(error), 2 if isinstance(error, UsageError) else 1)
    except InputError as error:
        _end(counts, _with_counts(str(error), counts))
    except ClientError as error:
        _end(counts, _with_counts(failure(settings, error), counts))
    except BaseException:
        counts.clear()
        raise
    counts.clear()


async def _run(
    settings: ClientSettings, counts: Counts, work: Callable[[Client], Awaitable[None]]
) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    loop.add_signal_handler(signal.SIGINT, _interrupt, task)
    progress = asyncio.ensure_future(counts.show())
    try:
        async with Client(settings) as client:
            # A wrong URL is reported without the time of the retries.
            await client.pool.to_service()
            await work(client)
    finally:
        progress.cancel()
        loop.remove_signal_handler(signal.SIGINT)


def _interrupt(task: asyncio.Task[None]) -> None:
    task.cancel()
    asyncio.get_running_loop().remove_signal_handler(signal.SIGINT)  # the next one ends the process


def _with_counts(text: str, counts: Counts) -> str:
    return f"{text.rstrip('.')}; {counts.sentence()}" if counts.messages else text


def _end(counts: Counts, sentence: str, status: int = 1) -> NoReturn:
    counts.clear()
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    fail(sentence, status)


class Pace:
    """The moments of messages at a rate; the first call of `wait` is the first moment."""

    def __init__(self, rate: float) -> None:
        """rate: messages per second; 0: no limit."""
        self._interval_s = 1 / rate if rate > 0 else 0.0
        self._next = 0.0

    async def wait(self) -> None:
        """Wait for the next message's moment."""
        if not self._interval_s:
            return
        now = time.monotonic()
        self._next = (self._next or now) + self._interval_s
        delay_s = self._next - self._interval_s - now
        if delay_s > 0:
            await asyncio.sleep(delay_s)


_NUMBER = re.compile(r"\d{1,16}")


def milliseconds(text: str) -> int:
    """Return a time in ms since 1970: a number of them, `now`, or ISO 8601. For argparse."""
    if _NUMBER.fullmatch(text):
        return int(text)
    if text == "now":
        return time.time_ns() // 1_000_000
    from datetime import datetime

    # Python 3.10 does not know the Z of UTC.
    try:
        moment = datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
        found = int(moment.timestamp() * 1000)
    except (ValueError, OverflowError):
        found = -1
    if found < 0:
        raise ArgumentTypeError(
            f"{text!r} is not a time: expected ms since 1970, now, or ISO 8601 such as"
            " 2026-07-01T12:00:00Z."
        )
    return found

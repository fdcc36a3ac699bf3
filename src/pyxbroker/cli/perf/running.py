"""Runs groups of producers and consumers, prints their numbers and writes files."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import signal
import sys
from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import uvloop

from pyxbroker.cli import fail
from pyxbroker.cli.connecting import failure
from pyxbroker.cli.perf.options import client_settings
from pyxbroker.client.errors import ClientError
from pyxbroker.perf.groups import Group
from pyxbroker.perf.load_run import LoadRun, RunSettings
from pyxbroker.perf.page import page
from pyxbroker.perf.results import (
    NeedsLibrary,
    group_result,
    import_hdrhistogram,
    progress_line,
    summary_lines,
    write_histogram_log,
)

SIGNALS = (signal.SIGINT, signal.SIGTERM)
BUSY_SHARE = 0.9
"""The share of a core above which the load generator is named as the possible limit."""


def run(
    options: Namespace,
    title: str,
    groups: Sequence[Group],
    seconds: float,
    warm_up_s: float = 0.0,
    ack_delay_s: float = 0.1,
) -> dict[str, Any]:
    """Run groups and print their numbers. Returns the result as JSON has it.

    SIGINT and SIGTERM end the measurement early. Exits on errors; if a connection is lost, after
    the numbers until then.
    """
    _check_files(options)
    progress = _Progress(options.interval)
    settings = RunSettings(
        seconds, warm_up_s, options.max_connections, ack_delay_s, progress.on_sample
    )
    client = client_settings(options)
    made = LoadRun(client, groups, settings)
    lost: ClientError | None = None
    try:
        uvloop.run(_run(made))
    except ClientError as error:
        if not made.is_open:
            fail(failure(client, error))
        lost = error
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    finally:
        progress.end()
    for numbers in made.numbers:
        for line in summary_lines(numbers):
            print(line)
    if made.refusal is not None:
        print(f"The broker refused messages: {made.refusal}", file=sys.stderr)
    if made.cpu_share > BUSY_SHARE:
        print(
            f"The load generator used {made.cpu_share:.0%} of a core: it may be the limit. Run"
            " several processes at the same time.",
            file=sys.stderr,
        )
    if lost is not None:
        fail(f"The run has ended early: {lost}")
    result = {
        "title": title,
        "cpu_share": round(made.cpu_share, 3),
        "service_url": options.service_url,
        "interrupted": made.is_stopped,
        "groups": [group_result(numbers) for numbers in made.numbers],
    }
    if options.histogram_file is not None:
        for index, numbers in enumerate(made.numbers):
            path = options.histogram_file
            write_histogram_log(
                path if index == 0 else path.with_name(f"{path.name}.{index}"), numbers
            )
    return result


def _check_files(options: Namespace) -> None:
    """Exit if a file of the results cannot be written."""
    if options.histogram_file is not None:
        try:
            import_hdrhistogram()
        except NeedsLibrary as error:
            fail(str(error))
    for path in (options.json, options.html, options.histogram_file):
        if path is not None:
            try:
                path.open("a").close()
            except OSError as error:
                fail(f"{path} cannot be written: {error.strerror}")


def write_files(options: Namespace, results: Sequence[dict[str, Any]]) -> None:
    """Write the results of one run, or of several, to the files that the options name."""
    try:
        if options.json is not None:
            whole = results[0] if len(results) == 1 else list(results)
            options.json.write_text(json.dumps(whole, indent=1) + "\n")
        if options.html is not None:
            options.html.write_text(page(results))
    except OSError as error:
        fail(f"The results cannot be written: {error.strerror}")


async def _run(made: LoadRun) -> None:
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None

    def interrupt() -> None:
        made.stop()
        if not made.is_measuring:
            task.cancel()
        for each in SIGNALS:  # the next one ends the process
            loop.remove_signal_handler(each)

    for each in SIGNALS:
        with contextlib.suppress(ValueError):  # not in the main thread
            loop.add_signal_handler(each, interrupt)
    # A collection of garbage would delay messages; the hot path creates no cycles.
    gc.disable()
    try:
        await made.run()
    finally:
        gc.enable()


class _Progress:
    """A line per interval on stdout, and in a terminal a line that changes each second."""

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._printed = 0
        self._is_terminal = sys.stderr.isatty()
        self._has_line = False

    def on_sample(self, run: LoadRun) -> None:
        done = len(run.numbers[0].samples)
        if self._is_terminal:
            parts = []
            for numbers in run.numbers:
                last = numbers.samples[-1]
                parts.append(
                    f"{numbers.group.name} {last.messages / last.seconds:,.0f}/s"
                    f" p99 {last.latencies_us[2] / 1000:.1f} ms"
                )
            print(f"\r\x1b[K{done:4d}  {', '.join(parts)}", end="", file=sys.stderr, flush=True)
            self._has_line = True
        new = run.numbers[0].samples[self._printed :]
        if self._interval_s and sum(each.seconds for each in new) >= self._interval_s - 0.5:
            self.end()
            for numbers in run.numbers:
                print(progress_line(numbers, numbers.samples[self._printed :]), flush=True)
            self._printed = done

    def end(self) -> None:
        """Remove the line of the terminal."""
        if self._has_line:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            self._has_line = False

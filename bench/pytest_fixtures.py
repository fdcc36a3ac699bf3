"""Fixtures of `pyxbroker.testing`: the start of a broker, and tests with a namespace each.

    python -m bench.pytest_fixtures --tests 200 --workers 4

Prints how long a broker takes until it is ready, the wall time of a pytest run with pytest-xdist,
and what the run has left behind: processes and files.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import NamedTuple

import psutil

from pyxbroker.testing import broker

TEST = """
import pulsar
import pytest

QUIET = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)

@pytest.mark.parametrize("number", range({tests}))
def test_a_message_is_received(pulsar_namespace, number):
    client = pulsar.Client(pulsar_namespace.service_url, logger=QUIET)
    consumer = client.subscribe(pulsar_namespace.topic("orders"), "shop")
    client.create_producer(pulsar_namespace.topic("orders")).send(b"%d" % number)
    message = consumer.receive(20_000)
    assert message.data() == b"%d" % number
    consumer.acknowledge(message)
    client.close()
"""


class Run(NamedTuple):
    """The result of a pytest run."""

    wall_s: float
    tests_ms: list[float]  # each with its setup and teardown
    processes: list[str]  # left behind
    files: list[str]


def run_tests(tests: int, workers: int, directory: Path) -> Run:
    """Run tests with a namespace each, in an empty directory. Raises CalledProcessError."""
    (directory / "test_orders.py").write_text(TEST.format(tests=tests))
    report = directory / "report.xml"
    temporary = directory / "tmp"
    temporary.mkdir()
    line = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", str(workers)]
    line += [f"--junitxml={report}", "-o", "junit_duration_report=total", "--rootdir=."]
    began = time.monotonic()
    subprocess.run(
        [*line, "-c", os.devnull, "test_orders.py"],
        cwd=directory,
        env=os.environ | {"TMPDIR": str(temporary), "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    wall_s = time.monotonic() - began
    cases = list(ElementTree.parse(report).iter("testcase"))
    assert len(cases) == tests, cases
    lines = (" ".join(each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"]))
    return Run(
        wall_s,
        [float(each.attrib["time"]) * 1000 for each in cases],
        [each for each in lines if str(temporary) in each],
        [str(each) for each in temporary.glob("pyxbroker*")],
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", type=int, default=200)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--starts", type=int, default=20)
    options = parser.parse_args()
    starts_ms: list[float] = []
    for _ in range(options.starts):
        began = time.monotonic()
        with broker():
            starts_ms.append((time.monotonic() - began) * 1000)
    print(f"broker ready: median {statistics.median(starts_ms):.0f} ms of {options.starts}")
    with tempfile.TemporaryDirectory() as directory:
        run = run_tests(options.tests, options.workers, Path(directory))
    print(
        f"{options.tests} tests on {options.workers} workers: {run.wall_s:.1f} s,"
        f" median of a test {statistics.median(run.tests_ms):.0f} ms,"
        f" left behind: {len(run.processes)} processes, {len(run.files)} files"
    )


if __name__ == "__main__":
    main()

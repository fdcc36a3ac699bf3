"""`pyxbroker admin` runs the command lines of test_java_pulsaradmin.py and prints what they print.

The record has what pulsar-admin (Java) printed against Apache Pulsar 4.2.4. BROKER=apache runs the
lines against that.
"""

from __future__ import annotations

import contextlib
import io
import re
import resource
import subprocess
from pathlib import Path

import pytest
from harness.brokers import Broker, pyxbroker_command
from harness.java_admin import Done

from compat_tests.pulsaradmin import Recorded, answers, is_equal, reason_of, recorded
from pyxbroker import cli

pytestmark = pytest.mark.slow(10)

BROKER_SETTINGS = {"brokerDeleteInactiveTopicsFrequencySeconds": "3600"}
CPU_MAX_S = 0.15

# Groups that need a part that the broker does not have.
MISSING = re.compile(r"^(packages|functions|functions-worker|sources|sinks|proxy-stats) ")
# Lines that print something else, and why.
DIFFERENCES = {
    r"^namespaces set-allowed-topic-properties-for-metrics ": "neither tool has the command",
    r"^namespaces set-subscription-expiration-time NS -t 3h$": "refused by both, in other words",
    r"^namespaces get-anti-affinity-namespaces ": "pulsar-admin asks a path that no broker has",
    r"^namespaces get-schema-autoupdate-strategy ": "pulsar-admin fails where none is set",
    r"^topics get-shadow-topics ": "pulsar-admin fails where there are none",
    r"^(namespaces|topicPolicies) get-offload-policies ": "pulsar-admin adds fields of its own",
    r"^schemas compatibility ": "pulsar-admin says nothing",
    r"^topics delete T$": "pulsar-admin ends with status 0 if a topic does not exist",
    r"^namespaces subscription-permission |^clusters get-failure-domain ": "order of a set",
    r"^topics list NS$": "order of a set",
}


class OwnAdmin:
    """Has the method of JavaAdmin; the lines run in this process."""

    def run(self, url: str, *words: str) -> Done:
        output, errors, status = io.StringIO(), io.StringIO(), 0
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            try:
                cli.main(["admin", "--admin-url", url, "--yes", *words])
            except SystemExit as ended:
                status = 1 if ended.code else 0
        return Done(status, output.getvalue(), errors.getvalue().removeprefix("pyxbroker: "))


def test_it_prints_what_pulsar_admin_prints(broker: Broker, tmp_path: Path) -> None:
    record = iter(recorded())
    wrong = []
    for line, done in answers(broker, OwnAdmin(), tmp_path):
        there = next(record)
        assert there.line == line
        if MISSING.search(line):
            assert "No such group" in done.errors
        elif not (
            is_equal(there, done) or _is_same_refusal(there, done) or _is_explained(there, done)
        ):
            wrong.append((there, done))
    assert not wrong
    assert next(record, None) is None


def _is_same_refusal(there: Recorded, done: Done) -> bool:
    """A refusal is a sentence, which ends with a full stop."""
    text = (there.text or "").strip().rstrip(".")
    return there.status == done.status == 1 and done.errors.strip().rstrip(".") == text


def _is_explained(there: Recorded, done: Done) -> bool:
    is_known = any(re.search(each, there.line) for each in DIFFERENCES)
    return is_known or reason_of(there, done) is not None


def test_a_difference_is_not_explained_by_chance() -> None:
    there = Recorded("tenants list", 0, "public")
    assert not _is_explained(there, Done(0, "private", ""))
    assert not _is_same_refusal(Recorded("tenants get x", 1, "None."), Done(1, "", "Some."))


def test_a_process_needs_little_time(broker: Broker) -> None:
    """CPU time, which other processes change less than the time that passes."""
    line = [*pyxbroker_command(), "admin", "--admin-url", broker.web_url, "tenants", "list"]
    times = []
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = subprocess.run(line, capture_output=True, text=True, check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        times.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert "public\n" in done.stdout
    assert min(times) <= CPU_MAX_S


@pytest.mark.parametrize("words", [["tenants", "get", "none-such"], ["tenants", "nonsense"]])
def test_a_process_ends_with_its_status(broker: Broker, words: list[str]) -> None:
    line = [*pyxbroker_command(), "admin", "--admin-url", broker.web_url, *words]
    done = subprocess.run(line, capture_output=True, text=True, check=False)
    assert done.returncode == (1 if words[1] == "get" else 2)
    assert done.stdout == ""

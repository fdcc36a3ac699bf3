"""The marks that tests/conftest.py gives: which tests start processes, and which take long."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from harness import brokers

from marks import Starters, long_tests

TESTS = Path(__file__).parent


class Kept:
    """Starts a process in one of its methods."""

    def begin(self) -> None:
        subprocess.run([sys.executable, "--version"], check=True)


def by_itself() -> None:
    subprocess.run([sys.executable, "--version"], check=True)


def through_a_function() -> None:
    by_itself()


def through_a_class() -> None:
    Kept().begin()


def in_an_inner_function() -> None:
    def inner() -> None:
        by_itself()

    inner()


def by_a_module_of_the_tests() -> None:
    brokers.Broker("pyxbroker", Path())


def not_at_all() -> str:
    return re.escape(brokers.KINDS[0])


@pytest.mark.parametrize(
    "function",
    [
        by_itself,
        through_a_function,
        through_a_class,
        in_an_inner_function,
        by_a_module_of_the_tests,
    ],
)
def test_a_test_that_starts_a_process_is_recognised(function: Any) -> None:
    assert Starters().starts(function)


def test_a_test_that_starts_none_is_not() -> None:
    assert not Starters().starts(not_at_all)


def test_the_tests_that_take_long_exist() -> None:
    for name in long_tests():
        file, _, function = name.partition("::")
        last = function.rpartition("::")[2]
        text = (TESTS.parent / file).read_text()
        if last == "runTest":  # of a machine of Hypothesis: TestX = X.TestCase
            assert re.search(rf"^{function.partition('::')[0]} = ", text, re.MULTILINE), name
        else:
            assert re.search(rf"def {last}\(", text), name

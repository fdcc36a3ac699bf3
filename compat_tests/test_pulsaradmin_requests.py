"""`pyxbroker admin` sends the requests of Apache Pulsar's pulsar-admin for each command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from compat_tests.pulsaradmin_requests import (
    Request,
    difference_of,
    is_equal,
    ours,
    recorded,
    request_of,
    theirs,
    words_of,
)


def test_each_command_line_sends_the_requests_of_pulsar_admin(tmp_path: Path) -> None:
    wrong, explained = [], set()
    for line, requests in recorded():
        try:
            sent = ours(words_of(line, tmp_path))
        except SystemExit:
            sent = [Request("", "refused", {}, None)]
        if is_equal(requests, sent):
            continue
        why = difference_of(line)
        explained.add(why)
        if why is None:
            wrong.append((line, requests, sent))
    assert not wrong
    assert None not in explained


def test_a_wrong_request_is_noticed() -> None:
    right = [request_of("POST", "/a?force=false", {"x": ["b", "a"], "batchSize": 0})]
    assert is_equal(right, [request_of("POST", "/a", {"x": ["a", "b"]})])
    assert not is_equal(right, [request_of("POST", "/a?force=true", {"x": ["a", "b"]})])
    assert not is_equal(right, [request_of("POST", "/a", {"x": ["a"]})])
    assert not is_equal(right, [])


@pytest.mark.minutes
def test_the_record_has_what_pulsar_admin_sends(tmp_path: Path) -> None:
    rows = recorded()
    for (line, requests), found in zip(
        rows, theirs([each.line for each in rows], tmp_path), strict=True
    ):
        assert is_equal(requests, [request_of(*each) for each in found]), line

"""Metadata paths against those that a real Pulsar cluster made."""

from __future__ import annotations

import pytest

from pyxbroker.base.url_encoding import decode, encode
from pyxbroker.metadata import paths


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("my topic+ü*", "my+topic%2B%C3%BC*"),
        ("sub/1", "sub%2F1"),
        ("a-b_c.d~e", "a-b_c.d%7Ee"),
        ("100%", "100%25"),
        ("日本", "%E6%97%A5%E6%9C%AC"),
        ("", ""),
    ],
)
def test_names_are_encoded_as_java_does(name: str, encoded: str) -> None:
    assert encode(name) == encoded
    assert decode(encoded) == name


@pytest.mark.parametrize(
    ("ledger_id", "path"),
    [
        (0, "/ledgers/00/0000/L0000"),
        (12345, "/ledgers/00/0001/L2345"),
        (2**31 - 1, "/ledgers/21/4748/L3647"),
        (2**31, "/ledgers/000/0000/0021/4748/L3648"),
        (2**63 - 1, "/ledgers/922/3372/0368/5477/L5807"),
    ],
)
def test_ledgers_are_laid_out_by_their_digits(ledger_id: int, path: str) -> None:
    assert paths.ledger(ledger_id) == path
    assert paths.ledger_id(path) == ledger_id


@pytest.mark.parametrize("ledger_id", [-1, 2**63])
def test_what_is_no_ledger_id_has_no_path(ledger_id: int) -> None:
    with pytest.raises(ValueError, match="ledger id"):
        paths.ledger(ledger_id)


@pytest.mark.parametrize(
    "path", ["/ledgers", "/ledgers/00/0000", "/ledgers/available/L0000", "/ledgers/0/0000/L0000"]
)
def test_other_paths_are_no_ledgers(path: str) -> None:
    assert paths.ledger_id(path) is None


def test_the_paths_of_a_topic() -> None:
    name = "public/default/persistent/my+topic%2B%C3%BC*"
    assert paths.managed_ledger(name) == f"/managed-ledgers/{name}"
    assert paths.cursor(name, "sub/1") == f"/managed-ledgers/{name}/sub%2F1"
    assert paths.managed_ledgers("public/default") == "/managed-ledgers/public/default/persistent"
    assert (
        paths.partitioned_topic("pulsar/system", "transaction_coordinator_assign")
        == "/admin/partitioned-topics/pulsar/system/persistent/transaction_coordinator_assign"
    )


def test_the_paths_of_bookies() -> None:
    assert paths.cookie("127.0.0.1:3181") == "/ledgers/cookies/127.0.0.1:3181"
    assert paths.long_ledger_id_prefix(1) == "/ledgers/idgen-long/HOB-0000000001/ID-"

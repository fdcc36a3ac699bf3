"""The writer of a ledger on an ensemble, by hand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from pyxbroker.entry import EntryRun
from pyxbroker.ledger.bookie import DISCONNECTED, FENCED, TIMED_OUT, UNAUTHORIZED
from pyxbroker.ledger.errors import LedgerFenced, NotEnoughBookies, WrongPassword
from pyxbroker.ledger.metadata import LedgerMetadata, VersionedLedgerMetadata
from pyxbroker.ledger.writer import (
    Action,
    Confirm,
    Fail,
    FindBookies,
    LedgerWriter,
    Member,
    ReadMetadata,
    Send,
    WriteMetadata,
)
from simulate_ledger import ModelRun

NAMES = ("a", "b", "c")


def writer_of(
    ensemble: int = 3, write: int = 3, ack: int = 2, delays: bool = False
) -> LedgerWriter:
    metadata = LedgerMetadata(ensemble, write, ack, {0: NAMES[:ensemble]})
    return LedgerWriter(7, metadata, 5, delays)


def append(writer: LedgerWriter, count: int = 1) -> tuple[EntryRun, tuple[Member, ...]]:
    run = cast(EntryRun, ModelRun(count))
    return run, writer.append(run)


def sends(actions: Sequence[Action | Member]) -> list[tuple[int, str]]:
    return [(each.slot, each.bookie_id) for each in actions if isinstance(each, Send | Member)]


def test_a_run_is_confirmed_by_its_ack_quorum_and_in_order() -> None:
    writer = writer_of()
    first, actions = append(writer, 2)
    assert sends(actions) == [(0, "a"), (1, "b"), (2, "c")]
    second, _ = append(writer)
    assert writer.on_acked(0, 2, 2) == ()
    assert writer.on_acked(1, 2, 2) == ()
    assert writer.on_acked(2, 0, 1) == ()
    assert writer.on_acked(0, 0, 1) == [first, second]
    assert writer.on_acked(0, 0, 1) == ()


def test_a_striped_run_goes_to_the_bookies_of_its_write_sets() -> None:
    writer = writer_of(3, 2, 2)
    assert sends(append(writer)[1]) == [(0, "a"), (1, "b")]
    assert sends(append(writer)[1]) == [(1, "b"), (2, "c")]
    assert sends(append(writer, 2)[1]) == [(0, "a"), (1, "b"), (2, "c")]


def test_a_failed_bookie_is_replaced_from_the_first_unconfirmed_entry_on() -> None:
    writer = writer_of()
    first, _ = append(writer)
    writer.on_acked(0, 0, 0)
    assert writer.on_acked(1, 0, 0) == [first]
    second, _ = append(writer)
    writer.on_acked(0, 1, 1)
    assert writer.on_failed(2, 0, DISCONNECTED) == [
        FindBookies(frozenset({2}), NAMES, frozenset({"c"}))
    ]
    assert writer.on_acked(1, 1, 1) == (), "nothing is confirmed during the change"
    (write,) = writer.on_bookies_found({2: "d"})
    assert isinstance(write, WriteMetadata)
    assert write.version == 5
    assert write.metadata.ensembles == {0: NAMES, 1: ("a", "b", "d")}
    send, confirm = writer.on_metadata_written(6)
    assert isinstance(send, Send)
    assert (send.slot, send.bookie_id, send.run, send.length) == (3, "d", second, 10)
    assert confirm == Confirm(second)
    assert writer.on_failed(2, 1, TIMED_OUT) == [], "the replaced bookie does not count any more"


def test_a_bookie_that_refuses_the_password_fails_the_ledger() -> None:
    """Another bookie would refuse it as well."""
    writer = writer_of()
    append(writer)
    (fail,) = writer.on_failed(0, 0, UNAUTHORIZED)
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, WrongPassword)
    assert "another password" in str(fail.error)


def test_a_fence_ends_the_ledger() -> None:
    writer = writer_of()
    run, _ = append(writer)
    (fail,) = writer.on_failed(1, 0, FENCED)
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, LedgerFenced)
    assert writer.on_acked(0, 0, 0) == writer.on_acked(2, 0, 0) == ()
    assert writer.take_unconfirmed() == [run]


def test_a_change_that_loses_to_a_recovery_ends_the_ledger() -> None:
    writer = writer_of()
    append(writer)
    writer.on_failed(1, 0, DISCONNECTED)
    writer.on_bookies_found({1: "d"})
    assert writer.on_metadata_lost() == [ReadMetadata()]
    (fail,) = writer.on_metadata_read(VersionedLedgerMetadata(writer.metadata.in_recovery(), 6))
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, LedgerFenced)


def test_a_change_is_proposed_again_over_one_of_an_earlier_segment() -> None:
    writer = writer_of()
    run, _ = append(writer)
    for slot in (0, 1):
        writer.on_acked(slot, 0, 0)
    append(writer)
    writer.on_failed(1, 1, DISCONNECTED)
    writer.on_bookies_found({1: "d"})
    writer.on_metadata_written(6)
    writer.on_failed(0, 1, DISCONNECTED)
    writer.on_bookies_found({0: "e"})
    writer.on_metadata_lost()
    replicated = writer.metadata.with_ensemble(0, ("x", "b", "c"))
    (write,) = writer.on_metadata_read(VersionedLedgerMetadata(replicated, 9))
    assert isinstance(write, WriteMetadata)
    assert write.version == 9
    assert write.metadata.ensembles == {0: ("x", "b", "c"), 1: ("e", "d", "c")}
    assert run.first_entry_id == 0


def test_without_a_spare_bookie_the_rest_of_the_ack_quorum_goes_on() -> None:
    writer = writer_of()
    first, _ = append(writer)
    writer.on_failed(2, 0, DISCONNECTED)
    writer.on_acked(0, 0, 0)
    writer.on_acked(1, 0, 0)
    assert writer.on_bookies_found({}) == [Confirm(first)]
    second, actions = append(writer)
    assert sends(actions) == [(0, "a"), (1, "b")]
    assert writer.retry() == [FindBookies(frozenset({2}), NAMES, frozenset())]
    writer.on_bookies_found({2: "d"})
    assert sends(writer.on_metadata_written(6)) == [(3, "d")]
    writer.on_acked(3, 1, 1)
    assert writer.on_acked(0, 1, 1) == [second]


def test_without_a_bookie_for_the_ack_quorum_the_ledger_fails() -> None:
    writer = writer_of()
    append(writer)
    writer.on_failed(2, 0, DISCONNECTED)
    writer.on_failed(1, 0, DISCONNECTED)
    (fail,) = writer.on_bookies_found({})
    assert isinstance(fail, Fail)
    assert isinstance(fail.error, NotEnoughBookies)
    assert "ack quorum of 2: 2 of its 3 bookies failed" in str(fail.error)


def test_a_delayed_change_waits_until_an_entry_lacks_its_ack_quorum() -> None:
    writer = writer_of(delays=True)
    first, _ = append(writer)
    assert writer.on_failed(2, 0, TIMED_OUT) == []
    assert sends(append(writer)[1]) == [(0, "a"), (1, "b"), (2, "c")], "it may be well again"
    writer.on_acked(0, 0, 0)
    assert writer.on_acked(1, 0, 0) == [first]
    assert writer.on_failed(1, 1, TIMED_OUT) == [], "the third bookie was not asked in vain yet"
    append(writer)
    assert writer.on_failed(2, 1, TIMED_OUT) == [
        FindBookies(frozenset({1, 2}), NAMES, frozenset({"b", "c"}))
    ]

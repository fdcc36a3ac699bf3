"""The judge of a cluster: what keeps all promises passes, and nothing else does."""

from __future__ import annotations

import pytest

from torture.broker_faults import WEIGHTS
from torture.broker_faults import plan as plan_brokers
from torture.cluster_faults import Fault, Round, plan
from torture.cluster_judge import (
    KEYS,
    Message,
    Place,
    ReceiptClock,
    SubscriptionRecord,
    TopicRecord,
    excess_s,
    sender_of,
)
from torture.model import body_of


def body(number: int, producer: str = "p") -> bytes:
    return body_of(producer, number, 100)


def stored(*numbers: int) -> list[tuple[Place, bytes]]:
    return [((1, entry, 0), body(number)) for entry, number in enumerate(numbers)]


def record(*numbers: int, is_deduplicated: bool = True) -> TopicRecord:
    """Return a topic whose producer has receipts for messages at entries 0, 1, ..."""
    receipts: dict[Message, Place] = {("p", n): (1, entry, 0) for entry, n in enumerate(numbers)}
    return TopicRecord("topic", is_deduplicated, receipts=receipts)


def test_a_topic_with_all_receipts_in_order_keeps_its_promises() -> None:
    assert record(0, 1, 2).check_read(stored(0, 1, 2)) == []


def test_a_message_without_receipt_may_be_stored() -> None:
    assert record(0, 1).check_read(stored(0, 1, 2)) == []


def test_a_resend_is_a_second_copy_only_with_deduplication() -> None:
    assert record(0, 1, is_deduplicated=False).check_read(stored(0, 1, 0, 1, 2)) == []
    assert "second copy" in record(0, 1).check_read(stored(0, 1, 0, 1, 2))[0]


@pytest.mark.parametrize(
    ("read", "problem"),
    [
        (stored(0, 1), "1 acknowledged messages lost"),
        (stored(1, 0, 2), "follows 1"),
        (stored(0, 2, 1), "not where the receipt says"),
        (stored(0, 1, 2)[::-1], "do not rise"),
        ([*stored(0, 1), ((1, 2, 0), body(2)[:-1] + b"?")], "1 damaged"),
    ],
)
def test_a_broken_promise_is_found(read: list[tuple[Place, bytes]], problem: str) -> None:
    assert any(problem in each for each in record(0, 1, 2).check_read(read))


def test_a_producer_that_batches_by_key_keeps_the_order_of_each_key() -> None:
    by_key = TopicRecord("topic", True, order="key")
    assert by_key.check_read(stored(0, KEYS, 1, KEYS + 1)) == []
    by_key = TopicRecord("topic", True, order="key")
    assert "follows" in by_key.check_read(stored(KEYS, 0))[0]


def test_a_position_whose_message_changes_is_found() -> None:
    topic = record(0)
    assert topic.check_read(stored(0, 1)) == []
    assert "positions have changed" in topic.check_read(stored(0, 2))[0]
    assert topic.check_read(stored(0, 2)) == []
    assert "positions have changed" in topic.check_read(stored(0))[0]


def test_a_receipt_of_an_owner_that_was_replaced_is_found() -> None:
    topic = TopicRecord("topic", True)
    topic.take_receipt(("p", 0), topic.newest, (7, 0, 0))
    sent_before = topic.newest
    topic.take_receipt(("p", 1), topic.newest, (9, 0, 0))
    # The receipt may be late, and a copy that is discarded has no position.
    topic.take_receipt(("p", 2), sent_before, (7, 1, 0))
    topic.take_receipt(("p", 1), topic.newest, (-1, -1, 0))
    assert topic.problems == []
    topic.take_receipt(("p", 3), topic.newest, (7, 2, 0))
    assert "two brokers acknowledge: ('p', 3) at (7, 2, 0)" in topic.problems[0]


def test_the_longest_silence_begins_with_the_fault() -> None:
    clock = ReceiptClock(1.0, long_s=0.05)
    for now in (3.0, 3.01, 4.0):
        clock.tick(now)
    assert clock.longest_s(since_s=2.5) == pytest.approx(0.99)
    assert clock.longest_s(since_s=3.9) == pytest.approx(0.1)
    assert clock.longest_s(since_s=5.0) == 0.05


def test_a_payload_names_its_sender_only_as_it_was_sent() -> None:
    assert sender_of(body(7)) == ("p", 7)
    assert sender_of(body(7) + b"x") is None
    assert sender_of(b"nothing of the kind") is None


def delivered(order: str, *numbers: int) -> SubscriptionRecord:
    subscription = SubscriptionRecord("subscription", order)
    for number in numbers:
        subscription.take(body(number), (1, 0, 0))
    return subscription


def test_redelivered_messages_do_not_break_the_order() -> None:
    assert delivered("producer", 0, 1, 2, 0, 1, 2, 3).problems == []
    assert delivered("key", 0, KEYS, 1, 0, KEYS, 2 * KEYS).problems == []
    assert delivered("none", 2, 1, 0).problems == []


def test_an_overtaken_message_is_found() -> None:
    assert "came first after" in delivered("producer", 0, 2, 1).problems[0]
    assert delivered("key", 0, 2, 1).problems == []
    assert "came first after" in delivered("key", KEYS, 0).problems[0]


def test_a_message_that_is_not_delivered_is_missing() -> None:
    subscription = delivered("none", 0, 2)
    assert subscription.missing({("p", 0), ("p", 1), ("p", 2)}) == [("p", 1)]


def test_sends_have_to_continue_from_the_fault_on_or_from_its_end_on() -> None:
    clock = ReceiptClock(1.0)
    for now in (1.1, 16.0, 16.1):
        clock.tick(now)
    [gap] = clock.gaps
    assert excess_s(gap, began_s=2.0, ended_s=12.0, has_quorum=True) == pytest.approx(14.0)
    assert excess_s(gap, began_s=2.0, ended_s=12.0, has_quorum=False) == pytest.approx(4.0)


def test_the_schedule_of_a_round_depends_on_the_seed_and_its_number() -> None:
    assert [plan(1, n, 4) for n in range(50)] == [plan(1, n, 4) for n in range(50)]
    assert plan(1, 7, 4) != plan(2, 7, 4)
    kinds = {(fault.kind, fault.target[:6]) for n in range(300) for fault in plan(1, n, 4).faults}
    assert len(kinds) == 14


def test_the_schedule_of_brokers_has_all_faults_and_never_two_of_a_link() -> None:
    rounds = [plan_brokers(1, number, 3, 3) for number in range(400)]
    assert rounds == [plan_brokers(1, number, 3, 3) for number in range(400)]
    faults = [fault for each in rounds for fault in each.faults]
    assert {fault.kind for fault in faults} == set(WEIGHTS)
    assert all(len({f.link for f in each.faults}) == len(each.faults) for each in rounds)
    # The packets that a one-way cut drops are those of the broker in some rounds only.
    one_way = [fault for fault in faults if fault.kind == "cut-one-way"]
    assert {fault.target.startswith("broker-") for fault in one_way} == {True, False}


def test_a_measured_round_has_one_fault_of_the_kinds_in_turn() -> None:
    rounds = [plan_brokers(1, number, 3, 3, ("kill", "stop")) for number in range(4)]
    assert [[f.kind for f in each.faults] for each in rounds] == [["kill"], ["stop"]] * 2
    assert all(each.is_measured for each in rounds)


def test_two_bookies_less_leave_no_quorum() -> None:
    one, other = Fault("kill", "bookie-1"), Fault("pause", "bookie-2")
    assert Round(0, (one,), 1, "kill").has_quorum(spare_bookies=1)
    assert not Round(0, (one, other), 1, "kill").has_quorum(spare_bookies=1)
    assert not Round(0, (Fault("cut", "zookeeper"),), 1, "kill").has_quorum(spare_bookies=1)

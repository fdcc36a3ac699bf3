"""What waits for something, against plain lists: adds for acks, entries for their time or their
key's turn. Numbers go to the ends of 64 bits.
"""

from __future__ import annotations

from contextlib import suppress

import driver

from oracles.key_shared import SlowKeyShared, key_hash, murmur3, owners
from oracles.quorum import SlowPendingAdds
from pyxbroker.delayed_index import DelayedIndex
from pyxbroker.keys import KeyShared, key_hash_of, murmur3_of
from pyxbroker.quorum import PendingAdds

STEPS_MAX = 80
TIME_MAX = 2**42 - 1  # ms; what is later is due then
PENDING_MAX = 2000  # the slow one looks at each
HASHES = (1, 2, 63, 64, 65, 40_000, 65_535)
SLOTS = 4


def run_adds(steps: driver.Steps) -> None:
    quorums = (steps.byte() % 34, steps.byte() % 34, steps.byte() % 34)
    if not 0 < quorums[2] <= quorums[1] <= quorums[0] <= 32:
        with suppress(ValueError):
            PendingAdds(*quorums)
            raise AssertionError(f"{quorums} are no quorums")
        return
    first = (0, 63, 10**12)[steps.byte() % 3]
    adds, slow = PendingAdds(*quorums, first), SlowPendingAdds(*quorums, first)
    for _ in range(STEPS_MAX):
        if not steps:
            break
        kind, index = steps.byte() % 4, steps.byte() % quorums[0]
        if kind == 0:
            count = steps.byte() + 1
            if slow.next - slow.first + count <= PENDING_MAX:
                assert adds.add(count) == slow.add(count)
        elif kind == 1:
            begin, end = steps.number(), steps.number()
            if steps.byte() & 1:
                begin, end = slow.first + begin % 300, slow.first + end % 300
            assert adds.on_ack(index, begin, end) == slow.on_ack(index, begin, end)
        elif kind == 2:
            adds.forget(index)
            slow.forget(index)
        else:
            begin = steps.number()
            begin = slow.first + begin % 300 if steps.byte() & 1 else begin
            try:
                adds.truncate(begin)
            except ValueError:
                assert not slow.first <= begin <= slow.next
            else:
                for each in range(begin, slow.next):
                    del slow.acks[each]
                slow.next = begin
        assert (adds.first, adds.next, adds.pending) == (slow.first, slow.next, len(slow.acks))
        assert adds.last_add_confirmed == slow.first - 1


def run_delayed(steps: driver.Steps) -> None:
    index = DelayedIndex()
    waiting: dict[tuple[int, int], int] = {}
    for _ in range(STEPS_MAX):
        if not steps:
            break
        kind = steps.byte() % 8
        if kind < 6:
            when, position = steps.number(), (steps.number(), steps.number())
            if position not in waiting:
                index.put(when, *position)
                waiting[position] = min(max(when, 0), TIME_MAX)
        elif kind == 6:
            now, count = steps.number(), steps.number()
            taken = [tuple(each) for each in index.take_due(now, count)]
            due = sorted(when for when in waiting.values() if when <= now)
            assert [waiting.pop(each) for each in taken] == due[: max(count, 0)]
        else:
            index.clear()
            waiting.clear()
        assert len(index) == len(waiting)
        assert index.next_time == min(waiting.values(), default=-1)


def run_keys(steps: driver.Steps) -> None:
    """Entries come, wait, are sent, settled and taken back, while hashes change owners."""
    ordered = bool(steps.byte() & 1)
    keys, slow = KeyShared(ordered), SlowKeyShared(ordered)
    sent: list[tuple[int, int, tuple[int, int]]] = []
    number = 0
    for _ in range(STEPS_MAX):
        if not steps:
            break
        kind, of = steps.byte() % 7, HASHES[steps.byte() % len(HASHES)]
        if kind == 0:
            ends = sorted({HASHES[steps.byte() % len(HASHES)] for _ in range(steps.byte() % 5)})
            slow.ranges = [(end, steps.byte() % (SLOTS + 1)) for end in ends]
            keys.set_owners(*owners(slow.ranges))
        elif kind <= 2:
            position = (1 + number // 20, number % 20)
            number += 1
            slot = slow.owner(of)
            if kind == 1 and slot and slow.may_be_sent(of, slot):
                keys.sent(of, slot)
                slow.held[of] += [slot] * ordered
                sent.append((of, slot, position))
            else:
                keys.put(of, *position)
                slow.waiting[of].append(position)
        elif kind == 3 and sent:
            of, slot, position = sent.pop(steps.byte() % len(sent))
            keys.settled(of, slot)
            if ordered:
                slow.held[of].remove(slot)
            if steps.byte() & 1:
                keys.put_back(of, *position)
                slow.waiting[of] = sorted([*slow.waiting[of], position])
        elif kind == 4:
            serve(keys, slow, sent, steps)
        elif kind == 5:
            ledger, first, last = steps.number(), steps.number(), steps.number()
            gone = 0
            for entries in slow.waiting.values():
                due = [each for each in entries if each[0] == ledger and first <= each[1] <= last]
                gone += len(due)
                entries[:] = [each for each in entries if each not in due]
            assert keys.drop(ledger, first, last) == gone
        assert keys.waiting == sum(map(len, slow.waiting.values()))
        for slot in range(1, SLOTS + 1):
            assert keys.has_ready(slot) == bool(slow.ready(slot))


def serve(
    keys: KeyShared,
    slow: SlowKeyShared,
    sent: list[tuple[int, int, tuple[int, int]]],
    steps: driver.Steps,
) -> None:
    """Reads what is planned for a consumer, and sends it what has its turn."""
    slot, count, gap = 1 + steps.byte() % SLOTS, steps.number(), steps.number()
    if count < 1 or gap < 0:
        return  # a dispatcher plans for at least one
    due = {each: of for of, entries in slow.ready(slot).items() for each in entries}
    plan = keys.plan(slot, count, gap)
    planned = 0
    for ledger, first, last in plan:
        assert (ledger, first) in due and (ledger, last) in due
        for entry in range(first, last + 1):
            of = due.get((ledger, entry))
            if of is None:
                continue
            planned += 1
            is_first = slow.waiting[of][0] == (ledger, entry)
            assert keys.take(of, ledger, entry) == is_first
            if is_first:
                slow.waiting[of].pop(0)
                keys.sent(of, slot)
                slow.held[of] += [slot] * slow.ordered
                sent.append((of, slot, (ledger, entry)))
    assert planned >= min(count, len(due))


def run_hashes(steps: driver.Steps) -> None:
    sequence_id = steps.number() % 2**64
    base64 = bool(steps.byte() & 1)
    texts = [steps.rest(steps.byte()) for _ in range(3)]
    which = steps.byte()
    ordering = texts[1] if which & 1 else None
    partition = texts[2] if which & 2 else None
    for data in texts:
        assert murmur3_of(data) == murmur3(data)
    for hashes in (65535, 65536):
        found = key_hash_of(texts[0], sequence_id, ordering, partition, base64, hashes)
        assert found == key_hash(texts[0], sequence_id, ordering, partition, base64, hashes)


QUEUES = (run_adds, run_delayed, run_keys, run_hashes)


def seeds() -> list[bytes]:
    """A byte that chooses what is run, and its steps."""
    mixed = bytes(byte for at in range(30) for byte in (at, at * 7 % 256, at * 3, at % 5))
    extreme = bytes(byte for at in range(30) for byte in (at, 200 + at, 205 + at, 210 + at))
    heads = (b"\x00\x03\x02\x02\x00", b"\x01", b"\x02\x01", b"\x02\x00", b"\x03")
    texts = b"\x03\x05\x00\x04name\x04\x41\x42\x43\x44\x04Zm9v\x02"
    return [texts, *(head + each for head in heads for each in (mixed, extreme, b""))]


def one_input(data: bytes) -> None:
    steps = driver.Steps(data)
    QUEUES[steps.byte() % len(QUEUES)](steps)


if __name__ == "__main__":
    driver.main(seeds, one_input)

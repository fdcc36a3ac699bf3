"""Adds of one ledger and who has acknowledged them, one Python set for each entry."""

from __future__ import annotations


class SlowPendingAdds:
    def __init__(self, ensemble: int, write_quorum: int, ack_quorum: int, next_id: int = 0) -> None:
        self.ensemble = ensemble
        self.write_quorum = write_quorum
        self.ack_quorum = ack_quorum
        self.first = next_id
        self.acks: dict[int, set[int]] = {}  # entry id -> ensemble indexes, unconfirmed entries
        self.next = next_id

    def write_set(self, entry_id: int) -> list[int]:
        return [(entry_id + i) % self.ensemble for i in range(self.write_quorum)]

    def add(self, count: int) -> int:
        first = self.next
        for _ in range(count):
            self.acks[self.next] = set()
            self.next += 1
        return first

    def on_ack(self, index: int, first: int, last: int) -> int:
        for entry_id, who in self.acks.items():
            if first <= entry_id <= last and index in self.write_set(entry_id):
                who.add(index)
        while self.first in self.acks and len(self.acks[self.first]) >= self.ack_quorum:
            del self.acks[self.first]
            self.first += 1
        return self.first - 1

    def forget(self, index: int) -> None:
        for who in self.acks.values():
            who.discard(index)

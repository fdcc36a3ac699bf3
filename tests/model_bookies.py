"""Bookies that answer as those in other processes do: late, twice, out of order, or never."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pyxbroker import _native
from pyxbroker.bookie.embedded import EmbeddedBookie
from pyxbroker.entry import Digest, EntryBatch, EntryRun
from pyxbroker.ledger.bookie import DAMAGED, DISCONNECTED, Adder, ReadCallback, Stripe
from pyxbroker.turn import Turn

MIB = 1 << 20
DELAY_MAX_S = 0.003


class ModelBookie:
    """An embedded bookie behind a model of a network; it has its own storage."""

    is_embedded = False
    holding = False

    def __init__(self, directory: Path, turn: Turn, bookie_id: str, seed: int) -> None:
        self.bookie_id = bookie_id
        self.turn = turn
        self.random = random.Random(seed)
        self.is_down = False
        self.is_damaged = False  # no entry has its digest
        self.drops = 0.0  # the share of answers that never arrive
        self.repeats = 0.2  # the share that arrive twice
        self.lost_requests: set[str] = set()  # "fence", "read": never arrive
        self.held_adds: list[Callable[[], Any]] | None = None  # requests under way
        self.held_acks: list[Callable[[], Any]] | None = None  # answers to adds under way
        self.reads = 0
        storage = _native.Storage(
            directory / "journal",
            directory / "ledgers",
            journal_file_bytes=4 * MIB,
            dirty_bytes_max=2 * MIB,
            cache_bytes_max=8 * MIB,
            entry_bytes_max=MIB,
        )
        self.inner = EmbeddedBookie(storage, turn, bookie_id, lambda full: None)

    @property
    def failure(self) -> int:
        return self.inner.failure

    def answer(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Deliver an answer as the network does."""
        chosen = self.random
        if chosen.random() < self.drops:
            return
        for _ in range(2 if chosen.random() < self.repeats else 1):
            delay_s = chosen.uniform(0, DELAY_MAX_S)
            self.turn.loop.call_later(delay_s, self.turn.run, call, *arguments)

    def add_run(
        self,
        adder: Adder,
        slot: int,
        run: EntryRun,
        last_add_confirmed: int,
        length: int,
        flags: int = 0,
        stripe: Stripe | None = None,
    ) -> bool:
        if self.is_down:
            self.answer(adder.on_adds_failed, slot, run.first_entry_id, DISCONNECTED)
            return True
        relay = _Relay(self, adder)
        if self.held_adds is not None:
            arguments = (relay, slot, run, last_add_confirmed, length, flags)
            self.held_adds.append(lambda: self.inner.add_run(*arguments))
            return False
        return self.inner.add_run(relay, slot, run, last_add_confirmed, length, flags)

    def release(self) -> None:
        """Deliver the requests and answers that were held."""
        calls = [*(self.held_adds or ()), *(self.held_acks or ())]
        self.held_adds = self.held_acks = None
        for call in calls:
            self.turn.run(call)

    def take_back(self, only: Adder | None = None) -> None: ...

    def read_cached(self, *arguments: Any) -> EntryBatch | None:
        return None

    def read(
        self,
        ledger_id: int,
        first: int,
        last: int,
        count_max: int,
        bytes_max: int,
        callback: ReadCallback,
        fencing_key: bytes | None = None,
    ) -> None:
        self.reads += 1
        if self.is_down:
            self.answer(callback, DISCONNECTED)
            return
        if "read" in self.lost_requests:
            return
        if self.is_damaged:
            self.answer(callback, DAMAGED)
            return
        asked = (ledger_id, first, last, count_max, bytes_max)
        self.inner.read(*asked, lambda result: self.answer(callback, result), fencing_key)

    def fence(self, ledger_id: int, digest: Digest, callback: Callable[[int], None]) -> None:
        if "fence" in self.lost_requests:
            return
        if self.is_down:
            self.answer(callback, DISCONNECTED)
            return
        self.inner.fence(ledger_id, digest, lambda code: self.answer(callback, code))

    def last_entry(self, ledger_id: int, callback: Callable[[int], None]) -> None:
        self.inner.last_entry(ledger_id, lambda found: self.answer(callback, found))

    def delete_ledger(self, ledger_id: int) -> None:
        self.inner.delete_ledger(ledger_id)


class _Relay:
    """Hands the answers to adds on, by the model's network."""

    def __init__(self, bookie: ModelBookie, adder: Adder) -> None:
        self.bookie = bookie
        self.adder = adder

    @property
    def digest(self) -> Digest:
        return self.adder.digest

    def on_adds_acked(self, slot: int, first: int, last: int) -> None:
        answer = partial(self.bookie.answer, self.adder.on_adds_acked, slot, first, last)
        if self.bookie.held_acks is not None:
            self.bookie.held_acks.append(answer)
        else:
            answer()

    def on_adds_failed(self, slot: int, first: int, code: int) -> None:
        self.bookie.answer(self.adder.on_adds_failed, slot, first, code)

    def on_add_taken_back(self, slot: int, run: EntryRun) -> bool:
        return False


async def closed(bookies: list[ModelBookie]) -> None:
    """Close the storages of model bookies."""
    await asyncio.gather(*(each.inner.close() for each in bookies))

"""Bugs that all tests let pass once. They are tried in every run, whatever the seed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from mutants.draw import Mutant, mutant_of
from mutants.operators import Edit
from mutants.sources import Source


class Named(NamedTuple):
    name: str
    path: str
    old: str
    new: str


NAMED = (
    Named(
        "early when dealt to many",
        "src/pyxbroker/delivery.pyx",
        "        if delayed is not None and peek.deliver_at_time > delayed.now:\n"
        "            delayed.add(",
        "        if delayed is not None and peek.deliver_at_time > delayed.now + 50:\n"
        "            delayed.add(",
    ),
    Named(
        "early when sent to one",
        "src/pyxbroker/delivery.pyx",
        "            if delayed is not None and peek.deliver_at_time > delayed.now:\n"
        "                delayed.add(",
        "            if delayed is not None and peek.deliver_at_time > delayed.now + 50:\n"
        "                delayed.add(",
    ),
    Named(
        "node before the ledger",
        "src/pyxbroker/mledger/cursor.py",
        "                await ledger.write(self.acks, self.position_properties, urgent=True)\n"
        "                await self._write_node(ledger.ledger_id)\n",
        "                await self._write_node(ledger.ledger_id)\n"
        "                await ledger.write(self.acks, self.position_properties, urgent=True)\n",
    ),
    Named(
        "no limit of frames before CONNECT",
        "src/pyxbroker/connection.pyx",
        "            if not self.established and HANDSHAKE_FRAME_BYTES_MAX < frame_bytes_max:\n",
        "            if False and HANDSHAKE_FRAME_BYTES_MAX < frame_bytes_max:\n",
    ),
    Named(
        "any number of commands under way",
        "src/pyxbroker/broker/commands/handlers.py",
        "            if len(tasks) == COMMANDS_MAX:\n",
        "            if False and len(tasks) == COMMANDS_MAX:\n",
    ),
    Named(
        "brokerMaxConnections ignored",
        "src/pyxbroker/broker/broker_port.py",
        "        if not limit or broker.connection_count < limit:\n",
        "        if True or not limit or broker.connection_count < limit:\n",
    ),
    Named(
        "no counter of journal bytes",
        "src/bookie_native/module.c",
        "FIELD(journal_bytes),",
        "",
    ),
    Named(
        "no counter of disk reads",
        "src/bookie_native/module.c",
        "FIELD(disk_reads),",
        "",
    ),
    Named(
        "metadata not synced",
        "src/pyxbroker/metadata/database.py",
        '"PRAGMA synchronous=FULL"',
        '"PRAGMA synchronous=NORMAL"',
    ),
)


def named_mutants(root: Path, named: tuple[Named, ...] = NAMED) -> Iterator[Mutant]:
    for each in named:
        source = Source(each.path, (root / each.path).read_text())
        if source.text.count(each.old) != 1:
            raise SystemExit(f"mutants: {each.path} has no one place for: {each.name}")
        start = source.text.index(each.old)
        function = source.function_at(source.line_of(start))
        edit = Edit("named", start, start + len(each.old), each.new, function)
        yield mutant_of(source, edit, each.name)

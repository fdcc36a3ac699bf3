"""`pyxbroker ledgers`: work on the ledgers of a cluster.

`copy` moves a stopped standalone to a cluster (cluster/copying.py does the work). Exit codes are
the usual ones; a dry run that finds a reason against the copy exits with 1.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyxbroker.base.log import configure
from pyxbroker.base.properties import ConfigError
from pyxbroker.bookie.errors import DataError
from pyxbroker.cli import INTERRUPTED, Group, Parser, fail, print_waiting
from pyxbroker.cli.data_directory import DataDirectoryError, lock_used
from pyxbroker.metadata.store import MetadataError
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.roles.standalone_copy import Copying, CopyPlaces, Plan, Progress

ABOUT = """\
Move the ledgers of a standalone to a cluster on ZooKeeper and BookKeeper.
"""

EXAMPLES = """\
Examples:
  pyxbroker ledgers copy --from /srv/pulsar --to zk:zk1:2181 --cluster east            show the plan
  pyxbroker ledgers copy --from /srv/pulsar --to zk:zk1:2181 --cluster east --apply    copy it
"""

PROGRESS_S = 5.0
MIB = 1 << 20

COPY = """\
Copy a stopped standalone to a cluster: topics, subscriptions, schemas, policies.

Without --apply it only reads, and prints what would be copied. With --apply it
may be interrupted at any time: the same command continues. Message ids stay
the same. The cluster must be initialized, its bookies must run, and its brokers
must not.

Examples:
  pyxbroker ledgers copy --from /srv/pulsar --to zk:zk1:2181 --cluster east
  pyxbroker ledgers copy --from /srv/pulsar --to zk:zk1:2181 --cluster east --apply
"""


def command(arguments: Sequence[str]) -> None:
    abouts = {name: about.partition("\n")[0] for name, (_, about) in SUBCOMMANDS.items()}
    name, rest = Group("ledgers", ABOUT, abouts, EXAMPLES).choose(arguments)
    run, _ = SUBCOMMANDS[name]
    run(rest)


def copy(arguments: Sequence[str]) -> None:
    options = _copy_parser().parse(arguments)
    if options.in_flight < 1:
        fail(f"--in-flight is {options.in_flight}; expected 1 or more.", 2)
    configure("WARNING")
    try:
        directory = lock_used(Path(options.source), "--from")
        try:
            _run_copy(options, directory.path)
        finally:
            directory.close()
    except OSError as error:
        what = f"{error.filename} cannot be used: " if error.filename else ""
        fail(f"{what}{error.strerror or error}.")
    except (ConfigError, DataDirectoryError, DataError, MetadataError) as error:
        fail(str(error))


SUBCOMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {"copy": (copy, COPY)}


def _copy_parser() -> Parser:
    parser = Parser("ledgers copy", COPY)
    add = parser.options.add_argument
    add("--from", dest="source", required=True, metavar="DIR", help="Data of the standalone.")
    add("--from-config", metavar="FILE", help="Configuration file of the standalone.")
    add(
        "--to",
        required=True,
        metavar="URL",
        help="Metadata of the cluster: zk:host:port[,host:port][/chroot].",
    )
    add("--config", metavar="FILE", help="Configuration file of the cluster's brokers.")
    add("--cluster", metavar="NAME", help="Name of the cluster [as the standalone's].")
    for name, what in (
        ("ensemble", "Bookies of each ledger"),
        ("write-quorum", "Copies of each entry"),
        ("ack-quorum", "Copies that an entry waits for"),
    ):
        add(f"--{name}", type=int, metavar="N", help=f"{what} [as in --config].")
    add("--in-flight", type=int, default=16, metavar="N", help="Ledgers at a time [%(default)s].")
    add("--apply", action="store_true", help="Copy; without it nothing is changed.")
    add("--verify", action="store_true", help="Compare the entries of all copied ledgers again.")
    add("--json", action="store_true", help="Print one JSON value; progress goes to stderr.")
    return parser


def _places(options: Namespace, data: Path) -> CopyPlaces:
    from pyxbroker.roles.standalone_copy import CopyPlaces

    file = Path(options.from_config) if options.from_config else None
    standalone = Config.load(file)
    named = {
        "metadataStoreUrl": options.to,
        "clusterName": options.cluster or standalone.clusterName,
        "managedLedgerDefaultEnsembleSize": options.ensemble,
        "managedLedgerDefaultWriteQuorum": options.write_quorum,
        "managedLedgerDefaultAckQuorum": options.ack_quorum,
    }
    overrides = {key: str(value) for key, value in named.items() if value is not None}
    file = Path(options.config) if options.config else None
    cluster = Config.load(file, os.environ, overrides, is_cluster=True)
    return CopyPlaces(data, standalone, cluster, options.in_flight)


def _run_copy(options: Namespace, data: Path) -> None:
    from pyxbroker.roles.standalone_copy import CopyRefused, LedgerError, StartRefused

    places = _places(options, data)
    try:
        asyncio.run(_copy(options, places))
    except (CopyRefused, StartRefused) as error:
        fail(f"Nothing is copied: {error}.")
    except (LedgerError, MetadataError) as error:
        if not options.apply:
            fail(f"Nothing is copied: {error}.")
        fail(f"The copy is not complete: {error}. The same command continues.")
    except KeyboardInterrupt:
        if not options.apply:
            raise
        print(file=sys.stderr)
        fail("Interrupted. The same command continues the copy.", INTERRUPTED)


async def _copy(options: Namespace, places: CopyPlaces) -> None:
    from pyxbroker.roles.standalone_copy import open_copy, refusal

    def report(sentence: str) -> None:
        _echo(options, f"{sentence[0].upper()}{sentence[1:]}.")

    async with open_copy(places, report, print_waiting) as copying:
        if options.apply:
            printing = asyncio.create_task(_print_progress(options, copying))
            try:
                plan = await copying.apply()
            finally:
                printing.cancel()
                with suppress(asyncio.CancelledError):
                    await printing
        else:
            plan = await copying.plan()
        verified = await copying.verify() if options.verify else None
    if options.json:
        print(json.dumps(_plain(plan, verified, is_applied=options.apply)))
    else:
        for line in _lines(plan, verified, is_applied=options.apply):
            print(line)
    if plan.collision_count:
        fail(f"The copy is not possible: {refusal(plan)}.")


def _echo(options: Namespace, line: str) -> None:
    print(line, file=sys.stderr if options.json else sys.stdout, flush=True)


async def _print_progress(options: Namespace, copying: Copying) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        progress = copying.progress
        if progress is not None and progress.ledgers < progress.ledgers_total:
            _echo(options, _about_progress(progress))


def _about_progress(progress: Progress) -> str:
    return (
        f"{progress.ledgers} of {progress.ledgers_total} ledgers,"
        f" {_size(progress.bytes)} of {_size(progress.bytes_total)},"
        f" {_size(progress.bytes_per_s)}/s"
    )


def _lines(plan: Plan, verified: int | None, *, is_applied: bool) -> list[str]:
    from pyxbroker.roles.standalone_copy import ROOTS, CopyState, NodeState

    total, done = plan.ledgers.total(), plan.ledgers[CopyState.COMPLETE]
    lines = [
        f"ledgers: {total} with {plan.entries} entries, {_size(plan.bytes)}; copied earlier:"
        f" {done} with {_size(plan.copied_bytes)}, begun: {plan.ledgers[CopyState.UNFINISHED]}"
    ]
    lines += [f"{what}: {plan.nodes[root]} nodes" for root, what in ROOTS.items()]
    replaced = plan.node_states[NodeState.REPLACEABLE]
    lines.append(
        f"nodes that the cluster has already: {plan.node_states[NodeState.EQUAL]} with the same"
        f" value, {replaced} that are replaced"
    )
    lines += [f"not copied: {each}" for each in plan.left_out]
    if verified is not None:
        lines.append(f"The entries of {verified} ledgers are equal on both sides.")
    if plan.phase == "complete":
        lines.append("An earlier copy is complete; nothing is left to copy.")
    elif is_applied:
        lines.append("The copy is complete. Brokers of the cluster can start.")
    elif not plan.collision_count:
        lines.append("Nothing was changed; --apply copies.")
    return lines


def _plain(plan: Plan, verified: int | None, *, is_applied: bool) -> dict[str, object]:
    return {
        "applied": is_applied,
        "earlierPhase": plan.phase,
        "ledgers": {state.name.lower(): count for state, count in plan.ledgers.items()},
        "entries": plan.entries,
        "bytes": plan.bytes,
        "bytesCopiedEarlier": plan.copied_bytes,
        "nodes": dict(plan.nodes),
        "nodeStates": {state.name.lower(): count for state, count in plan.node_states.items()},
        "collisions": plan.collisions,
        "collisionCount": plan.collision_count,
        "notCopied": plan.left_out,
        "verifiedLedgers": verified,
    }


def _size(count: float) -> str:
    return f"{count / MIB:.1f} MiB"

"""`pyxbroker backup`: complete backups of a standalone, running or stopped.

The package `backup` does the work; this module has the command line and the texts. In addition to
the usual exit codes, `verify` exits with 1 if it finds damage.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyxbroker.backup.manifest import BackupError
from pyxbroker.backup.progress import Progress
from pyxbroker.base.properties import ConfigError
from pyxbroker.cli import Group, Parser, fail
from pyxbroker.cli.broker_requests import admin_client, complete_admin, failure, refusal
from pyxbroker.cli.data_directory import DataDirectoryError, DataDirectoryInUse, lock_used
from pyxbroker.cli.login_options import add_admin_url, add_login_options
from pyxbroker.client.admin import json_of
from pyxbroker.client.errors import ClientError, HttpRefused
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.backup.create import Created, Moment
    from pyxbroker.backup.manifest import Manifest

ABOUT = """\
Back up a standalone: messages, subscriptions, topics and policies.

A backup is a directory. It has the state of one moment, for all topics
together, and is created while the broker runs.
"""

EXAMPLES = """\
Examples:
  pyxbroker backup create /backup/monday
  pyxbroker backup create /backup/tuesday --base /backup/monday
  pyxbroker backup verify /backup/tuesday
  pyxbroker backup restore /backup/tuesday /srv/pulsar
"""

MOMENTS = "/admin/v2/brokers/backup/moments"
RENEW_S = 15.0
NOT_FOUND = 404
MIB = 1 << 20


def command(arguments: Sequence[str]) -> None:
    abouts = {name: about.partition("\n")[0] for name, (_, about) in SUBCOMMANDS.items()}
    name, rest = Group("backup", ABOUT, abouts, EXAMPLES).choose(arguments)
    run, _ = SUBCOMMANDS[name]
    try:
        run(rest)
    except BackupError as error:
        fail(str(error))


CREATE = """\
Back up a standalone to the new directory TARGET.

The broker chooses the moment; this command copies its files, so it must run on
the broker's machine, as a user who may read its data directory. With --data it
backs up a stopped broker instead.

With --base, files that an earlier backup has are linked instead of copied. On
the same file system they take no space, and both backups are complete.

Examples:
  pyxbroker backup create /backup/monday
  pyxbroker backup create /backup/tuesday --base /backup/monday
  pyxbroker backup create /backup/stopped --data /srv/pulsar
"""


def create(arguments: Sequence[str]) -> None:
    parser = _parser("create", CREATE, "[OPTIONS] TARGET")
    parser.add_argument("target", metavar="TARGET", help="The directory of the backup.")
    add = parser.options.add_argument
    add("--base", metavar="DIR", help="An earlier backup of the same data directory.")
    add("--data", metavar="DIR", help="The data directory of a stopped broker.")
    add("--config", metavar="FILE", help="The configuration file of that broker.")
    add_admin_url(parser)
    add_login_options(parser)
    options = parser.parse(arguments)
    from pyxbroker.backup.create import check_target

    target = Path(options.target).absolute()
    check_target(target)
    base = Path(options.base).absolute() if options.base else None
    progress = ShownProgress("copying")
    if options.data is None:
        created = _create_running(options, target, base, progress)
    else:
        created = _create_stopped(options, target, base, progress)
    progress.end()
    _print_created(options, target, created)


def _create_running(
    options: Namespace, target: Path, base: Path | None, progress: ShownProgress
) -> Created:
    from pyxbroker.backup.create import create as create_backup

    asking = _Asking(options)
    moment = asking.begin()
    progress.on_time = asking.renew_if_due
    try:
        return create_backup(moment, target, base, progress, asking.end)
    finally:
        asking.withdraw()


class _Asking:
    """The requests to the broker for one backup."""

    def __init__(self, options: Namespace) -> None:
        complete_admin(options)
        self._options = options
        self._path = ""
        self._renew_at = 0.0

    def _ask(self, method: str, path: str) -> Any:
        return asyncio.run(_ask(self._options, method, path))

    def begin(self) -> Moment:
        from pyxbroker.backup.create import Moment
        from pyxbroker.metadata.maintenance import export

        answer = self._ask("POST", MOMENTS)
        self._path = f"{MOMENTS}/{answer['id']}"
        self._renew_at = time.monotonic() + RENEW_S
        ledgers, copies = Path(answer["ledgers"]), Path(answer["copies"])
        for directory in (ledgers, copies):
            if not os.access(directory, os.R_OK | os.X_OK):
                self.withdraw()
                raise BackupError(
                    f"The broker's directory {directory} cannot be read here. Run this command on"
                    " the broker's machine, as a user who may read its data directory."
                )
        return Moment(
            *(answer["timeMs"], answer["cluster"], answer["instanceId"], answer["bookieId"]),
            *(answer["logEnd"], ledgers, partial(export, copies, answer["transaction"])),
        )

    def renew_if_due(self) -> None:
        if time.monotonic() > self._renew_at:
            self._ask("PUT", self._path)
            self._renew_at = time.monotonic() + RENEW_S

    def end(self) -> None:
        path, self._path = self._path, ""
        self._ask("DELETE", path)

    def withdraw(self) -> None:
        """End the backup without a result, if it has not ended."""
        if self._path:
            try:
                self.end()
            except BackupError as error:
                print(f"pyxbroker: {error}", file=sys.stderr)


async def _ask(options: Namespace, method: str, path: str) -> Any:
    """Return the broker's answer. Raises BackupError."""
    url = options.admin_url
    try:
        async with admin_client(options) as client:
            return json_of(await client.request(method, path))
    except HttpRefused as error:
        if error.status == NOT_FOUND and method == "POST":
            raise BackupError(f"{url} does not know backups, so it is not a pyxbroker.") from None
        what, needed = "back up the broker", "a superuser"
        raise BackupError(refusal(url, error, what, needed)) from None
    except ClientError as error:
        raise BackupError(failure(url, error)) from None


def _create_stopped(
    options: Namespace, target: Path, base: Path | None, progress: Progress
) -> Created:
    from pyxbroker.backup.create import Moment
    from pyxbroker.backup.create import create as create_backup
    from pyxbroker.bookie.entry_logs import entry_log_ids
    from pyxbroker.bookie.errors import DataError
    from pyxbroker.metadata.maintenance import backup
    from pyxbroker.roles.stopped_data import flush_stopped

    try:
        config = Config.load(Path(options.config) if options.config else None)
        lock = lock_used(Path(options.data), "--data")
        try:
            layout, cookie, events = flush_stopped(config, lock.path)
            for each in events:
                print(f"pyxbroker: {each}", file=sys.stderr)
            assert layout.metadata is not None, "only local metadata is backed up"
            moment = Moment(
                *(time.time_ns() // 1_000_000, config.clusterName, cookie.instance_id),
                *(cookie.bookie_id, max(entry_log_ids(layout.ledgers), default=0) + 1),
                *(layout.ledgers, partial(backup, layout.metadata)),
            )
            return create_backup(moment, target, base, progress, _nothing)
        finally:
            lock.close()
    except DataDirectoryInUse as error:
        raise BackupError(f"{error} Without --data, a running broker is backed up.") from error
    except (ConfigError, DataDirectoryError, DataError, OSError) as error:
        raise BackupError(f"{error}") from error


VERIFY = """\
Read all of a backup and report damage.

Exits with 0 if every checksum is right, otherwise with 1. Damage is reported
with its file, and if possible with the ledger, the entry and the topic.

Example:
  pyxbroker backup verify /backup/monday
"""


def verify(arguments: Sequence[str]) -> None:
    parser = _parser("verify", VERIFY, "[OPTIONS] BACKUP")
    parser.add_argument("backup", metavar="BACKUP", help="The directory of the backup.")
    options = parser.parse(arguments)
    from pyxbroker.backup.create import sentence_of
    from pyxbroker.backup.verify import verify as verify_backup

    progress = ShownProgress("reading")
    backup = Path(options.backup).absolute()
    try:
        manifest, findings = verify_backup(backup, progress)
    except OSError as error:
        raise BackupError(sentence_of(error)) from error
    progress.end()
    if options.json:
        found = [
            {
                "file": str(each.file),
                "sentence": each.sentence,
                "ledger": each.ledger_id,
                "entry": each.entry_id,
            }
            for each in findings
        ]
        print(json.dumps(_plain(manifest) | {"backup": str(backup), "findings": found}))
    else:
        for each in findings:
            print(f"damaged: {each.sentence}")
        if not findings:
            print(f"{backup} is undamaged: the state of {_moment(manifest)}.")
    if findings:
        sys.exit(1)


RESTORE = """\
Create a new data directory from a backup.

Every file is checked while it is copied. Start the broker with --data TARGET.

Example:
  pyxbroker backup restore /backup/monday /srv/pulsar
"""


def restore(arguments: Sequence[str]) -> None:
    parser = _parser("restore", RESTORE, "[OPTIONS] BACKUP TARGET")
    parser.add_argument("backup", metavar="BACKUP", help="The directory of the backup.")
    parser.add_argument("target", metavar="TARGET", help="The new data directory.")
    options = parser.parse(arguments)
    from pyxbroker.backup.restore import restore as restore_backup

    progress = ShownProgress("copying")
    target = Path(options.target).absolute()
    manifest = restore_backup(Path(options.backup).absolute(), target, progress)
    progress.end()
    if options.json:
        print(json.dumps(_plain(manifest) | {"data": str(target)}))
    else:
        print(f"Restored to {target}: the state of {_moment(manifest)}.")
        print(f"Start it with `pyxbroker standalone --data {target}`.")


# The commands, with their help texts. The first line of a text is its summary.
SUBCOMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "create": (create, CREATE),
    "verify": (verify, VERIFY),
    "restore": (restore, RESTORE),
}


# --- texts ------------------------------------------------------------------------------------


def _parser(name: str, about: str, arguments: str) -> Parser:
    parser = Parser(f"backup {name}", about, arguments)
    parser.options.add_argument("--json", action="store_true", help="Print one JSON value.")
    return parser


class ShownProgress(Progress):
    """A progress that is one line on stderr, rewritten, if that is a terminal."""

    INTERVAL_S = 0.2
    WIDTH = 30

    def __init__(self, what: str) -> None:
        super().__init__()
        self.on_time: Callable[[], None] = _nothing
        self._what = what
        self._is_shown = sys.stderr.isatty()
        self._began = self._next = time.monotonic()

    def add(self, count: int) -> None:
        super().add(count)
        self.on_time()
        now = time.monotonic()
        if self._is_shown and now >= self._next:
            self._next = now + self.INTERVAL_S
            self._show(now)

    def _show(self, now: float) -> None:
        share = min(self.done / self.total, 1) if self.total else 1.0
        bar = "#" * int(share * self.WIDTH)
        rate = self.done / max(now - self._began, 0.001) / MIB
        line = (
            f"\r{self._what} [{bar:{self.WIDTH}}] {share:4.0%}  {self.done / MIB:.0f} of"
            f" {self.total / MIB:.0f} MiB, {rate:.0f} MiB/s "
        )
        print(line, end="", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Complete the line."""
        if self._is_shown:
            self._show(time.monotonic())
            print(file=sys.stderr)


def _nothing() -> None:
    """Do nothing."""


def _moment(manifest: Manifest) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(manifest.time_ms / 1000))


def _print_created(options: Namespace, target: Path, created: Created) -> None:
    manifest = created.manifest
    sizes = {"copiedBytes": created.copied_bytes, "linkedBytes": created.linked_bytes}
    if options.json:
        print(json.dumps(_plain(manifest) | {"backup": str(target)} | sizes))
        return
    print(
        f"Created {target}: the state of {_moment(manifest)}, {len(manifest.files)} files,"
        f" {created.copied_bytes / MIB:.1f} MiB copied and {created.linked_bytes / MIB:.1f} MiB"
        " linked."
    )


def _plain(manifest: Manifest) -> dict[str, object]:
    return {
        "timeMs": manifest.time_ms,
        "cluster": manifest.cluster,
        "instanceId": manifest.instance_id,
        "transaction": manifest.transaction,
        "files": len(manifest.files),
        "bytes": sum(each.bytes for each in manifest.files),
    }

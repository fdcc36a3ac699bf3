"""`pyxbroker metadata`: its words, its exit codes, and whose data it touches."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest

from command_line import COMMAND, TIMEOUT_S, run, standalone
from pyxbroker.bookie.cookie import FILE, cookie_text
from pyxbroker.cli import main
from pyxbroker.cli.data_directory import DataDirectory
from pyxbroker.metadata import maintenance
from pyxbroker.metadata.findings import Finding, Severity
from pyxbroker.metadata.maintenance import CopyInfo, RestoreSummary
from pyxbroker.metadata.store import CorruptStore

COMMANDS = ("check", "copies", "backup", "restore", "repair")


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A data directory without a bookie; what is done to its metadata is faked."""
    (tmp_path / "data" / "metadata").mkdir(parents=True)
    (tmp_path / "data" / "metadata" / "metadata.db").touch()
    return tmp_path / "data"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The functions of maintenance: their answers, replaced by tests, and what they were asked."""
    answers: dict[str, Any] = {
        "check": [],
        "unknown_ledgers": [],
        "list_copies": [],
        "repair": [],
        "forget_unknown_ledgers": [],
    }

    def fake(name: str) -> Any:
        def answer(*arguments: Any) -> Any:
            answers[f"{name} of"] = arguments
            found = answers[name]
            if isinstance(found, Exception):
                raise found
            return found

        return answer

    for name in (*answers, "restore", "backup"):
        monkeypatch.setattr(maintenance, name, fake(name))
    return answers


class Result(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def call(data: Path, *arguments: str, answer: str | None = "") -> Result:
    """Runs a command in this process, with the answer on its stdin, or with none."""
    name, *options = arguments
    out, err = io.StringIO(), io.StringIO()
    code: Any = 0
    stdin = None if answer is None else io.StringIO(answer)
    with redirect_stdout(out), redirect_stderr(err), patch("sys.stdin", stdin):
        try:
            main(["metadata", name, "--data", str(data), *options])
        except SystemExit as end:
            code = end.code
    return Result(code, out.getvalue(), err.getvalue())


def finding(severity: Severity, data: Path) -> Finding:
    return Finding(severity, data / "metadata" / "metadata.db", "the node /a is damaged")


def test_check_says_that_all_is_well(data: Path, asked: dict[str, Any]) -> None:
    result = call(data, "check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"The metadata in {data / 'metadata'} is undamaged.\n"
    assert asked["check of"] == (data / "metadata",)


def test_a_missing_database_is_found(data: Path, asked: dict[str, Any]) -> None:
    """The store's own check takes it for a store that was never made."""
    (data / "metadata" / "metadata.db").unlink()
    result = call(data, "check")
    assert result.exit_code == 1
    assert f"damaged: the metadata database {data}/metadata/metadata.db is missing" in result.stdout


@pytest.mark.parametrize(
    ("severity", "checked", "repaired"),
    [(Severity.NOTE, 0, 0), (Severity.REPAIRED, 1, 0), (Severity.DAMAGED, 1, 1)],
)
def test_check_ends_with_one_for_any_damage_and_repair_for_what_is_left(
    data: Path, asked: dict[str, Any], severity: Severity, checked: int, repaired: int
) -> None:
    asked["check"] = asked["repair"] = [finding(severity, data)]
    line = f"{severity.value}: {data}/metadata/metadata.db: the node /a is damaged\n"
    for name, code in (("check", checked), ("repair", repaired)):
        result = call(data, name)
        assert (result.exit_code, result.stdout) == (code, line)
        as_json = call(data, name, "--json")
        assert as_json.exit_code == code
        assert json.loads(as_json.stdout)["findings"] == [
            {
                "severity": severity.value,
                "file": f"{data}/metadata/metadata.db",
                "sentence": "the node /a is damaged",
            }
        ]


def test_copies_are_listed_for_people_and_for_programs(data: Path, asked: dict[str, Any]) -> None:
    assert "There are no copies of " in call(data, "copies").stdout
    path = data / "metadata.copies" / "0000000007.copy"
    asked["list_copies"] = [CopyInfo(path, 7, 1_769_860_800_123, 4711, 12, 9000, False)]
    assert call(data, "copies").stdout == (
        f"{path}  written 2026-01-31 12:00:00 UTC, 12 nodes, 9000 bytes, DAMAGED\n"
    )
    [copy] = json.loads(call(data, "copies", "--json").stdout)
    assert (copy["file"], copy["intact"], copy["madeMs"]) == (str(path), False, 1_769_860_800_123)


def test_backup_goes_where_it_is_told_and_names_the_file(
    data: Path, asked: dict[str, Any], tmp_path: Path
) -> None:
    asked["backup"] = tmp_path / "monday"
    result = call(data, "backup", str(tmp_path / "monday"))
    assert asked["backup of"] == (data / "metadata", tmp_path / "monday")
    assert str(tmp_path / "monday") in result.stdout
    call(data, "backup")
    assert asked["backup of"] == (data / "metadata", Path.cwd())


def test_backup_into_a_directory_that_is_not_there_blames_no_metadata(
    data: Path, asked: dict[str, Any], tmp_path: Path
) -> None:
    result = call(data, "backup", str(tmp_path / "none" / "monday"))
    assert result.exit_code == 2
    assert f"the directory {tmp_path / 'none'} for the copy does not exist" in result.stderr
    assert "backup of" not in asked


def test_restore_asks_before_it_changes_anything(data: Path, asked: dict[str, Any]) -> None:
    aside = data / "metadata" / "metadata.db.before"
    asked["restore"] = RestoreSummary(data / "c", 12, 3, 1, aside, [])
    for answer in ("n\n", "", None):
        refused = call(data, "restore", answer=answer)
        assert refused.exit_code == 1
        assert "restore of" not in asked
        assert " aside and rebuilds it from the newest intact copy" in refused.stderr
        assert refused.stderr.endswith("pyxbroker: Nothing was changed.\n")
    result = call(data, "restore", answer="y\n")
    assert result.exit_code == 0
    assert asked["restore of"] == (data / "metadata", None, True)
    assert f"from the copy {data / 'c'} and 3 changes since: 12 nodes. " in result.stdout
    assert "Nodes of the previous metadata that are gone: 1." in result.stdout
    assert f"The previous metadata is now in {aside}." in result.stdout
    call(data, "restore", "--yes", "--copy", "/backup/monday", "--without-changes", "--json")
    assert asked["restore of"] == (data / "metadata", Path("/backup/monday"), False)


def test_ctrl_c_at_the_question_changes_nothing(data: Path) -> None:
    before = {*data.rglob("*")}
    # Where the tests run in the background a shell has it ignored, which a process inherits.
    former = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        process = subprocess.Popen(
            [*COMMAND, "metadata", "restore", "--data", str(data)],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    finally:
        signal.signal(signal.SIGINT, former)
    assert process.stderr is not None
    asked = b""
    while not asked.endswith(b"[y/N]: "):
        asked += (byte := process.stderr.read(1))
        assert byte, asked
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert (process.returncode, err) == (130, b"\npyxbroker: Interrupted.\n")
    assert {*data.rglob("*")} == {*before, data / "pyxbroker.lock"}


def test_ledgers_that_nobody_knows_are_named_and_given_up_only_when_asked(
    data: Path, asked: dict[str, Any]
) -> None:
    asked["unknown_ledgers"] = list(range(30))
    result = call(data, "repair")
    assert "30 ledgers in the storage unknown to the metadata, kept: 0, 1, 2," in result.stdout
    assert "19, ...; `pyxbroker metadata repair --delete-unknown-ledgers`" in result.stdout
    assert "forget_unknown_ledgers of" not in asked
    asked["unknown_ledgers"], asked["forget_unknown_ledgers"] = [], [7]
    result = call(data, "repair", "--delete-unknown-ledgers")
    assert "1 ledger marked for deletion: 7." in result.stdout
    plain = json.loads(call(data, "repair", "--delete-unknown-ledgers", "--json").stdout)
    assert plain == {"findings": [], "deletedLedgers": [7], "unknownLedgers": []}


@pytest.mark.parametrize("error", [CorruptStore("no copy can be used"), OSError(5, "EIO", "/f")])
def test_what_goes_wrong_is_one_sentence(
    data: Path, asked: dict[str, Any], error: Exception
) -> None:
    asked["check"] = error
    result = call(data, "check")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr in (
        "pyxbroker: no copy can be used.\n",
        "pyxbroker: /f cannot be used: EIO.\n",
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_a_directory_in_use_is_left_alone(data: Path, asked: dict[str, Any], name: str) -> None:
    lock = DataDirectory(data)
    try:
        result = call(data, name)
    finally:
        lock.close()
    assert result.exit_code == 1
    assert f"in use by process {os.getpid()}" in result.stderr
    assert [key for key in asked if key.endswith(" of")] == []


@pytest.mark.parametrize("name", COMMANDS)
def test_no_data_directory_is_made(tmp_path: Path, name: str) -> None:
    result = call(tmp_path / "none", name)
    assert result.exit_code == 1
    assert f"The data directory {tmp_path / 'none'} does not exist." in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", COMMANDS)
def test_metadata_elsewhere_is_wrong_usage(data: Path, name: str) -> None:
    result = call(data, name, "--metadata", "zk:localhost:2181")
    assert result.exit_code == 2
    assert "The metadata is in zk:localhost:2181" in result.stderr


def test_the_store_is_found_where_the_settings_say(
    data: Path, asked: dict[str, Any], tmp_path: Path
) -> None:
    conf = tmp_path / "conf"
    conf.write_text("metadataStoreUrl=embedded:other\n")
    call(data, "check", "--config", str(conf))
    assert asked["check of"] == (data / "other",)
    call(data, "check", "--metadata", "rocksdb:/srv/meta")
    assert asked["check of"] == (Path("/srv/meta"),)


def test_help_teaches_every_command() -> None:
    assert [name for name in COMMANDS if name not in run("metadata", "--help").stdout] == []
    for name in COMMANDS:
        text = run("metadata", name, "--help").stdout
        assert "Example" in text
        assert "--data" in text


def test_the_command_imports_no_broker() -> None:
    probe = (
        "import sys, pyxbroker.cli\n"
        "try:\n"
        "    pyxbroker.cli.main(['metadata', 'check', '--data', '/none'])\n"
        "finally:\n"
        "    print(*sys.modules)\n"
    )
    listing = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, check=False
    )
    loaded = listing.stdout.split()
    assert "pyxbroker.cli.metadata" in loaded
    heavy = ("uvloop", "pyxbroker._native", "pyxbroker.roles.standalone", "kazoo", "sqlite3")
    assert [name for name in heavy if name in loaded] == []


# --- the cookie -------------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """The data directory of a broker that has run."""
    with standalone(tmp_path / "served") as broker:
        assert broker.stop()[0] == 0
    return tmp_path / "served"


def flip(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


def test_repair_writes_a_cookie_again(served: Path, asked: dict[str, Any]) -> None:
    file = served / "bookie" / FILE
    text = file.read_text()
    assert call(served, "repair").stdout.startswith("Nothing to repair")
    instance = text.rpartition('instanceId: "')[2]
    flipped = chr(ord(instance[3]) ^ 1)
    damages = [
        file.unlink,
        lambda: file.write_text("5\nboo"),
        lambda: flip(file, "localhost:3181", "localhosu:3181"),
        lambda: flip(file, instance[:4], instance[:3] + flipped),
        lambda: flip(file, "journalDir", "journalDis"),
    ]
    for damage in damages:
        damage()
        checked = call(served, "check")
        repaired = call(served, "repair")
        assert repaired.exit_code == 0, repaired
        assert f"repaired: {file}: the cookie " in repaired.stdout
        assert file.read_text() == text
        if damage in damages[:2]:
            assert (checked.exit_code, "metadata repair" in checked.stdout) == (1, True)
    with standalone(served) as broker:
        assert broker.stop()[0] == 0


def test_repair_does_not_give_a_bookie_to_the_metadata_of_another_cluster(
    served: Path, asked: dict[str, Any]
) -> None:
    file = served / "bookie" / FILE
    foreign = cookie_text("localhost:3181", served, "00000000-aaaa-4bbb-8ccc-dddddddddddd")
    file.write_text(foreign)
    result = call(served, "repair")
    assert result.exit_code == 1
    assert "they do not belong together, so neither was changed" in result.stdout
    assert file.read_text() == foreign

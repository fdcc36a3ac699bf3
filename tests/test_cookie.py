"""The cookie: a data directory is used by the bookie and the cluster that it was made for."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from pyxbroker import _native
from pyxbroker.base import directories
from pyxbroker.bookie.cookie import FILE, cookie_text, parse_cookie, read_cookie
from pyxbroker.bookie.errors import (
    BookieMissing,
    CookieMismatch,
    CookieMissing,
    DamagedCookie,
    NewerFormat,
)
from pyxbroker.bookie.layout import Layout
from pyxbroker.cluster.initialize import ClusterSettings
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.roles.data import DataOpening, examine

INSTANCE = "3b2f7c1e-0000-4000-8000-0123456789ab"
CLUSTER = ClusterSettings("c", "http://x:8080", "pulsar://x:6650")
MIB = 1 << 20


class Data:
    """The data directory of a bookie whose metadata is in memory."""

    def __init__(self, directory: Path) -> None:
        self.store = MemoryStore()
        self.bookie = directory / "bookie"
        self.file = self.bookie / FILE
        # The store stands for an embedded one, whose database is there.
        self.metadata = directory / "metadata"
        self.metadata.mkdir()
        (self.metadata / "metadata.db").touch()

    async def open(
        self, bookie_id: str = "me:3181", *, accept_loss: bool = False, write: bool = False
    ) -> str:
        """Opens and closes it; returns its bookie's id."""
        layout = Layout(
            self.bookie, self.bookie / "journal", self.bookie / "ledgers", self.metadata
        )
        if await self._value(paths.INSTANCE_ID) is None:
            await self.put(paths.INSTANCE_ID, INSTANCE.encode())
        cookie = examine(layout, accept_loss)
        opening = DataOpening(
            layout, cookie, self.store, partial(_storage, layout), CLUSTER, bookie_id, accept_loss
        )
        opened, found = await opening.run()
        if write:
            opened.fence(1)
            opened.commit()
        opened.close()
        await self.store.close()
        return found

    async def copy(self, bookie_id: str) -> bytes | None:
        return await self._value(paths.cookie(bookie_id))

    async def _value(self, path: str) -> bytes | None:
        await self.store.open()
        found = await self.store.get(path)
        await self.store.close()
        return None if found is None else found.value

    async def put(self, path: str, value: bytes | None) -> None:
        await self.store.open()
        if value is None:
            await self.store.delete(path)
        else:
            await self.store.put(path, value)
        await self.store.close()

    def flip(self, old: str, new: str) -> None:
        text = self.file.read_text()
        assert old in text
        self.file.write_text(text.replace(old, new))


def _storage(layout: Layout) -> _native.Storage:
    return _native.Storage(
        layout.journal,
        layout.ledgers,
        journal_file_bytes=MIB,
        dirty_bytes_max=MIB,
        cache_bytes_max=2 * MIB,
        entry_bytes_max=1024,
    )


def run(tmp_path: Path, scenario: Callable[[Data], Awaitable[None]]) -> None:
    async def main() -> None:
        await scenario(Data(tmp_path))

    asyncio.run(main())


def test_a_new_directory_gets_a_cookie_here_and_in_metadata(tmp_path: Path) -> None:
    async def scenario(data: Data) -> None:
        assert await data.open() == "me:3181"
        text = data.file.read_text()
        assert text == cookie_text("me:3181", data.bookie, INSTANCE)
        assert await data.copy("me:3181") == text.encode()
        assert [each.name for each in data.file.parent.iterdir()] == ["VERSION"]

    run(tmp_path, scenario)


def test_the_text_is_what_bookkeeper_reads() -> None:
    lines = cookie_text("host:3181", Path("/data"), INSTANCE).splitlines()
    assert lines == [
        "5",
        'bookieHost: "host:3181"',
        'journalDir: "/data/journal"',
        'ledgerDirs: "1\\t/data/ledgers"',
        f'instanceId: "{INSTANCE}"',
    ]


def test_the_directory_keeps_the_id_that_it_was_made_with(tmp_path: Path) -> None:
    """Ledgers name it, so another address of the host must not change it."""

    async def scenario(data: Data) -> None:
        await data.open("old:3181")
        before = data.file.read_bytes()
        assert await data.open("new:3181") == "old:3181"
        assert data.file.read_bytes() == before
        assert await data.copy("new:3181") is None

    run(tmp_path, scenario)


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def scenario(data: Data) -> None:
        await data.open()
        before = data.file.read_bytes()
        await data.put(paths.INSTANCE_ID, b"another")
        await data.put(paths.cookie("me:3181"), None)
        with pytest.raises(CookieMismatch, match=f"belongs to the cluster {INSTANCE}") as refused:
            await data.open()
        assert "another data directory" in str(refused.value)
        assert data.file.read_bytes() == before
        assert await data.copy("me:3181") is None

    run(tmp_path, scenario)


def test_a_cookie_that_is_missing_in_metadata_is_stored_again(tmp_path: Path) -> None:
    async def scenario(data: Data) -> None:
        await data.open()
        await data.put(paths.cookie("me:3181"), None)
        assert await data.open() == "me:3181"
        assert await data.copy("me:3181") == data.file.read_bytes()

    run(tmp_path, scenario)


def test_what_a_cut_short_start_left_does_not_matter(tmp_path: Path) -> None:
    """The cookie is renamed into its place when it is whole and synced."""

    async def scenario(data: Data) -> None:
        data.file.parent.mkdir(parents=True)
        data.file.with_suffix(".tmp").write_text("5\nbookieHo")
        (data.bookie / "journal").mkdir()
        (data.bookie / "journal" / f"{1:016x}.journal").write_bytes(bytes(8192))
        assert await data.open() == "me:3181"
        assert data.file.read_text() == cookie_text("me:3181", data.bookie, INSTANCE)

    run(tmp_path, scenario)


def test_a_cookie_of_other_fields_and_order_is_read(tmp_path: Path) -> None:
    """As another BookKeeper may have written it."""
    text = f'5\ninstanceId: "{INSTANCE}"\nindexDirs: "1\\t/x"\nbookieHost: "b-7"\n'
    cookie = parse_cookie(text.encode(), "it")
    assert (cookie.bookie_id, cookie.instance_id) == ("b-7", INSTANCE)


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        "5",
        "?\nx",
        "4294967295x\n",
        "5\nbookieHost: ",
        '5\nbookieHost: "a"\n',
        '5\nbookieHost: "a\ninstanceId: "b"\n',
        '5\nbookieHost: "a"\ninstanceId: "b"\njournalDir "x"\n',
        "5\n\xff\xfe",
    ],
)
def test_a_damaged_cookie_is_refused_and_left_alone(tmp_path: Path, damaged: str) -> None:
    async def scenario(data: Data) -> None:
        await data.open()
        data.file.write_bytes(damaged.encode("latin-1"))
        with pytest.raises(DamagedCookie, match=rf"^The cookie {data.file} is damaged: .*repair"):
            await data.open()
        assert data.file.read_bytes() == damaged.encode("latin-1")

    run(tmp_path, scenario)


def test_a_flipped_bit_in_the_ids_is_damage_since_metadata_knows_better(tmp_path: Path) -> None:
    async def scenario(data: Data) -> None:
        await data.open()
        data.flip("me:3181", "mg:3181")
        with pytest.raises(DamagedCookie):
            await data.open()
        data.flip("mg:3181", "me:3181")
        data.flip("0123456789ab", "0123456789ac")
        with pytest.raises(DamagedCookie):
            await data.open()

    run(tmp_path, scenario)


def test_a_flipped_bit_elsewhere_is_reported_and_served(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(data: Data) -> None:
        await data.open()
        data.flip("/ledgers", "/ledgert")
        assert await data.open() == "me:3181"
        assert len([each for each in caplog.records if "copy in the metadata" in each.message]) == 1

    run(tmp_path, scenario)


def test_a_newer_layout_is_named_with_both_versions(tmp_path: Path) -> None:
    async def scenario(data: Data) -> None:
        await data.open()
        data.flip("5\n", "6\n")
        for accept_loss in (False, True):
            with pytest.raises(NewerFormat) as refused:
                await data.open(accept_loss=accept_loss)
            assert str(refused.value) == (
                f"The cookie {data.file} was written by a newer pyxbroker (format 6; this one reads"
                " up to 5); use that version."
            )

    run(tmp_path, scenario)


def test_entries_without_a_cookie_never_get_a_new_one_in_silence(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(data: Data) -> None:
        await data.open("old:3181", write=True)
        text = data.file.read_text()
        data.file.unlink()
        with pytest.raises(CookieMissing, match=f"^The cookie {data.file} is missing") as refused:
            await data.open("new:3181")
        assert "pyxbroker metadata repair" in str(refused.value)
        assert not data.file.exists()
        assert await data.open("new:3181", accept_loss=True) == "old:3181"
        assert data.file.read_text() == text
        losses = [each for each in caplog.records if each.message == "a loss is accepted"]
        assert [each.levelname for each in losses] == ["ERROR"]

    run(tmp_path, scenario)


def test_a_bookie_of_which_nothing_is_left_is_not_made_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An empty one in its place would say of each message that it never was."""

    async def scenario(data: Data) -> None:
        await data.open("old:3181")
        data.bookie.rename(tmp_path / "elsewhere")
        with pytest.raises(BookieMissing, match=f"{data.bookie} is missing or empty") as refused:
            await data.open("new:3181")
        assert "old:3181" in str(refused.value)
        assert not data.bookie.exists()
        assert await data.open("new:3181", accept_loss=True) == "old:3181"
        assert "a loss is accepted" in caplog.messages

    run(tmp_path, scenario)


def test_an_io_error_while_the_cookie_is_read_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / FILE
    file.parent.mkdir()
    file.write_text(cookie_text("me:3181", tmp_path, INSTANCE))
    read, failures = Path.read_bytes, [5]

    def fail(path: Path) -> bytes:
        if failures[0] > 0:
            failures[0] -= 1
            raise OSError(errno.EIO, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", fail)
    cookie = read_cookie(tmp_path)
    assert cookie is not None
    assert cookie.bookie_id == "me:3181"
    monkeypatch.setattr(directories, "PATIENCE_S", 0.1)
    failures[0] = 1_000_000
    with pytest.raises(OSError, match="Input/output error") as refused:
        read_cookie(tmp_path)
    assert refused.value.filename == str(file)


def test_a_disk_that_fails_is_asked_again_a_few_times_with_longer_and_longer_pauses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, pauses = [0.0], []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(
        directories, "time", SimpleNamespace(monotonic=lambda: clock[0], sleep=sleep)
    )
    attempts: list[int] = []

    def fail() -> None:
        attempts.append(len(pauses))
        assert len(attempts) < 100, "without a pause"
        raise OSError(errno.EIO, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        directories.retry_transient(fail)
    assert attempts == list(range(len(pauses) + 1)), "a pause before each but the first one"
    assert pauses[:3] == pytest.approx([0.02, 0.04, 0.08])
    assert sum(pauses) == pytest.approx(directories.PATIENCE_S)


def test_what_is_set_aside_has_its_new_name_on_the_disk_before_anything_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power cut that took the new name back would put old entries beside new ledger ids."""
    bookie, metadata = tmp_path / "bookie", tmp_path / "metadata"
    parts = Layout(bookie, tmp_path / "j" / "journal", tmp_path / "l" / "ledgers", metadata)
    for path in (bookie, parts.journal, parts.ledgers, metadata):
        path.mkdir(parents=True)
    (parts.ledgers / "0000000000000001.log").touch()
    synced: dict[Path, list[str]] = {}

    def sync(directory: Path) -> None:
        directories.sync_directory(directory)
        synced[directory] = sorted(each.name for each in directory.glob("*.lost-*"))

    monkeypatch.setattr("pyxbroker.bookie.layout.sync_directory", sync)
    cookie, losses = parts.accept_losses()
    assert cookie is None and len(losses) == 5
    aside = {
        directory: [name.split(".")[0] for name in found] for directory, found in synced.items()
    }
    assert aside == {
        tmp_path: ["bookie", "metadata"],
        parts.journal.parent: ["journal"],
        parts.ledgers.parent: ["ledgers"],
    }

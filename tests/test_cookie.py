"""The cookie: a data directory is used by the bookie and the cluster that it was made for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from pyxbroker.bookie.cookie import FILE, CookieMismatch, check_cookie, cookie_text
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore

INSTANCE = "3b2f7c1e-0000-4000-8000-0123456789ab"


def run(scenario: Callable[[MemoryStore], Awaitable[None]]) -> None:
    async def main() -> None:
        store = MemoryStore()
        await store.open()
        await scenario(store)
        await store.close()

    asyncio.run(main())


async def stored(store: MemoryStore, bookie_id: str) -> bytes | None:
    found = await store.get(paths.cookie(bookie_id))
    return None if found is None else found.value


def test_a_new_directory_gets_a_cookie_here_and_in_metadata(tmp_path: Path) -> None:
    async def scenario(store: MemoryStore) -> None:
        assert await check_cookie(tmp_path, "me:3181", INSTANCE, store) == "me:3181"
        text = (tmp_path / FILE).read_text()
        assert text == cookie_text("me:3181", tmp_path, INSTANCE)
        assert await stored(store, "me:3181") == text.encode()
        assert [each.name for each in (tmp_path / "current").iterdir()] == ["VERSION"]

    run(scenario)


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

    async def scenario(store: MemoryStore) -> None:
        await check_cookie(tmp_path, "old:3181", INSTANCE, store)
        before = (tmp_path / FILE).read_bytes()
        assert await check_cookie(tmp_path, "new:3181", INSTANCE, store) == "old:3181"
        assert (tmp_path / FILE).read_bytes() == before
        assert await stored(store, "new:3181") is None

    run(scenario)


def test_a_directory_of_another_cluster_is_refused(tmp_path: Path) -> None:
    async def scenario(store: MemoryStore) -> None:
        await check_cookie(tmp_path, "me:3181", INSTANCE, store)
        before = (tmp_path / FILE).read_bytes()
        other = MemoryStore()
        await other.open()
        with pytest.raises(CookieMismatch, match=f"belongs to the cluster {INSTANCE}") as refused:
            await check_cookie(tmp_path, "me:3181", "another", other)
        assert "another data directory" in str(refused.value)
        assert (tmp_path / FILE).read_bytes() == before
        assert await stored(other, "me:3181") is None
        await other.close()

    run(scenario)


def test_a_cookie_that_is_missing_in_metadata_is_stored_again(tmp_path: Path) -> None:
    async def scenario(store: MemoryStore) -> None:
        await check_cookie(tmp_path, "me:3181", INSTANCE, store)
        await store.delete(paths.cookie("me:3181"))
        assert await check_cookie(tmp_path, "me:3181", INSTANCE, store) == "me:3181"
        assert await stored(store, "me:3181") == (tmp_path / FILE).read_bytes()

    run(scenario)


def test_what_a_cut_short_start_left_does_not_matter(tmp_path: Path) -> None:
    """The cookie is renamed into its place when it is whole and synced."""

    async def scenario(store: MemoryStore) -> None:
        (tmp_path / "current").mkdir()
        (tmp_path / "current" / "VERSION.tmp").write_text("5\nbookieHo")
        assert await check_cookie(tmp_path, "me:3181", INSTANCE, store) == "me:3181"
        assert (tmp_path / FILE).read_text() == cookie_text("me:3181", tmp_path, INSTANCE)

    run(scenario)


def test_a_cookie_of_other_fields_and_order_is_read(tmp_path: Path) -> None:
    """As another BookKeeper may have written it."""

    async def scenario(store: MemoryStore) -> None:
        (tmp_path / "current").mkdir()
        (tmp_path / FILE).write_text(
            f'5\ninstanceId: "{INSTANCE}"\nindexDirs: "1\\t/x"\nbookieHost: "b-7"\n'
        )
        assert await check_cookie(tmp_path, "me:3181", INSTANCE, store) == "b-7"

    run(scenario)

"""/status.html: what a load balancer is told."""

from __future__ import annotations

from pathlib import Path

from test_admin_topics import Rest, run


async def status(rest: Rest, path: str = "/status.html") -> tuple[int, bytes]:
    found = await rest.answer("GET", path)
    assert isinstance(found.body, bytes)
    return found.status, found.body


def test_the_status_is_ok_while_its_file_is_there(tmp_path: Path) -> None:
    path = tmp_path / "status"

    async def scenario(rest: Rest) -> None:
        assert (await status(rest))[0] == 404
        path.mkdir()
        assert (await status(rest))[0] == 404
        path.rmdir()
        path.write_text("whatever")
        assert await status(rest) == (200, b"OK")
        assert await status(rest, "/status.html/") == (200, b"OK")
        rest.broker.service.is_ready = False
        assert (await status(rest))[0] == 404
        rest.broker.service.is_ready = True
        path.unlink()
        assert (await status(rest))[0] == 404

    run(tmp_path, scenario, statusFilePath=str(path))


def test_without_a_status_file_there_is_no_status(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert (await status(rest))[0] == 404

    run(tmp_path, scenario)

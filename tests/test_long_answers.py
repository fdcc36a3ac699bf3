"""Long answers of REST: few are made at once, and none for a client that is gone."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from fake_service import FakeService, Topic
from pyxbroker.admin.app import CONCURRENT_MAX, Application
from pyxbroker.admin.request import Request
from pyxbroker.admin.resources import metrics, statistics
from pyxbroker.broker.statistics import internal_stats
from pyxbroker.broker.statistics import statistics as topic_statistics
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.web.long_answers import LongAnswers
from pyxbroker.web.request import Body
from pyxbroker.web.response import Response
from test_admin_topics import NAME, P, Rest
from test_admin_topics import run as run_rest
from web_client import GET, Run, dial, parse, run, served, talk, until

__all__ = ["run"]

KIB = 1 << 10
BROKER_STATS = ("metrics", "topics", "bookieops", "load-report")
PLAIN = GET.replace(b"/x", b"/plain")


class Running:
    """Counts those that run at once."""

    def __init__(self) -> None:
        self.count = self.most = 0

    def counted(self, work: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def count(*args: Any) -> Any:
            self.count += 1
            self.most = max(self.most, self.count)
            try:
                await asyncio.sleep(0)
                return await work(*args)
            finally:
                self.count -= 1

        return count


def asked(path: str = "/x") -> Request:
    return Request("GET", path, "", {}, Body(0, lambda: None))


def test_long_answers_are_made_while_there_is_room_and_the_largest_alone() -> None:
    async def main() -> None:
        room = LongAnswers(100, free=10)
        made: list[int] = []
        go_on = {number: asyncio.Event() for number in range(5)}

        async def make(number: int, size: int) -> None:
            async with room.reserve(asked(), size):
                made.append(number)
                await go_on[number].wait()

        async def steps() -> None:
            for _ in range(5):
                await asyncio.sleep(0)

        sizes = [60, 50, 1_000, 40, 10]
        tasks = [asyncio.create_task(make(*each)) for each in enumerate(sizes)]
        await steps()
        assert made == [0, 4]  # what is short needs no room
        go_on[0].set()
        await steps()
        assert made == [0, 4, 1]
        go_on[1].set()
        await steps()
        assert made == [0, 4, 1, 2]
        go_on[2].set()
        await steps()
        assert made == [0, 4, 1, 2, 3]
        go_on[3].set()
        go_on[4].set()
        await asyncio.gather(*tasks)

    asyncio.run(main())


@pytest.mark.parametrize("is_called", [False, True])
def test_who_gives_up_its_place_in_the_line_holds_up_nobody(is_called: bool) -> None:
    async def main() -> None:
        room = LongAnswers(1)
        made: list[str] = []
        go_on = asyncio.Event()

        async def make(name: str) -> None:
            async with room.reserve(asked()):
                made.append(name)
                await go_on.wait()

        tasks = [asyncio.create_task(make(name)) for name in "abc"]
        await asyncio.sleep(0)
        go_on.set()
        if is_called:
            # The second one is called, and has not gone on yet.
            for _ in range(10):
                if len(room._waiting) < 2:
                    break
                await asyncio.sleep(0)
            assert len(room._waiting) == 1
        assert made == ["a"]
        tasks[1].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert made == ["a", "c"] and tasks[1].cancelled()
        async with room.reserve(asked()):
            pass  # there is room again

    asyncio.run(main())


def test_who_sends_no_more_is_served_after_those_who_do() -> None:
    async def main() -> None:
        room = LongAnswers(1)
        made: list[int] = []
        requests = [asked() for _ in range(4)]

        async def make(number: int) -> None:
            async with room.reserve(requests[number]):
                made.append(number)
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(make(number)) for number in range(4)]
        await asyncio.sleep(0)
        requests[1].has_sent_eof = True
        await asyncio.gather(*tasks)
        assert made == [0, 2, 3, 1]

    asyncio.run(main())


def test_what_is_made_for_a_client_ends_when_it_goes_and_a_change_does_not(run: Run) -> None:
    async def main() -> None:
        room = LongAnswers(1)
        begun: list[str] = []
        ended: list[str] = []
        go_on = asyncio.Event()

        async def answer(request: Request) -> Response:
            begun.append(request.path)
            try:
                if request.path == "/plain":
                    await go_on.wait()
                else:
                    async with room.reserve(request):
                        await go_on.wait()
            except asyncio.CancelledError:
                ended.append("cut off")
                raise
            ended.append(request.path)
            return Response(b"done")

        async with served(answer) as web:
            writers = [(await dial(web))[1] for _ in range(3)]
            for writer, what in zip(writers, (GET, GET, PLAIN), strict=True):
                writer.write(what)
            await until(lambda: len(begun) == 3)
            for writer in writers:
                reset(writer)
            await until(lambda: ended == ["cut off"] * 2 and not room._used)
            go_on.set()
            await until(lambda: ended[2:] == ["/plain"])
            # Who only sends no more may wait for its answer.
            ((status, _, body),) = parse(await talk(web, GET, eof=True))
            assert (status, body) == (200, b"done")

    run(main)


def test_who_sends_no_more_gives_way_where_places_are_wanted(run: Run) -> None:
    async def main() -> None:
        room = LongAnswers(1)
        begun = 0
        never = asyncio.Event()

        async def answer(request: Request) -> Response:
            nonlocal begun
            begun += 1
            if request.path == "/last":
                return Response(b"done")
            async with room.reserve(request):
                await never.wait()
            raise AssertionError

        async with served(answer, connections_max=3) as web:
            for number in range(3):
                _, writer = await dial(web)
                writer.write(GET)
                await until(lambda number=number: begun == number + 1)  # type: ignore[misc]
                writer.write_eof()
            await until(lambda: len(web.server._waiting) == 3)
            last = GET.replace(b"/x", b"/last").replace(
                b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"
            )
            ((status, _, _),) = parse(await talk(web, last))
            assert (status, web.server.evicted) == (200, 1)

    run(main)


def reset(writer: asyncio.StreamWriter) -> None:
    linger = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    writer.transport.abort()


def test_two_scrapes_are_made_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    running = Running()

    async def main() -> None:
        service: Any = FakeService(MemoryStore())
        app = Application(service, lambda: service)
        collector = await app.collector.get()
        monkeypatch.setattr(collector, "sample", running.counted(collector.sample))
        answers = await asyncio.gather(*(app.answer(asked("/metrics")) for _ in range(10)))
        assert {each.status for each in answers} == {200}
        assert (running.most, running.count) == (2, 0)
        for each in answers:
            await each.close()

    asyncio.run(main())


@pytest.mark.parametrize("what", ["stats", "internalStats", "partitioned-stats"])
def test_statistics_of_many_subscriptions_are_made_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    module: Any = internal_stats if what == "internalStats" else topic_statistics
    fill = module._fill
    running = Running()

    async def scenario(rest: Rest) -> None:
        topic = "t-partition-0" if what == "partitioned-stats" else "t"
        if topic != "t":
            assert (await rest("PUT", f"{P}/t/partitions", "1"))[0] == 204
        for number in range(20):
            assert (await rest("PUT", f"{P}/{topic}/subscription/s{number}"))[0] == 204
        rest.app.__dict__["statistics"] = LongAnswers(100 * KIB, 8 * KIB)
        monkeypatch.setattr(module, "_fill", running.counted(fill))
        answers = await asyncio.gather(*(rest("GET", f"{P}/t/{what}") for _ in range(10)))
        assert {status for status, _ in answers} == {200}
        assert (running.most, running.count) == (1, 0)

    run_rest(tmp_path, scenario)


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (P, "topics"),
        (f"{P}/partitioned", "topics"),
        ("/admin/v2/namespaces/public/default/topics", "topics"),
        (f"{P}/t/subscriptions", "subscriptions"),
        *((f"/admin/v2/broker-stats/{each}", "broker-stats") for each in BROKER_STATS),
    ],
)
def test_few_answers_about_all_topics_are_made_at_once(
    tmp_path: Path, path: str, line: str
) -> None:
    async def scenario(rest: Rest) -> None:
        await rest.broker.topic(f"{NAME}/t")
        room = rest.app.long_answers[line]
        async with AsyncExitStack() as others:
            for _ in range(CONCURRENT_MAX[line]):
                await others.enter_async_context(room.reserve(asked()))
            waiting = asyncio.create_task(rest.answer("GET", path))
            await until(lambda: room._waiting or waiting.done())
            assert not waiting.done()
        answer = await waiting
        assert answer.status == 200 and not room._used
        await answer.close()

    run_rest(tmp_path, scenario)


def test_what_scrapes_hold_is_charged_and_there_is_room_for_some() -> None:
    async def main() -> None:
        service: Any = FakeService(MemoryStore())
        service.loaded = [Topic(f"{NAME}/t{number}", "public/default") for number in range(100)]
        memory = service.client_memory
        app = Application(service, lambda: service)

        async def held_bytes() -> int:
            request = asked("/metrics")
            answer = await app.answer(request)
            await answer.close()
            return answer.held_bytes

        memory.total_max = 1 << 30
        assert 100 * 500 < await held_bytes() < 100 * 5_000
        # However much it is, it is not refused where there is nothing else.
        memory.total_max = 100 * KIB
        assert await held_bytes() == memory.answers_max // metrics.SAMPLES_MIN

    asyncio.run(main())


class Told(dict[str, Any]):
    """One that is told, and counted while it is there."""

    alive = 0

    def __init__(self, **fields: Any) -> None:
        super().__init__(fields)
        Told.alive += 1

    def __del__(self) -> None:
        Told.alive -= 1


def told_of_topic(count: int) -> dict[str, Any]:
    subscriptions = {
        str(number): Told(consumers=[Told() for _ in range(count)]) for number in range(3)
    }
    return {"publishers": [Told() for _ in range(count)], "subscriptions": subscriptions}


def told_below_topic(count: int) -> dict[str, Any]:
    cursors = {str(number): Told() for number in range(count)}
    return {"ledgers": [Told() for _ in range(count)], "cursors": cursors}


@pytest.mark.parametrize(
    ("module", "made"), [(topic_statistics, told_of_topic), (internal_stats, told_below_topic)]
)
def test_statistics_are_freed_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
    module: Any,
    made: Callable[[int], dict[str, Any]],
) -> None:
    alive: list[int] = []

    class Steps:
        async def pause(self) -> None:
            alive.append(Told.alive)

    monkeypatch.setattr(module, "Slices", Steps)
    Told.alive = 0
    answer = made(100)
    alive.append(Told.alive)
    asyncio.run(module.forget(answer))
    assert alive[0] >= 200 and alive[-1] <= 1 and Told.alive == 0
    assert max(before - after for before, after in pairwise(alive)) <= 2


@pytest.mark.parametrize("is_cut_off", [False, True])
@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("STATS", f"{P}/t/stats"),
        ("INTERNAL_STATS", f"{P}/t/internalStats"),
        ("STATS", f"{P}/p/partitioned-stats"),
        ("INTERNAL_STATS", f"{P}/p/partitioned-internalStats"),
    ],
)
def test_statistics_are_freed_so_when_they_are_told_and_when_their_client_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, path: str, is_cut_off: bool
) -> None:
    freed: list[dict[str, Any]] = []
    told: list[dict[str, Any]] = []
    real = getattr(statistics, kind)

    async def tell(*asked: Any) -> dict[str, Any]:
        told.append(await real.read(*asked))
        return told[-1]

    async def forget(answer: dict[str, Any]) -> None:
        freed.append(answer)
        await real.forget(answer)

    async def never(value: Any) -> Response:
        await asyncio.Event().wait()
        raise AssertionError

    async def scenario(rest: Rest) -> None:
        assert (await rest("PUT", f"{P}/p/partitions", "1"))[0] == 204
        for topic in ("t", "p-partition-0"):
            assert (await rest("PUT", f"{P}/{topic}/subscription/s"))[0] == 204
        monkeypatch.setattr(statistics, kind, real._replace(read=tell, forget=forget))
        if is_cut_off:
            monkeypatch.setattr(Response, "long_json", never)
        asking = asyncio.create_task(rest.answer("GET", path))
        if is_cut_off:
            await until(lambda: told)
            for _ in range(100):
                await asyncio.sleep(0)
            asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        assert asking.cancelled() == is_cut_off
        assert len(told) == 1 and any(each is told[0] for each in freed)
        assert not told[0].get("subscriptions") and not told[0].get("cursors")

    run_rest(tmp_path, scenario)

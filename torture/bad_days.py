"""Single faults of disks, each as one command that prints what was asked and what was got.

    python -m torture.bad_days NAME [NAME ...] | all

The broker is a real process; errors come from harness/errors.c, full disks are a small mounted ext4
(that needs root).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from harness import wire
from harness.brokers import Broker, BrokerFailed
from harness.client import Connection, Position
from harness.errors import Errors, build_errors
from harness.small_disk import small_disk

from torture.clerk import attempt, connected, publish, send_one, take
from torture.flip_rounds import Flip
from torture.log_judge import Output, refusal

TOPIC = "persistent://public/default/bad-day"
REST = "/admin/v2/persistent/public/default"
HEALTH = "/admin/v2/brokers/health"


def say(what: str, value: object) -> None:
    """One line of the report."""
    print(f"  {what:<58} {value}", flush=True)


class Scene:
    """A broker in a folder of its own, with the errors' library."""

    def __init__(self, folder: Path, data: Path | None = None, **settings: str) -> None:
        self.broker = Broker("pyxbroker", folder / "broker", settings=settings)
        self.broker.data = data or folder / "data"
        self.broker.data.mkdir(parents=True, exist_ok=True)
        self.errors = Errors(build_errors(folder), self.broker.data, folder / "errors")
        self.broker.environment = self.errors.environment()

    @property
    def port(self) -> int:
        """Where the broker serves."""
        return self.broker.port

    def output(self) -> Output:
        """What the broker says from now on."""
        return Output(self.broker.directory / "output.log")

    def attempt_start(self) -> str:
        """What became of a start, in words."""
        output = self.output()
        try:
            self.broker.start()
        except BrokerFailed:
            status = self.broker.process.returncode if self.broker.process else None
            self.broker.kill()
            traceback = "with a traceback, " if "Traceback" in output.text() else ""
            return f"exit {status}, {traceback}{refusal(output)}"
        return "serves"

    def close(self) -> None:
        """End it."""
        self.broker.kill()
        self.errors.close()


def exclusive(connection: Connection, subscription: str = "sub") -> Awaitable[None]:
    """Subscribe from the first message on."""
    return connection.subscribe(TOPIC, 1, subscription, fields={13: wire.EARLIEST})


def shared(connection: Connection, subscription: str = "sub") -> Awaitable[None]:
    """The same, shared."""
    fields = {3: wire.SHARED, 13: wire.EARLIEST}
    return connection.subscribe(TOPIC, 1, subscription, fields=fields)


# --- errors on reads ----------------------------------------------------------------------------

MESSAGES = 20_000


async def eio_reads(folder: Path) -> None:
    """One second of EIO on reads of entry logs, while consumers work off a backlog."""
    scene = Scene(folder)
    try:
        scene.broker.start()
        for name, subscribing in (("cumulative", exclusive), ("shared", shared)):
            async with connected(scene.port) as connection:
                await subscribing(connection, name)
        await publish(scene.port, TOPIC, MESSAGES, 4096)
        # The reader comes first: what both subscriptions have acknowledged is deleted.
        for name in ("reader", "cumulative", "shared"):
            scene.broker.stop()
            scene.broker.start()
            await _one_second_of_eio(scene, name)
    finally:
        scene.close()


async def _one_second_of_eio(scene: Scene, name: str) -> None:
    output = scene.output()
    everything = set(range(MESSAGES))
    first = await _take_with_error(scene, name, hit=True)
    say(f"{name}: got while connected, of {MESSAGES}", len(first))
    say(f"{name}: log lines", len(output.log_lines()))
    if name == "reader":
        gaps = sum(1 for a, b in zip(first, [*first][1:], strict=False) if b != a + 1)
        say("reader: missing, gaps", f"{len(everything - first.keys())}, {gaps}")
        return
    again = await _take_with_error(scene, name, hit=False)
    missing = everything - first.keys() - again.keys()
    say(f"{name}: more after a reconnect", len(again.keys() - first.keys()))
    scene.broker.stop()
    scene.broker.start()
    last = await _take_with_error(scene, name, hit=False)
    say(f"{name}: more after a restart", len(last.keys() & missing))
    say(f"{name}: never delivered", len(missing - last.keys()))


async def _take_with_error(scene: Scene, name: str, hit: bool) -> dict[int, Position]:
    async with connected(scene.port) as connection:
        if name == "reader":
            await connection.reader(TOPIC, 1)
        else:
            await (shared if name == "shared" else exclusive)(connection, name)
        count = 0

        def on_each(_sequence: int, position: Position) -> None:
            nonlocal count
            count += 1
            if hit and count == 3000:
                scene.errors.clear()
                scene.errors.rule("entry_log", "read", error="EIO", seconds=1.0)
            if name == "shared":
                connection.ack(1, [position])
            elif name == "cumulative" and count % 100 == 0:
                connection.ack(1, [position], cumulative=True)

        got = await take(connection, 1, 4.0, on_each)
        if name == "cumulative" and got:
            connection.ack(1, [max(got.values())], cumulative=True)
        await asyncio.sleep(0.5)
        return got


async def eio_open(folder: Path) -> None:
    """The same error while a topic is opened: what was acknowledged must not come again."""
    scene = Scene(folder)
    try:
        scene.broker.start()
        async with connected(scene.port) as connection:
            await shared(connection)
            sent = await publish(scene.port, TOPIC, 5000, 100)
            await connection.ack_with_receipt(1, [sent[n] for n in sent if n % 2])
            say("acknowledged with an answer, of 5000", sum(1 for n in sent if n % 2))
        scene.broker.kill()
        scene.broker.start()  # recovers from the journal
        scene.broker.stop()  # and has all in entry logs now
        pristine = folder / "pristine"
        shutil.copytree(scene.broker.data, pristine)
        for skip in range(6):
            shutil.rmtree(scene.broker.data)
            shutil.copytree(pristine, scene.broker.data)
            await _open_with_error(scene, skip)
    finally:
        scene.close()


async def _open_with_error(scene: Scene, skip: int) -> None:
    scene.broker.start()
    scene.errors.clear()
    rule = scene.errors.rule("entry_log", "read", error="EIO", seconds=1.0, skip=skip)
    async with connected(scene.port) as connection:
        say(f"subscribe; reads fail for 1 s after {skip} reads", await attempt(shared(connection)))
        got = await take(connection, 1, 3.0)
    scene.broker.stop()
    scene.broker.start()
    async with connected(scene.port) as connection:
        await shared(connection)
        later = await take(connection, 1, 2.0)
    acked, others = sum(1 for n in got if n % 2), sum(1 for n in got if not n % 2)
    say("  came again although acknowledged, came of the others", f"{acked}, {others} of 2500")
    acked, others = sum(1 for n in later if n % 2), sum(1 for n in later if not n % 2)
    say("  the same after a healthy restart", f"{acked}, {others} of 2500")
    say("  errors met", scene.errors.hits(rule))
    scene.broker.kill()


# --- damaged metadata ---------------------------------------------------------------------------


async def metadata_flip_last(folder: Path) -> None:
    """One bit in the last transaction of the metadata's log, after kill -9."""
    scene = Scene(folder)
    try:
        scene.broker.start()
        sent = await publish(scene.port, TOPIC, 1000, 100)
        say("messages with a receipt", len(sent))
        scene.broker.kill()
        wal = scene.broker.data / "metadata" / "metadata.db-wal"
        flip = Flip(wal, "metadata_wal", _end_of_last_frame(wal) - 2000, 3)
        flip.apply()
        output = scene.output()
        say("start", scene.attempt_start())
        if scene.broker.process is not None:
            async with connected(scene.port) as connection:
                reading = await attempt(connection.reader(TOPIC, 1))
                got = await take(connection, 1, 2.0) if reading.startswith("done") else {}
            say("reader", reading)
            say("messages read", len(got))
        warned = [line for line in output.log_lines() if " INFO " not in line]
        say("lines of warning", len(warned))
        for line in warned[:5]:
            print(f"    {line}")
    finally:
        scene.close()


def _end_of_last_frame(wal: Path) -> int:
    """Where the last frame of the current generation ends (SQLite's file format, section 4)."""
    data = wal.read_bytes()
    [page_bytes] = struct.unpack_from(">I", data, 8)
    salts = data[16:24]
    at = 32
    while at + 24 + page_bytes <= len(data) and data[at + 8 : at + 16] == salts:
        at += 24 + page_bytes
    return at


async def metadata_flips(folder: Path) -> None:
    """Twenty times one bit in metadata.db."""
    scene = Scene(folder)
    generator = random.Random(1)
    try:
        scene.broker.start()
        for number in range(30):
            scene.broker.rest("PUT", f"{REST}/topic-{number}")
        await publish(scene.port, TOPIC, 1000, 100)
        scene.broker.stop()
        pristine = folder / "pristine"
        shutil.copytree(scene.broker.data, pristine)
        served = 0
        for _ in range(20):
            shutil.rmtree(scene.broker.data)
            shutil.copytree(pristine, scene.broker.data)
            database = scene.broker.data / "metadata" / "metadata.db"
            offset = generator.randrange(database.stat().st_size)
            Flip(database, "metadata", offset, generator.randrange(8)).apply()
            outcome = scene.attempt_start()
            served += outcome == "serves"
            say(f"bit in byte {offset}", outcome)
            scene.broker.kill()
        say("starts that serve, of 20", served)
    finally:
        scene.close()


# --- full disks ---------------------------------------------------------------------------------


def fill(path: Path) -> int:
    """Write until nothing more goes; the bytes that went."""
    written = 0
    with path.open("wb", buffering=0) as file:
        for block_bytes in (1 << 20, 4096, 512):
            with contextlib.suppress(OSError):
                while True:
                    written += file.write(b"x" * block_bytes)
    return written


SMALL = {"journalMaxSizeMB": "16"}
RESERVED_S = 4.0
"""By then a first start has made its reserve and the space that the metadata keeps for itself."""


async def full_disk_others(folder: Path) -> None:
    """Others have filled the disk to its last block."""
    with small_disk(folder, 400) as mounted:
        disk = mounted.path
        scene = Scene(folder, disk / "data", **SMALL)
        try:
            scene.broker.start()
            for number in range(3):
                await publish(scene.port, f"{TOPIC}-{number}", 2000, 4096)
            await asyncio.sleep(RESERVED_S)
            say("filled by others, bytes", fill(disk / "others"))
            async with connected(scene.port) as connection:
                opened = await attempt(connection.producer(f"{TOPIC}-0", 1, "one"))
                say("producer", opened)
                if opened.startswith("done"):
                    say("send", await send_one(connection, 1, 0, 100, 12))
            for number in range(2):
                path = f"{REST}/bad-day-{number}?force=true"
                status, answer = await asyncio.to_thread(scene.broker.rest, "DELETE", path)
                say(f"DELETE of topic {number}", f"{status} {answer or ''}")
            await _say_health(scene)
            scene.broker.stop()
            say("restart", scene.attempt_start())
            if scene.broker.process is not None:
                path = f"{REST}/bad-day-2?force=true"
                status, answer = await asyncio.to_thread(scene.broker.rest, "DELETE", path)
                say("DELETE after the restart", f"{status} {answer or ''}")
                (disk / "others").unlink()
                sent = await publish(scene.port, f"{TOPIC}-new", 10, 100)
                say("sends after others gave their space back, of 10", len(sent))
        finally:
            scene.close()


async def _say_health(scene: Scene) -> None:
    say("health", await asyncio.to_thread(scene.broker.http_status, HEALTH))
    command = ["curl", "-s", f"{scene.broker.web_url}/metrics"]
    output = await asyncio.to_thread(subprocess.check_output, command, text=True)
    found = [line for line in output.splitlines() if line.startswith("bookie_SERVER_STATUS")]
    say("metric", found)


async def full_disk_publish(folder: Path) -> None:
    """Publishing has filled the disk; a consumer on the same connection frees it again."""
    with small_disk(folder, 300) as mounted:
        disk = mounted.path
        scene = Scene(folder, disk / "data", **SMALL)
        try:
            scene.broker.start()
            async with connected(scene.port) as connection:
                await exclusive(connection)
                sent = await publish(scene.port, TOPIC, 200_000, 4096, 15)
                say("stored before it was full (4 kB each)", len(sent))
                await _produce_one(connection, 0, 40)
                await _say_health(scene)
                got = await take(connection, 1, 5.0)
                say("the consumer on that connection got", len(got))
                if got:
                    acking = connection.ack_with_receipt(1, [max(got.values())], cumulative=True)
                    say("its acknowledgement of all", await attempt(acking))
                await asyncio.sleep(20)
                free = shutil.disk_usage(disk).free
                say("free 20 s later, bytes", free)
            async with connected(scene.port) as connection:
                await _produce_one(connection, 1, 15)
        finally:
            scene.close()


async def _produce_one(connection: Connection, sequence: int, timeout_s: float) -> None:
    opened = await attempt(connection.producer(TOPIC, 1, "one"))
    say("producer", opened)
    if opened.startswith("done"):
        say("send", await send_one(connection, 1, sequence, 100_000, timeout_s))


# --- the journal, and files that are gone -------------------------------------------------------


async def journal_fail(folder: Path) -> None:
    """One sync of the journal fails while consumers read."""
    scene = Scene(folder)
    try:
        scene.broker.start()
        other = f"{TOPIC}-other"
        for topic in (TOPIC, other):
            await publish(scene.port, topic, 5000, 1000)
        scene.broker.stop()
        scene.broker.start()
        output = scene.output()
        async with connected(scene.port) as connection:
            await connection.producer(TOPIC, 1, "one")
            say("send before", await send_one(connection, 1, 0, 100, 5))
            scene.errors.rule("journal", "sync", error="EIO", hits_max=1)
            say("send that meets the error", await send_one(connection, 1, 1, 100, 10))
            say("a producer afterwards", await attempt(connection.producer(TOPIC, 3, "two")))
            for topic in (TOPIC, other):
                reading = await attempt(connection.reader(topic, 2))
                say(f"reader of {topic.rpartition('/')[2]}", reading)
                if reading.startswith("done"):
                    say("  messages, of 5000 and 1", len(await take(connection, 2, 3.0)))
                    await connection.request(wire.CLOSE_CONSUMER, 2, {1: 2})
        say("health", scene.broker.http_status(HEALTH))
        running = scene.broker.process is not None and scene.broker.process.poll() is None
        say("the process", "lives" if running else "has ended")
        for line in [line for line in output.log_lines() if " INFO " not in line][:4]:
            print(f"    {line[:200]}")
    finally:
        scene.close()


async def deleted_files(folder: Path) -> None:
    """A file that should be there is not."""
    scene = Scene(folder, journalMaxSizeMB="16")
    try:
        scene.broker.start()
        await publish(scene.port, TOPIC, 2000, 1000)
        scene.broker.stop()
        scene.broker.start()
        await publish(scene.port, TOPIC, 200, 1000)
        scene.broker.kill()
        pristine = folder / "pristine"
        shutil.copytree(scene.broker.data, pristine)
        for pattern in (
            *("bookie/ledgers/*.log", "bookie/journal/*.journal", "metadata/metadata.db-wal"),
            *("metadata/metadata.db", "metadata", "bookie/current/VERSION", "bookie"),
        ):
            shutil.rmtree(scene.broker.data)
            shutil.copytree(pristine, scene.broker.data)
            gone = sorted(scene.broker.data.glob(pattern))[0]
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
            say(f"start without {gone.relative_to(scene.broker.data)}", scene.attempt_start())
            if scene.broker.process is not None:
                async with connected(scene.port) as connection:
                    reading = await attempt(connection.reader(TOPIC, 1))
                    got = await take(connection, 1, 1.0) if reading.startswith("done") else {}
                say("  it reads, of 2000 and 200", f"{len(got)} ({reading})")
            scene.broker.kill()
    finally:
        scene.close()


SCENARIOS: dict[str, Callable[[Path], Coroutine[Any, Any, None]]] = {
    "eio-reads": eio_reads,
    "eio-open": eio_open,
    "metadata-flip-last": metadata_flip_last,
    "metadata-flips": metadata_flips,
    "full-disk-others": full_disk_others,
    "full-disk-publish": full_disk_publish,
    "journal-fail": journal_fail,
    "deleted-files": deleted_files,
}


def main(arguments: list[str] | None = None) -> int:
    """Run the scenarios that are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="+", choices=[*SCENARIOS, "all"])
    names = parser.parse_args(arguments).name
    for name in SCENARIOS if "all" in names else names:
        print(f"{name}: {SCENARIOS[name].__doc__}", flush=True)
        folder = Path(tempfile.mkdtemp(prefix="bad-day-"))
        try:
            asyncio.run(SCENARIOS[name](folder))
        finally:
            shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())

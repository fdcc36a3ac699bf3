"""Patterns of topics, lists of a namespace's topics, and the news of them."""

from __future__ import annotations

import asyncio
import gc
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loop_turns import counted_turns
from metadata_backends import coroutine_test
from one_bookie import until
from one_broker import Broker, Client, run
from oracles import wire
from oracles.topics import topics_hash
from pyxbroker.base.errors import MetadataStoreError
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.commands import topic_list
from pyxbroker.broker.commands.topic_list import MatchingTopics, TopicListWatcher, WatchedNamespace
from pyxbroker.broker.commands.topics_pattern import (
    BeyondRE2,
    compile_pattern,
    hash_of_parts,
    matches,
    sorted_parts,
    without_domain,
)
from pyxbroker.metadata import paths
from pyxbroker.metadata.memory import MemoryStore
from pyxbroker.metadata.store import MetadataError
from pyxbroker.proto import PulsarApi as pb

NAMESPACE = "public/default"
PREFIX = f"persistent://{NAMESPACE}/"


# --- patterns -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "topic", "matching"),
    [
        (PREFIX + "a.*", PREFIX + "abc", True),
        (PREFIX + "a.*", PREFIX + "b", False),
        (PREFIX + "a", PREFIX + "ab", False),
        (PREFIX + "a.*", "non-persistent://public/default/abc", True),
        ("public/default/a", PREFIX + "a", True),
        (".*/a", PREFIX + "a-partition-7", True),
        (PREFIX + "a-partition-.*", PREFIX + "a-partition-7", False),
        ("non-persistent://public/default/x?", PREFIX + "x", True),
        (r".*/\Qa.b\E.*", PREFIX + "a.bc", True),
        (r".*/\Qa.b\E.*", PREFIX + "axbc", False),
        (r"(?<ns>.*)/a", PREFIX + "a", True),
        (r".*/\w", PREFIX + "ü", False),
        (r".*/[^a\]]", PREFIX + "b", True),
        (r"public/default/(a+)+b", PREFIX + "aab", True),
        (r"(.*a)*.*.*/x", PREFIX + "x", True),
        (r"(.*a)*.*.*/x", PREFIX + "xy", False),
        (r".*/\p{L}+", PREFIX + "ü", True),
        (r".*/[[:alpha:]]", PREFIX + "1", False),
        (r".*/.", PREFIX + "\U0001f600", True),
        (r".*/(?i)A", PREFIX + "a", True),
        (r"(?P<n>.*)/a", PREFIX + "a", True),
    ],
)
def test_what_a_pattern_names(pattern: str, topic: str, matching: bool) -> None:
    compiled = compile_pattern(pattern)
    assert matches(compiled, TopicName.get(topic)) is matching


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(?!public/default/x).*", r"invalid perl operator: \(\?!"),
        ("(?<=a)b", r"invalid perl operator: \(\?<"),
        (r"(a)\1", r"invalid escape sequence: \\1"),
        (r".*\R", r"invalid escape sequence: \\R"),
        (r"\p{javaLowerCase}", "invalid character class range"),
        ("a*+", r"bad repetition operator: \*\+"),
        (r"(\pL{40}){20}", "pattern too large"),
    ],
)
def test_what_re2_does_not_know_is_left_to_the_client(pattern: str, reason: str) -> None:
    with pytest.raises(BeyondRE2, match=f"the syntax of RE2: {reason}"):
        compile_pattern(pattern)


def test_without_re2_patterns_are_left_to_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(BeyondRE2, match="the package google-re2 is not installed"):
        compile_pattern("public/default/.*")


@pytest.mark.parametrize(
    "pattern", ["(", ")", "a{3,1}", "*", "[a", "a\\", "x://y", "http://public/default/a"]
)
def test_what_is_no_pattern_is_refused(pattern: Any) -> None:
    with pytest.raises(MetadataStoreError, match="topics pattern") as raised:
        compile_pattern(pattern)
    assert raised.type is MetadataStoreError


@pytest.mark.parametrize(
    "pattern",
    ["(a+)+b", "(a|a)*b", ".*" * 24 + "x", "(a?){1000}b", "a?" * 500 + "a" * 500, ".*(a|b).*a.{20}",
     "(.*a){100}", "(.{0,20}a){20}"],
)  # fmt: skip
def test_every_pattern_is_evaluated_in_a_time_that_is_linear(pattern: str) -> None:
    """Backtracking engines need longer for these than anybody can wait."""
    compiled = compile_pattern(pattern)
    took = []
    for length in (1_000, 16_000):
        names = [b"a" * length, b"ab" * (length // 2), b"a" * length + b"!"]
        compiled.fullmatch(names[0])
        best = float("inf")  # of three: others use the processor's caches, too
        for _ in range(3):
            began = time.process_time()
            for name in names:
                compiled.fullmatch(name)
            best = min(best, time.process_time() - began)
        took.append(max(best, 0.001))
    assert took[1] < 64 * took[0]


def test_a_broker_without_patterns_does_not_load_their_engine() -> None:
    code = "import sys, pyxbroker.broker.commands.handlers; assert 're2' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_domain_of_a_pattern_is_cut_off() -> None:
    assert without_domain("persistent://a/b/c://d") == "a/b/c"
    assert without_domain("(persistent|non-persistent://a/b/c)") == "(persistent|a/b/c)"
    assert without_domain("a/b/.*") == "a/b/.*"


@given(st.text(alphabet=r"ab.*+?{}2,()[]|\^$", max_size=50))
def test_no_pattern_takes_long(pattern: str) -> None:
    try:
        compiled = compile_pattern(pattern)
    except MetadataStoreError:
        return
    began = time.process_time()
    for name in (b"a" * 80, b"ab" * 40, b"a" * 79 + b"!"):
        compiled.fullmatch(name)
    assert time.process_time() - began < 0.1


@given(st.text(alphabet="ab.*?()|", max_size=12), st.text(alphabet="ab/", max_size=8))
def test_what_both_engines_know_means_the_same_to_both(pattern: str, local: str) -> None:
    try:
        expected = re.compile(pattern).fullmatch("a/b/" + local) is not None
        compiled = compile_pattern(pattern)
    except (re.error, MetadataStoreError):
        return
    assert (compiled.fullmatch(f"a/b/{local}".encode()) is not None) == expected


def hash_of(names: Iterable[str]) -> str:
    async def pause() -> None:
        """Nobody else is there."""

    async def main() -> str:
        return await hash_of_parts(await sorted_parts(list(names), pause), pause)

    return asyncio.run(main())


def test_the_hash_of_a_list_is_guavas() -> None:
    # Said by Apache Pulsar 4.2.4 of these names.
    namespace = "persistent://public/p1-1795273957/"
    assert hash_of([]) == "00000000"
    assert hash_of([namespace + "a"]) == "4490b3b4"
    parts = [f"parted-partition-{index}" for index in range(3)]
    names = [namespace + name for name in ("x y", "b", "ü", "a", *parts)]
    assert hash_of(names) == hash_of(reversed(names)) == topics_hash(names) == "26877a8c"


def test_names_are_sorted_as_java_does() -> None:
    high, higher = "\ufb00", "\U0001f600"
    text = f"{higher},{high}".encode()
    assert hash_of([high, higher]) == wire.crc32c(text).to_bytes(4, "little").hex()


@given(st.lists(st.text(alphabet="ab/\ufb00\U0001f600", max_size=4)), st.integers(1, 400))
def test_the_hash_of_a_long_list_is_that_of_all_of_it(words: list[str], copies: int) -> None:
    names = [f"{word}{copy * 7919 % 400}" for copy in range(copies) for word in words]
    assert hash_of(names) == topics_hash(names)


@pytest.fixture
def no_collection() -> Iterator[None]:
    """The garbage collector comes when it wants to; its time is not measured."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("order", ["sorted", "mixed", "backwards"])
@pytest.mark.parametrize("letter", ["t", "ü"])
def test_a_hundred_thousand_names_are_sorted_and_hashed_in_short_steps(
    no_collection: None, order: str, letter: str
) -> None:
    names = sorted(f"{PREFIX}{letter}{number}" for number in range(100_000))
    if order == "mixed":
        names = list(set(names))
    elif order == "backwards":
        names.reverse()
    runs: list[list[float]] = []

    async def main() -> str:
        steps: list[float] = []
        runs.append(steps)
        began = time.thread_time()

        async def pause() -> None:
            nonlocal began
            steps.append(time.thread_time() - began)
            began = time.thread_time()

        return await hash_of_parts(await sorted_parts(names, pause), pause)

    for _ in range(3):
        assert asyncio.run(main()) == topics_hash(names)
    # The steps are the same ones each time; what one takes longer now and then is not its own.
    # Alone the longest takes 1 ms; to sort them all in one step would take 30 ms.
    assert max(map(min, zip(*runs, strict=True))) < 0.01


# --- lists ---------------------------------------------------------------------------------------


async def topics(client: Client, **fields: Any) -> Any:
    fields.setdefault("namespace", NAMESPACE)
    command = pb.CommandGetTopicsOfNamespace(request_id=0, **fields)
    return await client.request(command, "getTopicsOfNamespaceResponse")


def test_a_list_has_the_topics_of_its_namespace(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        answer = await topics(client)
        assert (list(answer.topics), answer.topics_hash) == ([], "00000000")
        for name in ("b", "a b", "ü", "__change_events"):
            await broker.topic(PREFIX + name)
        await broker.topics.partitioned.create(TopicName.get(PREFIX + "__transaction_log_0"), 1)
        await broker.node.store.put(paths.namespace_policies("public/other"), b"{}")
        await broker.topic("persistent://public/other/x")
        await broker.node.store.put(paths.managed_ledgers(NAMESPACE) + "/%2F", b"")
        answer = await topics(client)
        assert sorted(answer.topics) == [PREFIX + "a b", PREFIX + "b", PREFIX + "ü"]
        assert (answer.filtered, answer.changed) == (False, True)
        assert answer.topics_hash == topics_hash(answer.topics)
        assert list((await topics(client, mode=pb.CommandGetTopicsOfNamespace.ALL)).topics) == list(
            answer.topics
        )
        same = await topics(client, topics_hash=answer.topics_hash)
        assert (list(same.topics), same.changed) == ([], False)
        other = await topics(client, namespace="public/nowhere")
        assert list(other.topics) == []

    run(tmp_path, scenario)


def test_a_list_has_the_non_persistent_topics_that_are_open(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        name = f"non-persistent://{NAMESPACE}/t"
        await broker.topic(PREFIX + "t")
        await broker.node.store.put(paths.namespace_policies("public/other"), b"{}")
        await broker.topic("non-persistent://public/other/t")
        topic = await broker.topic(name)
        modes = pb.CommandGetTopicsOfNamespace
        assert list((await topics(client, mode=modes.NON_PERSISTENT)).topics) == [name]
        everything = (await topics(client, mode=modes.ALL)).topics
        assert sorted(everything) == [name, PREFIX + "t"]
        topic.fenced = True  # as while it is being closed
        assert list((await topics(client, mode=modes.NON_PERSISTENT)).topics) == []
        topic.fenced = False

    run(tmp_path, scenario)


def test_a_list_is_filtered_by_a_pattern(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for name in ("a1", "b"):
            await broker.topic(PREFIX + name)
        await broker.topics.partitioned.create(TopicName.get(PREFIX + "a2"), 1)
        answer = await topics(client, topics_pattern=PREFIX + "a.")
        assert list(answer.topics) == [PREFIX + "a1", PREFIX + "a2-partition-0"]
        assert answer.filtered
        same = await topics(client, topics_pattern=".*/a.", topics_hash=answer.topics_hash)
        assert (list(same.topics), same.changed, same.filtered) == ([], False, True)
        for pattern in (".*/a" + "|x" * 25, "(?=.*a).*"):
            answer = await topics(client, topics_pattern=pattern)
            assert (len(answer.topics), answer.filtered) == (3, False)
        assert (await topics(client, topics_pattern="(")).error == pb.MetadataError
        assert (await topics(client, namespace="nonsense")).error == pb.InvalidTopicName

    run(tmp_path, scenario)


def test_a_broker_may_leave_all_patterns_to_clients(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await broker.topic(PREFIX + "b")
        answer = await topics(client, topics_pattern=PREFIX + "a")
        assert (list(answer.topics), answer.filtered) == ([PREFIX + "b"], False)

    run(tmp_path, scenario, enableBrokerSideSubscriptionPatternEvaluation=False)


def test_lists_count_as_lookups(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        commands = [
            pb.CommandGetTopicsOfNamespace(namespace=NAMESPACE, request_id=number)
            for number in range(2)
        ]
        for command in commands:
            client.send(command)
        assert (await client.receive("error")).error == pb.TooManyRequests
        assert (await client.receive("getTopicsOfNamespaceResponse")).request_id == 0

    run(tmp_path, scenario, maxConcurrentLookupRequest=1)


# --- watching ------------------------------------------------------------------------------------


async def watch(client: Client, pattern: str = PREFIX + "a.*", **fields: Any) -> Any:
    settings: dict[str, Any] = {"watcher_id": 1, "namespace": NAMESPACE} | fields
    command = pb.CommandWatchTopicList(request_id=0, topics_pattern=pattern, **settings)
    return await client.request(command, "watchTopicListSuccess")


async def told(client: Client, watcher_id: int = 1) -> tuple[list[str], list[str], str]:
    update = await client.receive("watchTopicUpdate")
    assert update.watcher_id == watcher_id
    return list(update.new_topics), list(update.deleted_topics), update.topics_hash


def test_a_watcher_hears_of_topics_that_come_and_go(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        assert list((await watch(client)).topic) == []
        await broker.topic(PREFIX + "a1")
        assert await told(client) == ([PREFIX + "a1"], [], topics_hash([PREFIX + "a1"]))
        await broker.topic(PREFIX + "b")
        assert await client.quiet() == []
        topic = await broker.topic(PREFIX + "a2")
        both = [PREFIX + "a1", PREFIX + "a2"]
        assert await told(client) == ([PREFIX + "a2"], [], topics_hash(both))
        again = await watch(client)
        assert (list(again.topic), again.topics_hash) == (both, topics_hash(both))
        assert list((await watch(client, topics_hash=topics_hash(both))).topic) == []
        await broker.topics.deletion.delete(topic)
        assert await told(client) == ([], [PREFIX + "a2"], topics_hash([PREFIX + "a1"]))
        close = pb.CommandWatchTopicListClose(request_id=0, watcher_id=1)
        for _ in range(2):
            assert not hasattr(await client.request(close, "success"), "error")
        await broker.topic(PREFIX + "a3")
        assert await client.quiet() == []

    run(tmp_path, scenario)


def test_what_changes_while_the_answer_to_a_watch_is_made_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hash_of_parts = topic_list.hash_of_parts
    calls = 0

    async def scenario(broker: Broker) -> None:
        async def change_meanwhile(*arguments: Any) -> str:
            nonlocal calls
            calls += 1
            if calls == 1:
                await broker.topic(PREFIX + "a2")
                (watcher,) = client.connection.session.watchers.values()
                await until(lambda: PREFIX + "a2" in watcher.topics.names)
            return await hash_of_parts(*arguments)

        client = await broker.client()
        await broker.topic(PREFIX + "a1")
        monkeypatch.setattr(topic_list, "hash_of_parts", change_meanwhile)
        answer = await watch(client)
        both = [PREFIX + "a1", PREFIX + "a2"]
        assert (list(answer.topic), answer.topics_hash) == (both, topics_hash(both))

    run(tmp_path, scenario)


def test_many_changes_add_up(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        clients = [await broker.client() for _ in range(2)]
        for client in clients:
            await watch(client, watcher_id=7)
        names = [f"{PREFIX}a{number}" for number in range(50)]
        await asyncio.gather(*(broker.topic(name) for name in names))
        for client in clients:
            known: set[str] = set()
            while len(known) < 50:
                new, gone, found = await told(client, 7)
                assert gone == []
                known.update(new)
                assert found == topics_hash(known)
            assert known == set(names)

    run(tmp_path, scenario)


def test_others_have_their_turn_while_many_watchers_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pyxbroker.base.slices.SLICE_S", -1.0)
    turns: list[int] = []
    on_change = TopicListWatcher.on_change

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for watcher_id in range(5):
            await watch(client, watcher_id=watcher_id)
        now = 0

        async def noted(watcher: TopicListWatcher, *change: Any) -> bytes | None:
            turns.append(now)
            frame = await on_change(watcher, *change)
            if len(turns) == 2:
                # The last one goes before it was told.
                client.connection.session.watchers.pop(4).forget()
            return frame

        monkeypatch.setattr(TopicListWatcher, "on_change", noted)
        await broker.topic(PREFIX + "a1")
        while len(turns) < 4:
            await asyncio.sleep(0)
            now += 1
        for watcher_id in range(4):
            assert (await told(client, watcher_id))[0] == [PREFIX + "a1"]
        assert await client.quiet() == []

    run(tmp_path, scenario)
    assert len(set(turns)) == 4


@coroutine_test
async def test_topics_that_come_and_go_while_a_pattern_is_matched_are_taken_over_in_slices() -> (
    None
):
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr("pyxbroker.base.slices.SLICE_S", 0)
        namespace = WatchedNamespace(MemoryStore(), "public/default", None)
        nodes = {
            f"{kind}{number}": f"{PREFIX}{kind}{number}" for kind in "ab" for number in range(500)
        }
        names = {node: TopicName.get(name) for node, name in nodes.items()}
        before = {node: name for node, name in names.items() if node[0] == "a"}
        after = {node: name for node, name in names.items() if node[0] == "b"}
        namespace.topics = before
        matching = MatchingTopics(compile_pattern("public/default/.*"))
        async with counted_turns() as turn:
            matched: Counter[int] = Counter()

            def note(pattern: Any, topic: TopicName) -> bool:
                matched[turn()] += 1
                namespace.topics = after  # they change under way
                return matches(pattern, topic)

            monkeypatch.setattr(topic_list, "matches", note)
            await namespace._fill(matching)
        namespace.close()
    assert list(matching.names) == [str(each) for each in after.values()]
    assert matched.total() == 1_000
    assert max(matched.values()) == 1


def test_a_watcher_goes_with_its_connection(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        watching = len(broker.node.store._watchers)
        await watch(client)
        assert len(broker.node.store._watchers) == watching + 1
        client.connection.close()
        assert len(broker.node.store._watchers) == watching
        await broker.topic(PREFIX + "a1")

    run(tmp_path, scenario)


def test_a_connection_has_a_limit_of_watchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert topic_list.WATCHERS_MAX == 1_000
    monkeypatch.setattr(topic_list, "WATCHERS_MAX", 3)

    async def scenario(broker: Broker) -> None:
        client, other = await broker.client(), await broker.client()
        for number in range(3):
            assert not hasattr(await watch(client, watcher_id=number), "error")
        refusal = await watch(client, watcher_id=3)
        assert refusal.error == pb.NotAllowedError
        assert "at most 3 topic list watchers" in refusal.message
        assert not hasattr(await watch(other, watcher_id=3), "error")
        await client.request(pb.CommandWatchTopicListClose(watcher_id=1), "success")
        assert not hasattr(await watch(client, watcher_id=3), "error")

    run(tmp_path, scenario)


def test_watchers_that_cannot_be(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        for pattern, reason in (
            ("a" * 51, "longer than 50 characters"),
            (r"(a)\1", r"the syntax of RE2: invalid escape sequence: \1."),
        ):
            answer = await watch(client, pattern)
            assert (answer.error, reason in answer.message) == (pb.NotAllowedError, True)
        assert (await watch(client, "(")).error == pb.MetadataError
        assert (await watch(client, namespace="nonsense")).error == pb.InvalidTopicName
        assert len(client.connection.session.watchers) == 0

    run(tmp_path, scenario)


@pytest.mark.parametrize("enabled", [True, False])
def test_watching_is_announced_where_it_works(tmp_path: Path, enabled: bool) -> None:
    async def scenario(broker: Broker) -> None:
        client = Client(broker)
        client.send(pb.CommandConnect(client_version="test", protocol_version=21))
        flags = (await client.receive("connected")).feature_flags
        assert flags.supports_topic_watchers is enabled
        assert flags.supports_topic_watcher_reconcile is enabled
        assert hasattr(await watch(client), "error") is not enabled

    run(tmp_path, scenario, enableBrokerTopicListWatcher=enabled)


def test_a_list_that_cannot_be_read_is_read_again(tmp_path: Path) -> None:
    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await watch(client)
        store = broker.node.store
        children = store.children

        def fail(path: str) -> Any:
            if path != paths.managed_ledgers(NAMESPACE):
                return children(path)
            store.children = children  # type: ignore[method-assign]
            raise MetadataError("away")

        store.children = fail  # type: ignore[method-assign]
        await broker.topic(PREFIX + "a1")
        assert (await told(client))[0] == [PREFIX + "a1"]

    run(tmp_path, scenario)


def test_a_watcher_hears_of_topics_after_an_error_that_nobody_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(topic_list, "RETRY_S", 0.01)

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        await watch(client)
        read = topic_list._persistent_topics
        began: list[float] = []

        async def fail(*args: Any) -> Any:
            began.append(broker.loop.time())
            if len(began) < 6:
                raise ValueError("nobody has thought of this")
            return await read(*args)

        monkeypatch.setattr(topic_list, "_persistent_topics", fail)
        await broker.topic(PREFIX + "a1")
        assert (await told(client))[0] == [PREFIX + "a1"]
        # It waits twice as long each time, and tells each time what went wrong.
        assert began[5] - began[0] > 0.01 + 0.02 + 0.04 + 0.08 + 0.16 - 0.001
        errors = [each for each in caplog.records if each.levelname == "ERROR"]
        assert [each.getMessage() for each in errors] == [
            "watchers of topics cannot be notified"
        ] * 5
        assert all("nobody has thought of this" in str(each.exc_info) for each in errors)
        await broker.topic(PREFIX + "a2")
        assert (await told(client))[0] == [PREFIX + "a2"]

    run(tmp_path, scenario)


def test_a_watcher_that_cannot_be_told_keeps_nobody_else_from_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(topic_list, "RETRY_S", 0.01)
    update_of = topic_list.replies.topic_update

    async def scenario(broker: Broker) -> None:
        client = await broker.client()
        gone = await broker.topic(PREFIX + "a0")
        for watcher_id in (1, 2, 3):
            await watch(client, watcher_id=watcher_id)
        attempts = 0

        async def fail(watcher_id: int, *change: Any) -> bytes:
            nonlocal attempts
            if watcher_id == 2:
                attempts += 1
                if attempts < 3:
                    raise ValueError("nobody has thought of this")
            return await update_of(watcher_id, *change)

        monkeypatch.setattr(topic_list.replies, "topic_update", fail)
        await broker.topic(PREFIX + "a1")
        found = topics_hash([PREFIX + "a0", PREFIX + "a1"])
        for watcher_id in (1, 3, 2):
            assert await told(client, watcher_id) == ([PREFIX + "a1"], [], found)
        assert attempts == 3
        attempts = 0
        await broker.topics.deletion.delete(gone)
        for watcher_id in (1, 3, 2):
            assert await told(client, watcher_id) == (
                [],
                [PREFIX + "a0"],
                topics_hash([PREFIX + "a1"]),
            )
        # Who was told is not told again.
        assert await client.quiet() == []

    run(tmp_path, scenario)

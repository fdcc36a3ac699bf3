"""The Go client under the Python client's names: what it refuses, and what becomes of it."""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest
from harness import go_build
from harness.brokers import Broker
from harness.go_client import Client

from compat_tests.messages import publish, receive


def forget_go() -> None:
    """``go_build`` looks at the machine once."""
    go_build.go.cache_clear()
    go_build._version.cache_clear()


@pytest.fixture
def other_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """No Go but the one in the folder that is returned, which is empty."""
    monkeypatch.setattr(go_build, "_PLACES", ())
    monkeypatch.setenv("PATH", str(tmp_path))
    forget_go()
    yield tmp_path
    forget_go()


def give_go(folder: Path, version: str) -> None:
    command = folder / "go"
    command.write_text(f"#!/bin/sh\necho go version go{version} linux/amd64\n")
    command.chmod(0o755)


@pytest.mark.usefixtures("other_machine")
def test_a_machine_without_go_is_told_so() -> None:
    with pytest.raises(go_build.GoMissing, match=r"need Go 1\.24 or newer, and there is no `go`"):
        go_build.go()


def test_a_go_that_is_too_old_is_named(other_machine: Path) -> None:
    give_go(other_machine, "1.19.8")
    with pytest.raises(go_build.GoMissing, match=r"is Go 1\.19; Pulsar's Go client needs 1\.24"):
        go_build.go()


def test_a_go_that_can_fetch_a_newer_one_is_let(other_machine: Path) -> None:
    give_go(other_machine, "1.22.0")
    assert go_build._environment()["GOTOOLCHAIN"] == "auto"
    forget_go()
    give_go(other_machine, "1.25.3")
    assert "GOTOOLCHAIN" not in go_build._environment()


def _build(answers: multiprocessing.Queue[str]) -> None:
    go_build.program.cache_clear()
    answers.put(str(go_build.program()))


def test_several_processes_ask_for_the_program_at_once() -> None:
    # A fork of this one might wait for ever for what one of its threads had at that moment.
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[str] = context.Queue()
    processes = [context.Process(target=_build, args=(answers,)) for _ in range(4)]
    for process in processes:
        process.start()
    assert {answers.get(timeout=300) for _ in processes} == {str(go_build.BUILD / "goclient")}
    for process in processes:
        process.join()


def test_an_option_that_it_does_not_have_is_refused(go_client: Client, topic: str) -> None:
    with pytest.raises(TypeError, match="unacked_messages_timeout_ms"):
        go_client.subscribe(topic, "s", unacked_messages_timeout_ms=10_000)
    with pytest.raises(TypeError, match="ExclusiveWithFencing"):
        go_client.create_producer(topic, access_mode=pulsar.ProducerAccessMode.ExclusiveWithFencing)


def test_an_error_has_the_brokers_name_and_text(go_client: Client, topic: str) -> None:
    go_client.subscribe(topic, "s")
    with pytest.raises(
        pulsar.ConsumerBusy, match="Exclusive consumer is already connected"
    ) as caught:
        go_client.subscribe(topic, "s")
    assert caught.value.server_error == "ConsumerBusy"


def test_a_broker_that_is_not_there_is_a_connection_error() -> None:
    client = Client("pulsar://127.0.0.1:1", operation_timeout_seconds=1)
    with pytest.raises(pulsar.ConnectError):
        client.create_producer("nowhere")
    client.close()


def test_a_killed_client_answers_everyone_who_waits(broker: Broker, topic: str) -> None:
    client = Client(broker.url)
    consumer = client.subscribe(topic, "s")
    client.kill()
    with pytest.raises(pulsar.ConnectError, match="has ended"):
        consumer.receive()
    with pytest.raises(pulsar.AlreadyClosed):
        client.close()


def test_a_closed_consumer_ends_its_receive(go_client: Client, topic: str) -> None:
    consumer = go_client.subscribe(topic, "s")
    consumer.close()
    with pytest.raises(pulsar.PulsarException):
        consumer.receive(timeout_millis=5_000)


def test_messages_that_nobody_holds_are_dropped(go_client: Client, topic: str) -> None:
    consumer = go_client.subscribe(topic, "s")
    publish(go_client.create_producer(topic), [b"%d" % number for number in range(500)])
    kept = consumer.receive(timeout_millis=10_000)
    receive(consumer, 499)
    gc.collect()
    assert go_client.kept_count() == 1
    consumer.acknowledge(kept)


def test_ids_compare_with_those_of_both_clients(go_client: Client, topic: str) -> None:
    producer = go_client.create_producer(topic)
    first, second = producer.send(b"1"), producer.send(b"2")
    assert first < second and second > first and first != second
    copy = pulsar.MessageId.deserialize(first.serialize())
    assert first == copy and first <= copy and second > copy
    assert first > pulsar.MessageId.earliest and first < pulsar.MessageId.latest
    assert len({first, second, first}) == 2

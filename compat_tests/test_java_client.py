"""The program that drives the Java client: how it is built, what it refuses and keeps, its end."""

from __future__ import annotations

import gc
import multiprocessing
from pathlib import Path

import pytest
from harness.brokers import Broker
from harness.java_build import JavaMissing, JavaProgram
from harness.java_client import Client, Java, JavaError


def test_a_machine_without_java_is_told_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(JavaMissing, match=r"install a JDK 17 or newer and Maven \(apt-get install"):
        JavaProgram("javaclient").build()


def _build(answers: multiprocessing.Queue[bool]) -> None:
    program = JavaProgram("javaclient")
    program.build()
    answers.put((program.folder / "classes" / "Main.class").exists())


def test_several_processes_ask_for_the_program_at_once() -> None:
    # A fork of this one might wait for ever for what one of its threads had at that moment.
    context = multiprocessing.get_context("spawn")
    answers: multiprocessing.Queue[bool] = context.Queue()
    processes = [context.Process(target=_build, args=(answers,)) for _ in range(3)]
    for process in processes:
        process.start()
    assert [answers.get(timeout=300) for _ in processes] == [True] * 3
    for process in processes:
        process.join()


def test_what_does_not_compile_is_shown(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = JavaProgram("javaclient")
    program.build()
    (tmp_path / "pom.xml").write_bytes((program.sources / "pom.xml").read_bytes())
    (tmp_path / "Main.java").write_text("class Main { int x = wrong; }")
    broken = JavaProgram("javaclient")
    broken.sources, broken._classes = tmp_path, tmp_path / "classes"
    with pytest.raises(RuntimeError, match="cannot find symbol"):
        broken.build()


def test_options_and_methods_that_there_are_not(java_client: Client, topic: str) -> None:
    with pytest.raises(JavaError, match="ProducerConfigurationData has no acessMode"):
        java_client.create_producer(topic, acessMode="Exclusive")
    producer = java_client.create_producer(topic)
    with pytest.raises(JavaError, match=r"NoSuchMethodException: ProducerImpl\.getNothing"):
        producer.call("getNothing")
    with pytest.raises(JavaError, match="IllegalArgumentException: no message has clef"):
        producer.send(b"x", clef="k")


def test_messages_are_forgotten_when_nobody_names_them(
    java: Java, java_client: Client, topic: str
) -> None:
    gc.collect()
    java.kept_count()  # whose request says what was dropped before
    before = java.kept_count()
    consumer = java_client.subscribe(topic, "s")
    producer = java_client.create_producer(topic)
    for _ in range(10):
        producer.send(b"x")
    found = [consumer.receive() for _ in range(10)]
    assert java.kept_count() >= before + 10
    consumer.acknowledge(*found)
    del found
    gc.collect()
    java.kept_count()
    assert java.kept_count() == before


def test_it_ends_with_clients_that_are_open(broker: Broker, topic: str) -> None:
    java = Java()
    producer = java.client(broker.url).create_producer(topic)
    producer.send(b"x")
    java.close()
    with pytest.raises(JavaError, match="the process of the Java client has ended"):
        producer.send(b"y")

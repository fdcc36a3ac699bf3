"""`pyxbroker client`, with the official Python client at the other end."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pulsar
import pytest
from harness.brokers import Broker, free_ports
from harness.tokens import SECRET, TOKENS, data_url, token
from pulsar.schema import AvroSchema, Double, Integer, JsonSchema, Record, String

from compat_tests.conftest import BrokerFactory
from compat_tests.messages import receive

pytestmark = pytest.mark.pyxbroker
EARLIEST = {"initial_position": pulsar.InitialPosition.Earliest}


class Order(Record):
    """A record that both sides know."""

    id = Integer(required=True)
    total = Double()
    note = String()


def command(url: str, *words: str) -> list[str]:
    name, *rest = words
    return [sys.executable, "-m", "pyxbroker", "client", name, "--url", url, *rest]


def run(
    broker: Broker, *words: str, lines: str = "", status: int = 0, **environment: str
) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(broker.url, *words),
        input=lines,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == status, (done.stdout, done.stderr)
    return done


def error_of(broker: Broker, *words: str, status: int = 1, lines: str = "") -> str:
    done = run(broker, *words, status=status, lines=lines)
    assert "Traceback" not in done.stderr
    return done.stderr


def objects(broker: Broker, *words: str) -> list[dict[str, Any]]:
    out = run(broker, *words, "--output", "json").stdout
    return [json.loads(line) for line in out.splitlines()]


def values(broker: Broker, *words: str) -> list[Any]:
    return [each["value"] for each in objects(broker, *words)]


def everything(broker: Broker, topic: str, *more: str) -> list[Any]:
    return values(broker, "read", topic, "-m", "earliest", "-n", "0", "--end", *more)


# --- produce --------------------------------------------------------------------------------------


def test_an_official_client_receives_what_the_command_sends(
    broker: Broker, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    consumer = client.subscribe(topic, "s")
    (tmp_path / "whole").write_bytes(b"two\nlines\n")
    options = ("-k", "key-1", "-p", "a=1,b=2", "--event-time", "2026-01-01T00:00:00Z")
    done = run(
        *(broker, "produce", topic, "-m", "one,two", "-f", str(tmp_path / "whole"), "-l", "-"),
        *(*options, "--compression", "ZSTD"),
        lines="three\nfour",
    )
    assert done.stdout == "5 messages successfully produced\n"
    found = [consumer.receive(10_000) for _ in range(5)]
    assert [each.data() for each in found] == [b"one", b"two", b"two\nlines\n", b"three", b"four"]
    for each in found:
        assert each.partition_key() == "key-1"
        assert each.properties() == {"a": "1", "b": "2"}
        assert each.event_timestamp() == 1_767_225_600_000
    run(broker, "produce", topic, "-s", "", "-m", "a,b", "-n", "2", "-db")
    assert receive(consumer, 2) == [b"a,b", b"a,b"]
    (tmp_path / "large").write_bytes(bytes(6 << 20))
    too_long = error_of(broker, "produce", topic, "-f", str(tmp_path / "large"))
    assert "the broker of persistent://" in too_long
    with Path(os.devnull).open("rb") as nothing:
        words = command(broker.url, "produce", topic, "-l", "-")
        done_without = subprocess.run(words, stdin=nothing, capture_output=True, check=True)
    assert done_without.stdout == b"0 messages successfully produced\n"
    run(broker, "produce", topic, "-l", "-", "--key-separator", ":", lines="k:v:w\n")
    message = consumer.receive(10_000)
    assert (message.partition_key(), message.data()) == ("k", b"v:w")


def test_a_rate_is_kept_and_progress_shown_on_a_terminal(broker: Broker, topic: str) -> None:
    words = command(broker.url, "produce", topic, "-m", "x", "-n", "31", "-r", "20", "-db")
    main, other = pty.openpty()
    with os.fdopen(main, "rb", buffering=0) as terminal:
        done = subprocess.run(words, stdout=subprocess.PIPE, stderr=other, timeout=60, check=True)
        os.close(other)
        shown = terminal.read(10_000)
    assert done.stdout == b"31 messages successfully produced\n"
    assert b" messages produced, " in shown and shown.endswith(b"\r\x1b[K")
    found = objects(broker, "read", topic, "-m", "earliest", "-n", "0", "--end")
    assert found[-1]["publishTime"] - found[0]["publishTime"] >= 1400


def test_keys_choose_partitions_as_in_javas_client(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    name = topic.rpartition("/")[2]
    assert broker.rest("PUT", f"/admin/v2/persistent/public/default/{name}/partitions", 4)[0] < 300
    keyed = "".join(f"key-{number}:{number}\n" for number in range(20))
    run(broker, "produce", topic, "-l", "-", "--key-separator", ":", lines=keyed)
    run(broker, "produce", topic, "-l", "-", lines="".join(f"{n}\n" for n in range(20, 28)))
    at = objects(broker, "read", f"{topic}-partition-3", "-m", "earliest", "-n", "0", "--end")
    assert {each["key"] for each in at} - {None} == {
        f"key-{number}" for number in range(20) if _java_hash(f"key-{number}") % 4 == 3
    }
    assert sum(each["key"] is None for each in at) == 2
    assert sorted(map(int, everything(broker, topic))) == [*range(28)]
    consumed = values(broker, "consume", topic, "-s", "s", "-p", "Earliest", "-n", "28")
    assert sorted(map(int, consumed)) == [*range(28)]
    pattern = f"{name[:-1]}[{name[-1]}]"
    consumed = values(
        *(broker, "consume", pattern, "--regex", "-s", "t", "-p", "Earliest", "-n", "28"),
    )
    assert sorted(map(int, consumed)) == [*range(28)]


def _java_hash(text: str) -> int:
    value = 0
    for each in text:
        value = value * 31 + ord(each)
    return value & 0x7FFFFFFF


def test_ctrl_c_stores_and_counts_what_was_sent(broker: Broker, topic: str) -> None:
    words = command(broker.url, "produce", topic, "-m", "x", "-n", "100000", "-r", "500")
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 20
        while _stored(broker, topic) < 100 and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 130
    stored = _stored(broker, topic)
    assert stored >= 100
    assert err == f"pyxbroker: Interrupted: {stored} messages successfully produced.\n"


def _stored(broker: Broker, topic: str) -> int:
    path = f"/admin/v2/persistent/{topic.partition('://')[2]}/stats"
    status, found = broker.rest("GET", path)
    return int(found["msgInCounter"]) if status == 200 else 0


# --- schemas --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [AvroSchema, JsonSchema])
def test_records_pass_in_both_directions_by_the_topics_schema(
    broker: Broker, client: pulsar.Client, topic: str, kind: type
) -> None:
    consumer = client.subscribe(topic, "s", schema=kind(Order))
    producer = client.create_producer(topic, schema=kind(Order))
    producer.send(Order(id=1, total=9.5, note="zwölf"))
    assert everything(broker, topic) == [{"id": 1, "total": 9.5, "note": "zwölf"}]
    text = run(broker, "read", topic, "-m", "earliest", "-st", "auto_consume").stdout
    assert "content:{" in text and "id=1" in text and "note=zwölf" in text
    lines = '{"id": 2, "total": null, "note": null}\n{"id": 3, "total": 1.25, "note": "x"}\n'
    run(broker, "produce", topic, "-l", "-", lines=lines)
    found = [consumer.receive(10_000).value() for _ in range(3)]
    assert [(each.id, each.total, each.note) for each in found[1:]] == [
        (2, None, None),
        (3, 1.25, "x"),
    ]
    error = error_of(broker, "produce", topic, "-m", '{"id": 4, "total"')
    assert "is not JSON, which the topic's schema demands" in error
    if kind is AvroSchema:
        # A value that the schema lacks, and the unions of Avro's own JSON.
        wrong = '{"id": 4, "total": 1.0, "note": null}\n{"id": 5, "total": 1.0, "price": 2}\n'
        error = error_of(broker, "produce", topic, "-l", "-", lines=wrong)
        assert "does not fit the schema" in error and "price" in error
        assert "1 messages successfully produced" in error
        run(broker, "produce", topic, "-m", '{"id": 6, "total": {"double": 3.0}, "note": null}')
        assert [each["id"] for each in everything(broker, topic)][-2:] == [4, 6]


@pytest.mark.parametrize("encoding", ["inline", "separated"])
def test_a_key_and_a_value_with_a_schema_each(broker: Broker, topic: str, encoding: str) -> None:
    record = '{"type": "record", "name": "K", "fields": [{"name": "id", "type": "int"}]}'
    schema = ("-kvet", encoding, "-ks", f"avro:{record}", "-vs", "string")
    run(broker, "produce", topic, *schema, "-kvk", '{"id": 7}', "-m", "a,b")
    run(broker, "produce", topic, "-kvk", '{"id": 8}', "-m", "c")  # by the topic's schema
    assert everything(broker, topic) == [
        {"key": {"id": key}, "value": value} for key, value in ((7, "a"), (7, "b"), (8, "c"))
    ]
    assert "A KeyValue schema needs" in error_of(broker, "produce", topic, "-m", "d", status=2)


def test_numbers_follow_the_schema(broker: Broker, topic: str) -> None:
    name = topic.rpartition("/")[2]
    body = {"type": "INT32", "schema": "", "properties": {}}
    status, _ = broker.rest("POST", f"/admin/v2/schemas/public/default/{name}/schema", body)
    assert status < 300
    run(broker, "produce", topic, "-m", "7,-8")
    assert everything(broker, topic) == [7, -8]
    assert "is not a number" in error_of(broker, "produce", topic, "-m", "3000000000")


# --- consume, read and tail -----------------------------------------------------------------------


def test_consume_prints_as_pulsar_client_and_acknowledges(
    broker: Broker, client: pulsar.Client, topic: str
) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic, batching_enabled=False)
    for number in range(4):
        producer.send(b"%d" % number, {"a": "1", "b": "2"}, "k", event_timestamp=5)
    consumer.close()
    done = run(broker, "consume", topic, "-s", "s", "-t", "Shared", "-n", "3")
    assert done.stderr == "3 messages successfully consumed\n"
    lines = done.stdout.splitlines()
    assert lines[::2] == ["----- got message -----"] * 3
    for number, line in enumerate(lines[1::2]):
        head, _, rest = line.partition("], ")
        assert head.startswith("publishTime:[") and head[13:].isdigit()
        assert rest == f"eventTime:[5], key:[k], properties:[a=1, b=2], content:{number}"
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert receive(consumer, 1) == [b"3"]
    hexadecimal = run(broker, "read", topic, "-m", "earliest", "-mp", "--hex").stdout
    assert "content:00000000 30                                              0\n" in hexadecimal
    assert "redelivery-count:0, ordering-key:, schema-version:" in hexadecimal


def test_reading_begins_and_ends_where_it_is_told(broker: Broker, topic: str) -> None:
    assert everything(broker, topic) == []
    run(broker, "produce", topic, "-m", "0,1,2")
    time.sleep(0.01)
    between = str(time.time_ns() // 1_000_000)
    run(broker, "produce", topic, "-m", "3,4", "-db")
    found = objects(broker, "read", topic, "-m", "earliest", "-n", "5")
    ids = [each["messageId"] for each in found]
    ending = ("-n", "0", "--end")
    assert values(broker, "read", topic, "-m", ids[1], *ending) == ["2", "3", "4"]
    assert values(broker, "read", topic, "-m", ids[1], "-i", *ending) == ["1", "2", "3", "4"]
    whole = ":".join(ids[3].split(":")[:2])
    assert values(broker, "read", topic, "-m", whole, *ending) == ["4"]
    assert values(broker, "read", topic, "-m", "latest", *ending) == []
    assert values(broker, "read", topic, "-stp", between, *ending) == ["3", "4"]
    old = ("-m", "earliest", "-etp", between, "-n", "0")
    assert values(broker, "read", topic, *old) == ["0", "1", "2"]
    assert "expected latest, earliest" in error_of(broker, "read", topic, "-m", "x", status=2)


def test_tail_prints_the_last_messages_and_those_that_come(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    run(broker, "produce", topic, "-m", "0,1,2")
    run(broker, "produce", topic, "-m", "3,4", "-db")
    words = command(broker.url, "tail", topic, "-n", "3", "--output", "json")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert [_next_value(process) for _ in range(3)] == ["2", "3", "4"]
        (tmp_path / "lines").write_text("".join(f"{number}\n" for number in range(5, 505)))
        sending = command(broker.url, "produce", topic, "-l", str(tmp_path / "lines"), "-r", "250")
        with subprocess.Popen(sending, stdout=subprocess.DEVNULL) as other:
            assert _next_value(process) == "5"
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=20)
            # What is published while the last messages are read comes once.
            with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as late:
                shown = [int(_next_value(late)) for _ in range(50)]
                late.kill()
            other.kill()
    assert shown == [*range(shown[0], shown[0] + 50)]
    assert process.returncode == 130
    assert re.fullmatch(r"pyxbroker: Interrupted: \d+ messages successfully read.\n", err)


def test_tail_says_that_the_broker_is_gone_and_that_it_is_back(own_broker: BrokerFactory) -> None:
    broker = own_broker()
    broker.start()
    run(broker, "produce", "orders", "-m", "0")
    words = command(broker.url, "tail", "orders", "--output", "json")
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        assert _next_value(process) == "0"
        run(broker, "produce", "orders", "-m", "1")
        assert _next_value(process) == "1"
        broker.kill()
        assert process.stderr.readline().startswith("Connecting again: ")
        broker.start()
        assert process.stderr.readline() == "Connected again.\n"
        run(broker, "produce", "orders", "-m", "2")
        assert _next_value(process) == "2"
        process.kill()


def _next_value(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return str(json.loads(process.stdout.readline())["value"])


def test_chunks_are_put_together(broker: Broker, client: pulsar.Client, topic: str) -> None:
    producer = client.create_producer(
        *(topic,),
        chunking_enabled=True,
        batching_enabled=False,
        compression_type=pulsar.CompressionType.ZLib,
    )
    body = os.urandom(4 << 20).hex()  # above the limit when it is compressed, too
    body += os.urandom(2 << 20).hex()
    producer.send(body.encode())
    producer.send(b"small")
    assert everything(broker, topic) == [body, "small"]
    consumed = values(broker, "consume", topic, "-s", "s", "-p", "Earliest", "-n", "1")
    assert consumed == [body]
    assert receive(client.subscribe(topic, "s"), 1) == [b"small"]


def test_bytes_that_are_no_text(broker: Broker, client: pulsar.Client, topic: str) -> None:
    client.create_producer(topic).send(b"\xff\xfe")
    [found] = objects(broker, "read", topic, "-m", "earliest")
    assert found["valueBase64"] == "//4=" and "value" not in found


def test_encrypted_messages_end_the_command_unless_told_otherwise(
    broker: Broker, client: pulsar.Client, topic: str, tmp_path: Path
) -> None:
    public, private = tmp_path / "public.pem", tmp_path / "private.pem"
    openssl = ["openssl", "genpkey", "-algorithm", "RSA", "-out", str(private)]
    subprocess.run(openssl, check=True, capture_output=True)
    openssl = ["openssl", "pkey", "-in", str(private), "-pubout", "-out", str(public)]
    subprocess.run(openssl, check=True, capture_output=True)
    keys = pulsar.CryptoKeyReader(str(public), str(private))
    client.create_producer(topic, encryption_key="k", crypto_key_reader=keys).send(b"secret")
    run(broker, "produce", topic, "-m", "plain")
    reading = ("read", topic, "-m", "earliest", "-n", "2")
    assert "is encrypted, and this client cannot decrypt" in error_of(broker, *reading)
    assert values(broker, *reading, "-ca", "DISCARD") == ["plain"]
    [first, second] = objects(broker, *reading, "-ca", "CONSUME")
    assert "secret" not in str(first) and second["value"] == "plain"


# --- the connection -------------------------------------------------------------------------------


def test_wrong_usage_and_a_broker_that_does_not_answer(broker: Broker, topic: str) -> None:
    assert "There is nothing to send" in error_of(broker, "produce", topic, status=2)
    assert "is not supported" in error_of(broker, "produce", topic, "-m", "x", "-c", status=2)
    assert "did you mean" in error_of(broker, "read", topic, "--start-mesage-id", "1", status=2)
    missing = "public/missing/topic"
    assert "(" in error_of(broker, "read", missing, "-m", "earliest")
    [port] = free_ports(1)
    elsewhere = ("--url", f"pulsar://127.0.0.1:{port}")
    assert "No broker answers at" in error_of(broker, "produce", topic, "-m", "x", *elsewhere)
    web = ("--url", broker.web_url)
    assert "expected pulsar://" in error_of(broker, "produce", topic, "-m", "x", *web, status=2)
    web = ("--url", broker.web_url.replace("http", "pulsar"))
    assert "brokerServicePort" in error_of(broker, "produce", topic, "-m", "x", *web)


def test_the_login_and_the_url_come_from_options_or_client_conf(
    own_broker: BrokerFactory, topic: str, tmp_path: Path
) -> None:
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": TOKENS,
        "tokenSecretKey": data_url(SECRET),
    }
    broker = own_broker(settings=settings)
    broker.start()
    assert "use --token" in error_of(broker, "produce", topic, "-m", "x")
    given = token("ann")
    assert "produced" in run(broker, "produce", topic, "-m", "x", "--token", given).stdout
    conf = tmp_path / "client.conf"
    conf.write_text(
        f"brokerServiceUrl={broker.url}\nwebServiceUrl=http://x:1\n"
        "authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationToken\n"
        f"authParams=token:{given}\n"
    )
    words = [sys.executable, "-m", "pyxbroker", "client", "read", topic, "-m", "earliest"]
    done = subprocess.run(
        words,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env=os.environ | {"PULSAR_CLIENT_CONF": str(conf)},
    )
    assert done.stdout.endswith("content:x\n")
    # As scripts for pulsar-client have them.
    before = [*words[:4], "--url", broker.url, "--auth-plugin", "token", "--auth-params"]
    subprocess.run([*before, given, *words[4:]], timeout=60, check=True, capture_output=True)

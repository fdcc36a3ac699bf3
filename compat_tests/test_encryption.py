"""Messages that the client encrypts, and topics to which nobody may publish others."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from harness import wire
from harness.brokers import Broker
from harness.java_client import Client as JavaClient
from harness.java_client import Java, JavaError
from harness.raw import RawConnection
from harness.tokens import rsa_key

from compat_tests.conftest import official_client

IMPATIENT_S = 3
METADATA_ERROR = 1
ENCRYPTED = 5  # of a PRODUCER


class Pair(NamedTuple):
    """A pair of keys in files."""

    public: Path
    private: Path


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    directory: Path = tmp_path_factory.mktemp("keys")
    private, public = directory / "private.pem", directory / "public.pem"
    private.write_bytes(
        rsa_key().private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
    )
    public.write_bytes(
        rsa_key()
        .public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return Pair(public, private)


@pytest.fixture(scope="module")
def keys(pair: Pair) -> pulsar.CryptoKeyReader:
    """The same as Python's client takes them."""
    return pulsar.CryptoKeyReader(str(pair.public), str(pair.private))


@pytest.fixture(scope="module")
def guarded(broker: Broker) -> str:
    """A namespace in which producers have to encrypt."""
    name = "public/encrypted"
    assert broker.rest("PUT", f"/admin/v2/namespaces/{name}")[0] in (204, 409)
    path = f"/admin/v2/namespaces/{name}/encryptionRequired"
    assert broker.rest("POST", path, True)[0] == 204
    return name


@pytest.fixture
def secret_topic(guarded: str, topic: str) -> str:
    return f"persistent://{guarded}/" + topic.rpartition("/")[2]


def test_what_a_client_encrypts_passes_untouched(
    python_client: pulsar.Client, secret_topic: str, keys: pulsar.CryptoKeyReader
) -> None:
    for options in (
        {"batching_enabled": False},
        {"batching_enabled": True},
        {"compression_type": pulsar.CompressionType.LZ4},
    ):
        consumer = python_client.subscribe(secret_topic, "s", crypto_key_reader=keys)
        producer = python_client.create_producer(
            secret_topic, encryption_key="mine", crypto_key_reader=keys, **options
        )
        for number in range(10):
            producer.send_async(b"secret %d" % number, None, properties={"n": str(number)})
        producer.flush()
        for number in range(10):
            message = consumer.receive(30_000)
            assert message.data() == b"secret %d" % number
            assert message.properties() == {"n": str(number)}
            consumer.acknowledge(message)
        producer.close()
        consumer.close()


OPTIONS = (
    {"batchingEnabled": False},
    {"batchingEnabled": True},
    {"compressionType": "LZ4"},
    {"batchingEnabled": False, "chunkingEnabled": True, "chunkMaxMessageSize": 1000},
)


@pytest.fixture
def public(pair: Pair) -> str:
    """The key as Java's client takes it."""
    return pair.public.read_text()


@pytest.fixture
def private(pair: Pair) -> str:
    return pair.private.read_text()


def secrets(number: int, **options: Any) -> bytes:
    """A message; one that comes in chunks is long enough for some."""
    return b"secret %d" % number * (1000 if options.get("chunkingEnabled") else 1)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_what_javas_client_encrypts_passes_untouched(
    java_client: JavaClient, secret_topic: str, public: str, private: str, options: dict[str, Any]
) -> None:
    producer = java_client.create_producer(secret_topic, encrypt=public, **options)
    with_key = java_client.subscribe(secret_topic, "s", decrypt=private)
    sent = [secrets(number, **options) for number in range(10)]
    producer.send_all(sent, properties={"n": "1"})
    for each, message in zip(sent, with_key.receive_all(10), strict=True):
        assert (message.data, message.properties) == (each, {"n": "1"})
        assert message.is_encrypted
    producer.close()
    with_key.close()
    if options.get("chunkingEnabled"):
        return  # Java's client ends its connection when it gets chunks without the key
    sealed = java_client.subscribe(secret_topic, "t", cryptoFailureAction="CONSUME")
    # Without the key a batch is one message, as it is.
    message = sealed.receive()
    assert message.is_encrypted and b"secret" not in message.data
    sealed.close()


def test_what_one_client_encrypts_another_one_reads(
    python_client: pulsar.Client,
    java_client: JavaClient,
    secret_topic: str,
    keys: pulsar.CryptoKeyReader,
    public: str,
    private: str,
) -> None:
    by_python = python_client.create_producer(
        secret_topic, encryption_key="mine", crypto_key_reader=keys
    )
    by_java = java_client.create_producer(secret_topic, encrypt=public, compressionType="ZSTD")
    by_python.send(b"of Python")
    by_java.send(b"of Java")
    expected = [b"of Python", b"of Java"]
    in_java = java_client.subscribe(secret_topic, "java", decrypt=private)
    assert [each.data for each in in_java.receive_all(2)] == expected
    in_python = python_client.subscribe(
        secret_topic,
        "python",
        initial_position=pulsar.InitialPosition.Earliest,
        crypto_key_reader=keys,
    )
    assert [in_python.receive(30_000).data() for _ in range(2)] == expected


def test_who_has_no_key_or_another_one_reads_nothing(
    java_client: JavaClient, java: Java, secret_topic: str, public: str
) -> None:
    producer = java_client.create_producer(secret_topic, encrypt=public)
    producer.send(b"secret")
    for number, more in enumerate(({}, {"decrypt": java.keys()["private"]})):
        consumer = java_client.subscribe(secret_topic, f"s{number}", **more)
        with pytest.raises(JavaError, match="Timeout"):
            consumer.receive(2000)
        consumer.close()


def test_javas_producer_that_does_not_encrypt_is_refused(
    java: Java, broker: Broker, secret_topic: str
) -> None:
    with (
        java.client(broker.url, operationTimeoutMs=IMPATIENT_S * 1000) as client,
        pytest.raises(JavaError, match="Encryption is required"),
    ):
        client.create_producer(secret_topic)


def test_the_broker_sees_nothing_of_it(
    broker: Broker, python_client: pulsar.Client, topic: str, keys: pulsar.CryptoKeyReader
) -> None:
    with RawConnection(broker.port, timeout_s=60) as raw:
        raw.lookup(topic)
        raw.subscribe(topic)
        raw.flow(10)
        producer = python_client.create_producer(
            topic, encryption_key="mine", crypto_key_reader=keys, batching_enabled=False
        )
        producer.send(b"a secret that nobody else may read")
        frame = raw.wait_for(wire.MESSAGE)
        assert b"secret" not in frame.rest
        assert b"mine" in frame.rest  # the name of the key, which consumers look for


def test_a_producer_that_does_not_encrypt_is_refused(broker: Broker, secret_topic: str) -> None:
    client = official_client(broker.url, operation_timeout_seconds=IMPATIENT_S)
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(secret_topic)
    client.close()
    with RawConnection(broker.port, timeout_s=60) as raw:
        raw.lookup(secret_topic)
        raw.command(wire.PRODUCER, {1: secret_topic, 2: 1, 3: raw.request_id()})
        error = raw.expect(wire.ERROR)
        assert (error.fields[2][0], error.data(3).decode()) == (
            METADATA_ERROR,
            f"Encryption is required in {secret_topic}",
        )


def test_a_message_that_is_not_encrypted_is_refused(broker: Broker, secret_topic: str) -> None:
    with RawConnection(broker.port, timeout_s=60) as raw:
        raw.lookup(secret_topic)
        raw.command(wire.PRODUCER, {1: secret_topic, 2: 1, 3: raw.request_id(), ENCRYPTED: 1})
        raw.wait_for(wire.PRODUCER_SUCCESS)
        metadata = wire.metadata("raw", 0, int(time.time() * 1000))
        raw.write(wire.send(1, 0, metadata, b"for everybody"))
        error = raw.wait_for(wire.SEND_ERROR)
        assert (error.fields[3][0], error.data(4).decode()) == (
            METADATA_ERROR,
            "Messages must be encrypted",
        )

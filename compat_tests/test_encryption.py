"""Messages that the client encrypts, and topics to which nobody may publish others."""

from __future__ import annotations

import time
from pathlib import Path

import pulsar
import pytest
from cryptography.hazmat.primitives import serialization
from harness import wire
from harness.brokers import Broker
from harness.raw import RawConnection
from harness.tokens import rsa_key

METADATA_ERROR = 1
ENCRYPTED = 5  # of a PRODUCER


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> pulsar.CryptoKeyReader:
    """A pair of keys in files."""
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
    return pulsar.CryptoKeyReader(str(public), str(private))


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


def test_a_producer_that_does_not_encrypt_is_refused(
    broker: Broker, python_client: pulsar.Client, secret_topic: str
) -> None:
    with pytest.raises(pulsar.PulsarException):
        python_client.create_producer(secret_topic)
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

"""Payloads that can be computed again from their number, and counting helpers for consumers."""

from __future__ import annotations

import hashlib
from typing import Any

import pulsar

TYPES = {
    "exclusive": pulsar.ConsumerType.Exclusive,
    "shared": pulsar.ConsumerType.Shared,
    "failover": pulsar.ConsumerType.Failover,
    "key_shared": pulsar.ConsumerType.KeyShared,
}
CODECS = {
    "none": pulsar.CompressionType.NONE,
    "lz4": pulsar.CompressionType.LZ4,
    "zlib": pulsar.CompressionType.ZLib,
    "zstd": pulsar.CompressionType.ZSTD,
    "snappy": pulsar.CompressionType.SNAPPY,
}


def payload(number: int, size: int | None = None) -> bytes:
    """Bytes that only ``number`` determines; the size varies from 1 to about 1,000 bytes."""
    wanted = 1 + (number * 37) % 1009 if size is None else size
    seed = hashlib.blake2b(number.to_bytes(8, "big"), digest_size=48).digest()
    return (seed * (wanted // len(seed) + 1))[:wanted]


def publish(producer: Any, bodies: list[bytes]) -> list[Any]:
    """Send all without waiting in between; returns the message ids in order.

    Raises ``AssertionError`` naming the first result that was not Ok.
    """
    outcomes: list[Any] = [None] * len(bodies)

    def receipt(number: int) -> Any:
        def done(result: Any, message_id: Any) -> None:
            outcomes[number] = (result, message_id)

        return done

    for number, body in enumerate(bodies):
        producer.send_async(body, receipt(number))
    producer.flush()
    failed = [(n, o) for n, o in enumerate(outcomes) if o is None or o[0] != pulsar.Result.Ok]
    assert not failed, f"{len(failed)} were not acknowledged, the first is {failed[0]}"
    return [message_id for _, message_id in outcomes]


def receive(
    consumer: Any, count: int, *, ack: bool = True, timeout_ms: int = 20_000
) -> list[bytes]:
    """Receive ``count`` messages; a missing one raises ``pulsar.Timeout``."""
    bodies = []
    for _ in range(count):
        message = consumer.receive(timeout_millis=timeout_ms)
        bodies.append(message.data())
        if ack:
            consumer.acknowledge(message)
    return bodies


def assert_nothing_more(consumer: Any, timeout_ms: int = 700) -> None:
    """The consumer must get no further message within the time."""
    try:
        message = consumer.receive(timeout_millis=timeout_ms)
    except pulsar.Timeout:
        return
    raise AssertionError(f"an unexpected message came: {message.data()[:60]!r}")

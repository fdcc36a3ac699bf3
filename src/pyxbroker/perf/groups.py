"""Groups of equal producers and of equal consumers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from pyxbroker.proto import PulsarApi as pb

OUTSTANDING_MAX = 1000
"""Messages without receipt of one producer, if the user does not choose."""
KEYS = ("none", "producer", "autoIncrement", "random")
"""Choices of keys: none, one for each producer, ascending numbers, random numbers."""
TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
"""Types of subscriptions, by their number in the protocol."""


@dataclass(frozen=True)
class ProducerGroup:
    """Producers that share a rate."""

    topics: tuple[str, ...]
    name: str = "producers"
    count: int = 1
    """Producers of each topic."""
    producer_name: str = ""
    """A prefix of their names. Empty: the broker chooses names."""
    size: int = 1024
    """Bytes of a payload."""
    rate: float = 0.0
    """Messages per second of the whole group; 0: as many as the broker accepts."""
    messages: int = 0
    """Messages of the whole group; 0: until the time is over."""
    outstanding_max: int = 0
    """Messages of one producer without receipt; 0: OUTSTANDING_MAX, or two batches if more."""
    batch_messages: int = 1
    """1: no batches."""
    batch_bytes: int = 4 << 20
    batch_delay_s: float = 0.001
    codec: int = 0
    """A CompressionType."""
    keys: str = "none"
    key_count: int = 1 << 31
    """The number of different random keys."""
    access_mode: int = pb.Shared


@dataclass(frozen=True)
class ConsumerGroup:
    """Consumers of the same subscriptions, or readers."""

    topics: tuple[str, ...]
    name: str = "consumers"
    count: int = 1
    """Consumers of each subscription and topic."""
    subscriptions: tuple[str, ...] = ("sub",)
    type: str = "Exclusive"
    position: int = pb.CommandSubscribe.Latest
    queue_size: int = 1000
    messages: int = 0
    """Messages of the whole group after which the run ends; 0: until the time is over."""
    is_reader: bool = False
    start: tuple[int, int] = (-1, -1)
    """The ledger id and entry id at which readers start."""


Group: TypeAlias = "ProducerGroup | ConsumerGroup"

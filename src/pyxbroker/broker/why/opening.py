"""Reasons why a topic is not open, so that neither producers nor subscriptions can use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyxbroker.broker.topics.loading import OpeningStep
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.why.rules import Rule
from pyxbroker.mledger.state import State

if TYPE_CHECKING:
    from pyxbroker.base.topic_name import TopicName
    from pyxbroker.broker.topics.topics import Topics


@dataclass
class OpeningState:
    """A topic as its loader and its registry know it."""

    topic: str
    partitions: int = 0
    first_partition: str = ""
    is_open: bool = False
    step: str = ""  # of the task that opens it
    since_ms: int = 0  # when that task began
    topics_opening: int = 0
    topics_opening_max: int = 0
    is_known: bool = False  # it was open, and is not removed yet
    is_being_deleted: bool = False
    ledger_state: str = ""
    failure: str = ""


async def opening_state(topics: Topics, name: TopicName) -> OpeningState:
    """Return the snapshot of a topic. Raises MetadataError."""
    loader, registry = topics.loader, topics.registry
    state = OpeningState(str(name), topics_opening=loader.loads_pending)
    state.topics_opening_max = loader.loads_max
    if not name.is_partitioned:
        state.partitions = (await topics.partitions.read(name)).partitions
        state.first_partition = str(name.partition(0)) if state.partitions else ""
    opening = loader.opening_of(name)
    if opening is not None:
        state.step, state.since_ms = opening.step.value, int(opening.since_s * 1000)
    topic = registry.find(name)
    if topic is not None:
        state.is_known = True
        state.is_open = not topic.fenced
        state.is_being_deleted = topic.being_deleted
        if isinstance(topic, PersistentTopic):
            state.ledger_state = topic.managed_ledger.state.value
            state.failure = str(topic.managed_ledger.failure or "")
    return state


RULES: tuple[Rule[OpeningState], ...] = (
    Rule(
        "partitioned",
        lambda s: s.partitions and not s.is_known,
        "The topic has {partitions} partitions, which move independently. Ask about one of them,"
        " such as {first_partition}.",
        ("partitions",),
    ),
    Rule(
        "waits_to_open",
        lambda s: s.step == OpeningStep.QUEUE.value,
        "The topic waits until others are open: {topics_opening} topics are being opened, at most"
        " {topics_opening_max} of them in parallel (maxConcurrentTopicLoadRequest).",
        ("topics_opening", "topics_opening_max"),
        "since_ms",
    ),
    Rule(
        "recovering",
        lambda s: s.step == OpeningStep.RECOVERY.value,
        "The broker opens the topic: it {step}.",
        ("step", "topics_opening"),
        "since_ms",
    ),
    Rule(
        "loading",
        lambda s: s.step,
        "The broker opens the topic: it {step}.",
        ("step", "topics_opening"),
        "since_ms",
    ),
    Rule(
        "topic_being_deleted",
        lambda s: s.is_being_deleted,
        "The topic is being deleted.",
        ("ledger_state",),
    ),
    Rule(
        "fenced",
        lambda s: not s.is_open and s.ledger_state == State.FENCED.value,
        "Another broker has taken over the topic's ledgers, so this broker serves it no more."
        " Clients look the topic up again: {failure}.",
        ("ledger_state", "failure"),
    ),
    Rule(
        "ledger_failed",
        lambda s: not s.is_open and s.ledger_state == State.FAILED.value,
        "The topic cannot be written any more. The broker opens it again for the next client:"
        " {failure}.",
        ("ledger_state", "failure"),
    ),
    Rule(
        "closing",
        lambda s: s.is_known and not s.is_open and s.ledger_state != State.CLOSED.value,
        "The broker closes the topic. Its clients look it up again.",
        ("ledger_state",),
    ),
    Rule(
        "not_open",
        lambda s: not s.is_open,
        "The topic is not open. The broker opens it for the next client.",
    ),
)

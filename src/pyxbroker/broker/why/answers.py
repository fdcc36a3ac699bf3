"""Answers about a topic and about one of its subscriptions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.base.errors import SubscriptionNotFound
from pyxbroker.base.slices import Slices
from pyxbroker.broker.topics.persistent import PersistentTopic
from pyxbroker.broker.why import delivery, opening, publishing
from pyxbroker.broker.why.open_transactions import OpenTransactions
from pyxbroker.broker.why.rules import Json, Rule, S, first

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from pyxbroker.base.topic_name import TopicName
    from pyxbroker.broker.broker import Broker
    from pyxbroker.broker.topics.topic import Topic


async def why_topic(broker: Broker, name: TopicName) -> Json:
    """Return why a topic takes no messages, and one line for each of its subscriptions.

    Raises TopicNotFound, MetadataError.
    """
    about: Json = {"topic": str(name), "owner": broker.broker_id}
    answer = await _why_not_open(broker, name)
    if answer is not None:
        return {**about, **answer, "subscriptions": []}
    topic = _open_topic(broker, name)
    answer = _answer(publishing.RULES, await publishing.publishing_state(broker, topic))
    subscriptions: list[Json] = []
    async for state in _deliveries(broker, topic):
        found = _answer(delivery.RULES, state)
        line: Json = {key: found[key] for key in ("reason", "sentence", "since") if key in found}
        subscriptions.append({"subscription": state.subscription, **line})
    return {**about, **answer, "subscriptions": subscriptions}


async def why_subscription(broker: Broker, name: TopicName, subscription: str) -> Json:
    """Return why a subscription does not get messages.

    Raises TopicNotFound, SubscriptionNotFound, MetadataError.
    """
    about: Json = {
        "topic": str(name),
        "subscription": subscription,
        "owner": broker.broker_id,
    }
    answer = await _why_not_open(broker, name)
    if answer is None:
        state = await _delivery(broker, _open_topic(broker, name), subscription)
        return about | _answer(delivery.RULES, state, delivery.COMMON)
    if answer["reason"] == "not_open":
        await _check_subscription(broker, name, subscription)
    return about | answer


def _answer(rules: tuple[Rule[S], ...], state: S, common: tuple[str, ...] = ()) -> Json:
    rule = first(rules, state)
    assert rule is not None, "the last rule always applies"
    return rule.answer(state, common)


async def _why_not_open(broker: Broker, name: TopicName) -> Json | None:
    """Return the answer about a topic that is not open, None for an open one.

    Raises TopicNotFound.
    """
    state = await opening.opening_state(broker.topics, name)
    rule = first(opening.RULES, state)
    if rule is None:
        return None
    if rule.reason == "not_open" and not await broker.topics.registry.exists(name):
        raise broker.topics.loader.not_found(name)
    answer = rule.answer(state)
    if rule.reason == "not_open" and (trouble := broker.failure()) is not None:
        # Its clients may have been refused for that, and come back later.
        answer["sentence"] = f"{answer['sentence']} {trouble}"
    return answer


async def _check_subscription(broker: Broker, name: TopicName, subscription: str) -> None:
    """Raise SubscriptionNotFound for a subscription that a closed topic does not have."""
    if subscription not in await broker.topics.registry.subscription_names(name):
        raise _no_subscription(name, subscription)


def _open_topic(broker: Broker, name: TopicName) -> Topic:
    topic = broker.topics.registry.loaded(name)
    assert topic is not None, "a topic without a reason not to be open is open"
    return topic


async def _deliveries(broker: Broker, topic: Topic) -> AsyncIterator[delivery.DeliveryState]:
    slices, transactions = Slices(), OpenTransactions(broker)
    for subscription in topic.all_subscriptions():
        refusals = broker.last_refusals
        yield await delivery.delivery_state(topic, subscription, refusals, transactions)
        await slices.pause()
    if isinstance(topic, PersistentTopic):
        for name in sorted(topic.managed_ledger.unreadable):
            state = delivery.unreadable_state(topic, name)
            if state is not None:
                yield state


async def _delivery(broker: Broker, topic: Topic, name: str) -> delivery.DeliveryState:
    """Return the snapshot of a subscription. Raises SubscriptionNotFound."""
    for subscription in topic.all_subscriptions():
        if subscription.name == name:
            transactions = OpenTransactions(broker)
            refusals = broker.last_refusals
            return await delivery.delivery_state(topic, subscription, refusals, transactions)
    state = None
    if isinstance(topic, PersistentTopic):
        state = delivery.unreadable_state(topic, name)
    if state is None:
        raise _no_subscription(topic.name, name)
    return state


def _no_subscription(name: TopicName, subscription: str) -> SubscriptionNotFound:
    return SubscriptionNotFound(f"Subscription {subscription} not found for topic {name}")

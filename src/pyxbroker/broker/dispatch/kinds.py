"""Constructs the dispatcher of each subscription type from a chooser and a redelivery."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyxbroker.broker.dispatch.choosers import RoundRobin, SingleActive, SingleConsumer
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.dispatch.failover import Failover
from pyxbroker.broker.dispatch.key_shared import KeySharedPolicy, KeySlots
from pyxbroker.broker.dispatch.redelivery import RedeliverEntries, RedeliverFromMark

if TYPE_CHECKING:
    from pyxbroker.broker.subscriptions.subscription import Subscription


def exclusive(subscription: Subscription, policy: KeySharedPolicy) -> Dispatcher:
    """The only consumer gets everything, in order."""
    return Dispatcher(subscription, SingleConsumer, RedeliverFromMark)


def shared(subscription: Subscription, policy: KeySharedPolicy) -> Dispatcher:
    """Return a dispatcher that serves consumers with permits in rotation, redeliveries first."""
    return Dispatcher(subscription, RoundRobin, RedeliverEntries)


def failover(subscription: Subscription, policy: KeySharedPolicy) -> Dispatcher:
    """Return a dispatcher that sends all entries to the active consumer, in order."""
    return Dispatcher(subscription, SingleActive, Failover)


def key_shared(subscription: Subscription, policy: KeySharedPolicy) -> Dispatcher:
    """Every key goes to one consumer at a time, in order."""
    return Dispatcher(subscription, lambda it: KeySlots(it, policy), RedeliverEntries)

"""Constructs the dispatcher of each subscription type from a chooser and a redelivery."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pyxbroker.broker.dispatch.choosers import RoundRobin, SingleActive, SingleConsumer
from pyxbroker.broker.dispatch.dispatcher import Dispatcher
from pyxbroker.broker.dispatch.failover import Failover
from pyxbroker.broker.dispatch.key_shared import KeySlots
from pyxbroker.broker.dispatch.redelivery import RedeliverEntries, RedeliverFromMark

if TYPE_CHECKING:
    from pyxbroker.broker.dispatch.interfaces import DispatchedSubscription
    from pyxbroker.broker.dispatch.selectors import KeySharedPolicy


def exclusive(subscription: DispatchedSubscription, policy: KeySharedPolicy) -> Dispatcher:
    """The only consumer gets everything, in order."""
    return Dispatcher(subscription, SingleConsumer, RedeliverFromMark)


def shared(subscription: DispatchedSubscription, policy: KeySharedPolicy) -> Dispatcher:
    """Return a dispatcher that serves consumers with permits in rotation, redeliveries first."""
    return Dispatcher(subscription, RoundRobin, RedeliverEntries)


def failover(subscription: DispatchedSubscription, policy: KeySharedPolicy) -> Dispatcher:
    """Return a dispatcher that sends all entries to the active consumer, in order."""
    return Dispatcher(subscription, SingleActive, Failover)


def key_shared(subscription: DispatchedSubscription, policy: KeySharedPolicy) -> Dispatcher:
    """Every key goes to one consumer at a time, in order."""
    return Dispatcher(subscription, partial(KeySlots, policy), RedeliverEntries)

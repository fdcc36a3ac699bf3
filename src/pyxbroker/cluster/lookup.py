"""Lookups in a cluster of several brokers, by the rules of Pulsar's NamespaceService.

The node of a bundle names its owner. Without a node, the leader chooses a broker and redirects to
it with `authoritative`, so that it takes the bundle. Other brokers redirect to the leader; without
a leader each broker chooses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

from pyxbroker.base.bundles import Bundle, bundle_of
from pyxbroker.base.errors import MetadataStoreError, PulsarError, ServiceNotReady, UnknownListener
from pyxbroker.base.log import get_logger
from pyxbroker.base.topic_name import TopicName
from pyxbroker.broker.listeners import Addresses
from pyxbroker.broker.lookup import SERVE, Decision, Redirect, Refuse
from pyxbroker.cluster.addresses import DISABLED, OF_BROKER, OF_OWNER, of_listener, read_fields
from pyxbroker.cluster.brokers import RegisteredBrokers, Report
from pyxbroker.cluster.election import Election
from pyxbroker.cluster.ownership import BundleName, BundleOwnership, Owner
from pyxbroker.metadata.store import MetadataError

log = get_logger("pyxbroker.cluster")

ELECTION_TIMEOUT_S = 30.0
ROUNDS_MAX = 4
"""Attempts while the bundle is being given up by this broker or another one."""
NOT_SERVED = Redirect(Addresses(), authoritative=False)

Boundaries = Callable[[str], Awaitable[list[int]]]
Choose = Callable[[BundleName, str, bool], Awaitable[str | None]]
Plan = Callable[[BundleName, str], None]
Explain = Callable[[str, Collection[str]], Awaitable[str]]


class Refused(Exception):
    """Raised with the error for the client if no broker can be named."""

    def __init__(self, error: PulsarError) -> None:
        self.error = error


class ClusterOwnership:
    """The ownership rule of one broker of a cluster (`Ownership` of broker/lookup.py).

    `boundaries` returns the boundaries of a namespace's bundles, and `choose` the broker for a
    bundle without an owner, apart from the broker in its second argument. The third one is False
    for a bundle that is to have a non-persistent topic. `plan` makes the next choice. `explain`
    returns why policies allow a namespace none of the brokers, or "".
    """

    def __init__(
        self,
        broker_id: str,
        boundaries: Boundaries,
        owned: BundleOwnership,
        election: Election,
        brokers: RegisteredBrokers,
        choose: Choose,
        plan: Plan,
        explain: Explain,
    ) -> None:
        self._id = broker_id
        self._boundaries = boundaries
        self._owned = owned
        self._election = election
        self._brokers = brokers
        self._choose = choose
        self._plan = plan
        self._explain = explain

    # --- as broker/lookup.py describes ----------------------------------------------------------

    async def find(self, topic: TopicName, authoritative: bool, listener: str = "") -> Decision:
        bundle = await self._bundle_of(topic)
        found = self._find(bundle, authoritative, listener, topic.is_persistent)
        return await self._decide(found)

    async def find_of_bundle(
        self, namespace: str, bundle: Bundle, authoritative: bool, acquires: bool
    ) -> Decision:
        name = BundleName(namespace, str(bundle))
        if acquires:
            return await self._decide(self._find(name, authoritative, ""))
        return await self._decide(self._read(name, SERVE))

    async def check(self, topic: TopicName, acquires: bool = False) -> Decision:
        bundle = await self._bundle_of(topic)
        if self._owned.is_owned(bundle):
            return SERVE
        if self._owned.is_leaving(bundle):
            # Without waiting: the bundle is given up when its topics have been opened and closed.
            return NOT_SERVED
        if acquires:
            return await self._decide(self._find(bundle, authoritative=True, listener=""))
        return await self._decide(self._read(bundle, NOT_SERVED))

    async def release(
        self, namespace: str, bundle: Bundle, close: Callable[[], Awaitable[None]]
    ) -> None:
        await self._owned.release(BundleName(namespace, str(bundle)))

    def plan(self, namespace: str, bundle: Bundle, broker_id: str) -> Decision | None:
        reports = self._brokers.reports
        if broker_id not in reports:
            return None
        if self._election.is_leader:
            self._plan(BundleName(namespace, str(bundle)), broker_id)
            return SERVE
        leader = self._election.leader
        report = None if leader is None else reports.get(leader.broker_id)
        if report is None:
            return Refuse(ServiceNotReady("The current leader is empty."))
        return self._redirect(report, "", authoritative=False)

    # --- deciding -------------------------------------------------------------------------------

    async def _bundle_of(self, topic: TopicName) -> BundleName:
        bundle = bundle_of(topic, await self._boundaries(topic.namespace))
        return BundleName(topic.namespace, str(bundle))

    @staticmethod
    async def _decide(deciding: Awaitable[Decision]) -> Decision:
        try:
            return await deciding
        except Refused as refused:
            return Refuse(refused.error)
        except MetadataError as error:
            return Refuse(MetadataStoreError(str(error)))

    async def _read(self, bundle: BundleName, unowned: Decision) -> Decision:
        owner = await self._owned.find(bundle)
        return unowned if owner is None else self._decision(bundle, owner, "")

    async def _find(
        self, bundle: BundleName, authoritative: bool, listener: str, is_persistent: bool = True
    ) -> Decision:
        for _ in range(ROUNDS_MAX):
            owner = await self._owned.find(bundle)
            if owner is None:
                if not authoritative or self._owned.is_closing:
                    other = await self._place(bundle, listener, is_persistent)
                    if other is not None:
                        return other
                owner = await self._owned.acquire(bundle)
            if owner is not None:
                return self._decision(bundle, owner, listener)
        return Refuse(ServiceNotReady(f"No broker was available to own {bundle}"))

    def _decision(self, bundle: BundleName, owner: Owner, listener: str) -> Decision:
        if owner.is_here:
            return SERVE
        fields = read_fields(owner.value)
        if fields.get(DISABLED) is True:
            raise Refused(MetadataStoreError(f"Namespace bundle {bundle} is being unloaded"))
        urls = of_listener(fields, OF_OWNER, listener)
        if urls is None:
            raise _unknown(listener)
        return Redirect(urls, self._election.is_leader, is_owner=True)

    async def _place(
        self, bundle: BundleName, listener: str, is_persistent: bool
    ) -> Redirect | None:
        """Return the broker that takes a bundle, or that chooses its owner; None for this one."""
        if not self._election.is_leader:
            leader = await self._election.wait_leader(ELECTION_TIMEOUT_S)
            if leader is not None and leader.broker_id != self._id:
                report = self._brokers.reports.get(leader.broker_id)
                if report is not None:
                    return self._redirect(report, listener, authoritative=False)
        excluded = self._id if self._owned.is_closing else ""
        chosen = await self._choose(bundle, excluded, is_persistent)
        if chosen == self._id:
            return None
        reports = self._brokers.reports
        if chosen is None or chosen not in reports:
            raise await self._no_broker(bundle, reports.keys() - {excluded})
        return self._redirect(reports[chosen], listener, authoritative=True)

    async def _no_broker(self, bundle: BundleName, broker_ids: Collection[str]) -> Refused:
        reason = await self._explain(bundle.namespace, broker_ids)
        log.warning("no broker may serve a bundle", bundle=bundle, reason=reason or "unknown")
        more = f" {reason[0].upper()}{reason[1:]}." if reason else ""
        return Refused(MetadataStoreError(f"No available broker found.{more}"))

    @staticmethod
    def _redirect(report: Report, listener: str, authoritative: bool) -> Redirect:
        urls = of_listener(report.fields, OF_BROKER, listener)
        if urls is None:
            raise _unknown(listener)
        return Redirect(urls, authoritative)


def _unknown(listener: str) -> Refused:
    return Refused(UnknownListener(f"the broker do not have {listener} listener"))

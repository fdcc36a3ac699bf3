"""What one broker of a cluster does for all, and what a restarted broker takes back."""

from __future__ import annotations

import itertools

from metadata_backends import coroutine_test
from one_bookie import until
from pyxbroker.base.bundles import WHOLE, Bundle
from pyxbroker.cluster import splitting
from pyxbroker.cluster.duties import Duties
from pyxbroker.cluster.election import Election, Leader
from pyxbroker.cluster.ownership import BundleName, BundleOwnership, Owner
from pyxbroker.metadata.memory import MemoryStore

NUMBERS = itertools.count()
NAMESPACE = "public/default"
HALF = splitting.halves(WHOLE)[0]
LOWER, UPPER = Bundle(WHOLE.lower, HALF), Bundle(HALF, WHOLE.upper)


class Member:
    """A broker of a cluster on a tree in memory, which owns bundles but serves no topics."""

    def __init__(self, tree: str, name: str) -> None:
        self.store = MemoryStore(tree)
        self.owned = BundleOwnership(self.store, name.encode(), self.close)
        self.election = Election(self.store, Leader(name, f"http://{name}"))
        self.duties = Duties(self.store, self.boundaries, self.owned, self.election)
        self.collected = 0

    async def close(self, bundle: BundleName) -> None:
        """Close nothing."""

    async def boundaries(self, namespace: str) -> list[int]:
        return [WHOLE.lower, HALF, WHOLE.upper]

    async def start(self) -> None:
        await self.store.open()
        self.owned.start()
        self.election.start()

    async def acquire(self, bundle: Bundle) -> Owner | None:
        return await self.owned.acquire(BundleName(NAMESPACE, str(bundle)))

    async def collect(self) -> None:
        self.collected += 1

    async def stop(self) -> None:
        await self.election.close()
        await self.owned.close()
        await self.store.close()


@coroutine_test
async def test_each_bundle_is_checked_by_its_owner_or_else_by_the_leader() -> None:
    tree = f"duties-{next(NUMBERS)}"
    leader, other = Member(tree, "a"), Member(tree, "b")
    await leader.start()
    await until(lambda: leader.election.is_leader)
    await other.start()
    await other.acquire(UPPER)
    assert await leader.duties.bundles(NAMESPACE) == (LOWER,)
    assert await other.duties.bundles(NAMESPACE) == (UPPER,)
    await leader.acquire(LOWER)
    await other.owned.release_all()
    assert await leader.duties.bundles(NAMESPACE) == (LOWER, UPPER)
    assert await other.duties.bundles(NAMESPACE) == ()
    await leader.stop()
    await until(lambda: other.election.is_leader)
    assert await other.duties.bundles(NAMESPACE) == (LOWER, UPPER)
    await other.stop()


@coroutine_test
async def test_only_the_leader_collects_garbage() -> None:
    tree = f"duties-{next(NUMBERS)}"
    members = Member(tree, "a"), Member(tree, "b")
    for each in members:
        await each.start()
        await until(lambda: members[0].election.is_leader)
    for each in members:
        await each.duties.collect_garbage(each.collect)
    assert [each.collected for each in members] == [1, 0]
    for each in members:
        await each.stop()


@coroutine_test
async def test_a_restarted_broker_takes_back_what_its_former_session_still_owns() -> None:
    tree = f"duties-{next(NUMBERS)}"
    former, other, restarted = Member(tree, "a"), Member(tree, "b"), Member(tree, "a")
    await former.store.open()  # The process has ended, but its session has not.
    for each in other, restarted:
        await each.start()
    await former.acquire(LOWER)
    await other.acquire(UPPER)
    await restarted.owned.take_back()
    assert restarted.owned.owned() == [BundleName(NAMESPACE, str(LOWER))]
    # The end of the former session does not end the ownership.
    await former.store.close()
    assert (await other.acquire(LOWER)) == Owner(False, b"a")
    for each in other, restarted:
        await each.stop()

"""A claim on one ephemeral node, carried out on a metadata store."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

from pyxbroker.base.log import get_logger
from pyxbroker.cluster.claim import Claim, Do, State
from pyxbroker.metadata.store import MUST_NOT_EXIST, GetResult, MetadataError, MetadataStore

log = get_logger("pyxbroker.cluster")

RETRY_S = 1.0


class HeldNode:
    """A node that this broker claims; one action at a time. `close` closes what the node protects,
    and returns what is to be called when the node is given up. `on_settled` is called when no
    action is under way any more.
    """

    def __init__(
        self,
        store: MetadataStore,
        path: str,
        claim: Claim,
        close: Callable[[], Awaitable[Callable[[], None] | None]],
        on_settled: Callable[[HeldNode], None],
    ) -> None:
        self.path = path
        self.claim = claim
        self._store = store
        self._close = close
        self._on_settled = on_settled
        self._task: asyncio.Task[None] | None = None
        self._on_given_up: Callable[[], None] | None = None

    def carry_out(self, do: Do | None) -> None:
        """Begin with an action that an input of `claim` has returned."""
        if do is not None:
            assert self._task is None, "the claim returned a second action"
            self._task = asyncio.get_running_loop().create_task(self._carry_out(do))

    async def settle(self) -> None:
        """Wait until no action is under way."""
        while (task := self._task) is not None:
            await asyncio.wait([task])

    def stop(self) -> None:
        """End the action under way; the node ends with the session."""
        if self._task is not None:
            self._task.cancel()

    async def _carry_out(self, do: Do | None) -> None:
        try:
            while do is not None:
                do = await self._do(do)
        finally:
            self._task = None
            on_given_up, self._on_given_up = self._on_given_up, None
            if on_given_up is not None:
                on_given_up()
        self._on_settled(self)

    async def _do(self, do: Do) -> Do | None:
        claim = self.claim
        if do is Do.RETRY:
            log.warning(
                "it cannot be checked now whether this broker still holds a node",
                path=self.path,
                error=claim.error,
            )
            await asyncio.sleep(RETRY_S)
            return claim.on_retry()
        if do is Do.CLOSE:
            try:
                self._on_given_up = await self._close()
            except Exception as error:
                log.failure("closing what a node protects failed", error, path=self.path)
            return claim.on_closed()
        if do is Do.DELETE:
            await self._delete()
            return claim.on_deleted()
        was_held = claim.state is State.CHECKING
        following = claim.on_answer(await self._read(do))
        if was_held and following is Do.CLOSE:
            other = claim.other.decode(errors="replace")
            log.warning("another broker has taken a node", path=self.path, other=other)
        return following

    async def _read(self, do: Do) -> GetResult | MetadataError | None:
        """Issue the writes of an action and a read after them; return the answer to the read."""
        store, claim = self._store, self.claim
        writes: list[asyncio.Future[object]] = []
        try:
            if do is Do.REPLACE:
                writes.append(asyncio.ensure_future(store.delete(self.path, claim.version)))
            if do is not Do.READ:
                created = store.put(self.path, claim.value, MUST_NOT_EXIST, ephemeral=True)
                writes.append(asyncio.ensure_future(created))
            found = await store.get(self.path)
        except MetadataError as error:
            return error
        finally:
            refused = await asyncio.gather(*writes, return_exceptions=True)
        errors = [each for each in refused if isinstance(each, MetadataError)]
        claim.error = errors[-1] if errors else None
        return found

    async def _delete(self) -> None:
        """Delete the node, unless another session has it: each new node has version 0 again."""
        with contextlib.suppress(MetadataError):
            found = await self._store.get(self.path)
            if found is not None and found.is_own:
                await self._store.delete(self.path, found.version)

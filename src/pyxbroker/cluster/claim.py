"""A claim on one ephemeral node, as a state machine without a store, a clock or a task.

Several brokers claim the node of a bundle, or that of the leader; ZooKeeper decides. The rules are
those of Pulsar's LockManager:

- The claim creates the node and reads it back. Only the answer to the read counts.
- A node with this broker's value from another session belongs to an earlier process or session of
  this broker: it is deleted by its version and created anew.
- A node with another value belongs to its writer. A holder that reads one has lost the node, and
  closes what the node protects.
- A holder that cannot read the node continues to hold it: safety does not depend on the node.

The caller carries out one action (`Do`) at a time and passes its result to the matching input,
which returns the next action. All other inputs may arrive at any time.
"""

from __future__ import annotations

import enum
from collections.abc import Callable

from pyxbroker.metadata.store import GetResult, MetadataError

ATTEMPTS_MAX = 8
"""Attempts to create a node that other sessions create and delete at the same time."""


class State(enum.Enum):
    """The state of a claim."""

    FREE = enum.auto()
    """No holder is known; the node may have one that was not read yet."""
    READING = enum.auto()
    CLAIMING = enum.auto()
    HELD = enum.auto()
    CHECKING = enum.auto()
    """Held as far as is known; the node is being read again or recreated."""
    TAKEN = enum.auto()
    """Held by the writer of `other`."""
    CLOSING = enum.auto()
    """The topics, or whatever the node protects, are being closed."""
    DELETING = enum.auto()


class Do(enum.Enum):
    """An action of the caller, with the input that gets its result."""

    READ = enum.auto()
    """Read the node: on_answer."""
    CREATE = enum.auto()
    """Create the node with `value`, whether or not that succeeds read it: on_answer."""
    REPLACE = enum.auto()
    """Delete `version` of the node, then as for CREATE: on_answer."""
    CLOSE = enum.auto()
    """Close what the node protects: on_closed."""
    DELETE = enum.auto()
    """Delete the node if it belongs to this session: on_deleted."""
    RETRY = enum.auto()
    """Wait for a while: on_retry."""


class Claim:
    """A claim with the value that this broker writes. `is_ours` returns True for a value of this
    broker, which may be that of an earlier process; equal values by default.
    """

    __slots__ = (
        *("_attempts", "_deletes", "_is_busy", "_is_dirty", "_is_ours", "_releases", "_wants"),
        *("error", "other", "state", "value", "version"),
    )

    def __init__(self, value: bytes, is_ours: Callable[[bytes], bool] | None = None) -> None:
        self.value = value
        self.state = State.FREE
        self.other = b""
        """The value of the holder, if that is another broker."""
        self.version = 0
        self.error: MetadataError | None = None
        """The reason why the last attempt to read or create the node failed."""
        self._is_ours = is_ours or (lambda found: found == value)
        self._is_busy = False  # an action is under way
        self._is_dirty = False  # the node may have changed since the action began
        self._wants = False  # the node is to be created if the read finds none
        self._releases = False
        self._deletes = False  # the node is to be deleted after CLOSING
        self._attempts = 0

    @property
    def is_held(self) -> bool:
        """True while the node is held as far as is known, and is not being released."""
        return self.state in (State.HELD, State.CHECKING) and not self._releases

    @property
    def is_leaving(self) -> bool:
        """True while the node, and what it protects, is being given up."""
        return self._releases or self.state in (State.CLOSING, State.DELETING)

    # --- requests of the broker -----------------------------------------------------------------

    def read(self) -> Do | None:
        """Find out the holder."""
        return self._begin(State.READING, Do.READ) if self.state is State.FREE else None

    def claim(self) -> Do | None:
        """Create the node unless another broker holds it. While it is being released nothing
        happens.
        """
        if self.state is State.FREE:
            return self._begin(State.CLAIMING, Do.CREATE)
        self._wants = self.state is State.READING
        return None

    def release(self) -> Do | None:
        """Close what the node protects, then delete the node."""
        if self.state is State.HELD:
            return self._close(deletes=True)
        self._releases = self.state in (State.READING, State.CHECKING, State.CLAIMING)
        return None

    # --- events ---------------------------------------------------------------------------------

    def on_event(self) -> Do | None:
        """Note that the node may have changed, or that a new session has begun."""
        if self._is_busy:
            self._is_dirty = True
            return None
        if self.state is State.HELD:
            return self._begin(State.CHECKING, Do.READ)
        if self.state is State.TAKEN:
            self.state = State.FREE
        return None

    # --- results of actions ---------------------------------------------------------------------

    def on_answer(self, node: GetResult | MetadataError | None) -> Do | None:
        """Pass the answer to a read: the node, None if it does not exist, or a failure."""
        if isinstance(node, MetadataError):
            return self._on_failure(node)
        if node is None:
            return self._on_missing()
        if self._is_ours(node.value) or node.is_own:
            self.version = node.version
            if node.is_own and self._is_ours(node.value):
                return self._on_held()
            return self._again(Do.REPLACE)
        self.other = node.value
        if self.state is State.CHECKING:
            return self._close(deletes=False)
        return self._on_taken()

    def on_closed(self) -> Do | None:
        """Note that what the node protects was closed."""
        if self._deletes:
            return self._begin(State.DELETING, Do.DELETE)
        return self._end(State.FREE)

    def on_deleted(self) -> Do | None:
        """Note that the node was deleted, or that the attempt failed."""
        # A node that remains is found by the next lookup, and claimed or ended with the session.
        return self._end(State.FREE)

    def on_retry(self) -> Do | None:
        """Note that the time of RETRY is over."""
        if self._releases:
            return self._close(deletes=True)
        return self._begin(State.CHECKING, Do.READ)

    def _on_failure(self, error: MetadataError) -> Do | None:
        self.error = error
        if self.state is State.CHECKING:
            return self._close(deletes=True) if self._releases else Do.RETRY
        return self._end(State.FREE)

    def _on_missing(self) -> Do | None:
        if self.state is State.CHECKING and self._releases:
            return self._close(deletes=False)
        if self.state is State.READING and not self._wants:
            return self._end(State.FREE)
        return self._again(Do.CREATE)

    def _again(self, do: Do) -> Do | None:
        """Try to create the node, unless that was done too often without a pause."""
        self._attempts += 1
        if self.state is State.READING and do is not Do.READ:
            self.state = State.CLAIMING
        if self._attempts <= ATTEMPTS_MAX:
            return do
        self._attempts = 0
        return self._on_failure(self.error or MetadataError("the node is changed all the time"))

    def _on_held(self) -> Do | None:
        if self._releases:
            return self._close(deletes=True)
        if self._is_dirty:
            return self._begin(State.CHECKING, Do.READ)
        return self._end(State.HELD)

    def _on_taken(self) -> Do | None:
        if self._is_dirty:
            self._is_dirty = False
            return self._again(Do.READ)
        return self._end(State.TAKEN)

    def _close(self, deletes: bool) -> Do:
        self._deletes = deletes
        return self._begin(State.CLOSING, Do.CLOSE)

    def _begin(self, state: State, do: Do) -> Do:
        if not self._is_busy:
            self._attempts = 0
            self.error = None
        self.state = state
        self._is_busy = True
        self._is_dirty = False
        return do

    def _end(self, state: State) -> Do | None:
        self.state = state
        self._is_busy = self._is_dirty = self._wants = self._releases = False
        return None

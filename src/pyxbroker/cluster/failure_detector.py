"""The decision of a broker that another one has failed, as a state machine without a connection, a
clock or a task.

A peer is another registered broker of this kind. One of the brokers decides: the leader, or while
the leader is not reached the one with the lowest id among those that reach each other. It decides
that a peer has failed, if the brokers that it asks agree:

- A peer whose address refuses connections has failed, unless a broker that answers reaches it.
- A peer that does not answer has failed if, in addition, more than half of the peers and this
  broker find so. Half of a divided cluster removes nothing.

The safety of stored messages does not depend on it. A peer that was removed and is registered again
lives: it is not removed again before it was reached, and its silence counts again only after it has
answered for some minutes.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping

ASK_AGAIN_S = 0.1
ASK_AGAIN_MAX_S = 5.0
TRUSTED_AFTER_S = 600.0


class Sight(enum.Enum):
    """The state of a peer as another broker sees it."""

    UNKNOWN = "unknown"
    """The connection was lost, or is being opened for the first time."""
    REACHED = "reached"
    REFUSED = "refused"
    """The machine refuses connections to the broker's port."""
    SILENT = "silent"


FAILED = (Sight.REFUSED, Sight.SILENT)
Answer = Mapping[str, tuple[Sight, int]]
"""The peers of a broker as it sees them, by their ids, each with the start time of the process."""


class _Peer:
    """A process of a broker, which its start time identifies."""

    def __init__(self, started: int) -> None:
        self.started = started
        self.sight = Sight.UNKNOWN
        self.since_s = 0.0
        self.was_removed = False
        self.is_reached_since = True  # since it was removed
        self.ask_at = 0.0
        self.pause_s = ASK_AGAIN_S
        self.objection = ""

    @property
    def is_suspect(self) -> bool:
        if self.was_removed:
            return self.sight is Sight.REFUSED and self.is_reached_since
        return self.sight in FAILED


class FailureDetector:
    """The decisions of one broker about its peers. Times are seconds of any clock."""

    def __init__(self, own_id: str) -> None:
        self._id = own_id
        self._leader = ""
        self._peers: dict[str, _Peer] = {}
        self._removed: dict[str, _Peer] = {}  # not registered now

    def follow(self, registered: Mapping[str, int]) -> None:
        """Take the ids and start times of the registered brokers of this kind."""
        peers = {}
        for name, started in registered.items():
            if name == self._id:
                continue
            peer = self._peers.get(name) or self._removed.pop(name, None)
            if peer is None or peer.started != started:
                peer = _Peer(started)
            peers[name] = peer
        gone = self._peers.keys() - peers.keys()
        self._removed |= {name: self._peers[name] for name in gone if self._peers[name].was_removed}
        self._peers = peers

    def elect(self, leader: str) -> None:
        """Take the id of the leader, empty if none is known."""
        self._leader = leader

    def note(self, name: str, started: int, sight: Sight, now_s: float) -> None:
        """Take what the connection to a process shows."""
        peer = self._peers.get(name)
        if peer is None or peer.started != started:
            return
        if sight is peer.sight:
            return
        if peer.sight is Sight.REACHED and now_s - peer.since_s > TRUSTED_AFTER_S:
            peer.was_removed = False
        peer.sight, peer.since_s = sight, now_s
        peer.ask_at, peer.pause_s = 0.0, ASK_AGAIN_S
        peer.is_reached_since |= sight is Sight.REACHED

    def answer(self) -> dict[str, tuple[Sight, int]]:
        """Return what this broker knows about its peers."""
        return {name: (peer.sight, peer.started) for name, peer in self._peers.items()}

    # --- deciding -------------------------------------------------------------------------------

    def wait_s(self, now_s: float) -> float | None:
        """Return the time until this broker has to ask; None: not before the next input."""
        times = [self._peers[name].ask_at for name in self._suspects()]
        return max(0.0, min(times) - now_s) if times else None

    def witnesses(self) -> list[str]:
        """Return the peers to ask."""
        return [name for name, peer in self._peers.items() if peer.sight is Sight.REACHED]

    def decide(self, answers: Mapping[str, Answer], now_s: float) -> list[str]:
        """Return the peers that have failed. `answers` has those of the witnesses that answered."""
        failed = []
        for name in self._suspects():
            peer = self._peers[name]
            if peer.ask_at > now_s:
                continue
            peer.ask_at = now_s + peer.pause_s
            peer.pause_s = min(2 * peer.pause_s, ASK_AGAIN_MAX_S)
            if self._has_failed(name, peer, answers):
                failed.append(name)
        return failed

    def on_removed(self, name: str) -> None:
        """Note that a peer was removed."""
        peer = self._peers.get(name) or self._removed.get(name)
        if peer is not None:
            peer.was_removed = True
            peer.is_reached_since = False

    def why_kept(self, name: str) -> str:
        """Return why a peer that is not reached is not removed, for the log."""
        peer = self._peers[name]
        if peer.was_removed and not peer.is_suspect:
            return "it was removed before, and has registered again"
        if not self._is_decider():
            return "another broker decides"
        return peer.objection

    def _has_failed(self, name: str, peer: _Peer, answers: Mapping[str, Answer]) -> bool:
        about = {of: each.get(name, (Sight.UNKNOWN, 0)) for of, each in answers.items()}
        peer.objection = ""
        for of, (sight, started) in about.items():
            if started != peer.started or sight not in FAILED:
                peer.objection = f"it is {sight.value} for {of}"
                return False
        if peer.sight is Sight.REFUSED or 2 * (len(about) + 1) > len(self._peers) + 1:
            return True
        peer.objection = f"{len(about) + 1} of {len(self._peers) + 1} brokers are no majority"
        return False

    def _suspects(self) -> list[str]:
        """Return the peers whose failure this broker has to decide."""
        if not self._is_decider():
            return []
        return [name for name, peer in self._peers.items() if peer.is_suspect]

    def _is_decider(self) -> bool:
        if self._leader == self._id:
            return True
        if any(peer.sight is Sight.UNKNOWN for peer in self._peers.values()):
            return False  # soon known
        leader = self._peers.get(self._leader)
        if leader is not None and leader.sight is Sight.REACHED:
            return False
        return all(self._id < name for name in self.witnesses())

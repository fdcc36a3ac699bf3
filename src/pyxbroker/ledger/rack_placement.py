"""Placement on a BookKeeper cluster: racks, regions, groups of bookies, quarantine.

The rules are those of BookKeeper's RackawareEnsemblePlacementPolicy and Pulsar's
IsolatedBookieEnsemblePlacementPolicy:

    groups       A ledger with an affinity, or a client with isolation groups, uses the bookies of
                 the primary groups. If these have fewer writable bookies than the ensemble needs,
                 those of the secondary groups are added, then those that are in no group.
    racks        The bookies of each write quorum are in as many racks as
                 bookkeeperClientMinNumRacksPerWriteQuorum says; if that is impossible, in as many
                 as possible, or, if the minimum is enforced, nowhere.
    regions      The bookies of an ensemble are spread evenly over the regions, then over racks.
    replacement  From the rack of the failed bookie, else from a rack without a member of the
                 ensemble, else from any.
    quarantine   Quarantined bookies are used only where the others do not suffice.

Randomness and time are handed in. Nothing here waits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

from pyxbroker.ledger.errors import NotEnoughBookies
from pyxbroker.ledger.placement import ANY_GROUP, Affinity
from pyxbroker.ledger.quarantine import HealthCheck, Quarantine

if TYPE_CHECKING:
    from random import Random

    from pyxbroker.ledger.placement import LedgerQuorums
    from pyxbroker.ledger.registered_bookies import BookiesView, Groups
    from pyxbroker.ledger.writer import FindBookies

DEFAULT_RACK = "/default-rack"
DEFAULT_REGION_AND_RACK = "/default-region/default-rack"
BOOKIES_CHECKED_MAX = 50_000
"""Limit of a search for one ensemble and one minimum of racks, which checks write quorums of
bookies: about 15 ms. Ensembles of up to five bookies need less in the worst case; others nearly
always succeed with the first choices."""


class RackSettings(NamedTuple):
    """The settings bookkeeperClient... of the placement."""

    is_rack_aware: bool = True
    is_region_aware: bool = False
    racks_min: int = 2
    is_enforced: bool = False
    groups: Affinity | None = None
    """bookkeeperClientIsolationGroups and bookkeeperClientSecondaryIsolationGroups."""


class Bookies(Protocol):
    """A source of the present bookies, such as RegisteredBookies."""

    @property
    def view(self) -> BookiesView: ...

    def on_change(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call callback() after each change of `view`."""


class RackPlacement:
    """The placement policy of a broker on a BookKeeper cluster."""

    has_groups = True

    def __init__(
        self,
        bookies: Bookies,
        settings: RackSettings,
        chosen: Random,
        clock: Callable[[], float],
        check: HealthCheck = HealthCheck(),  # noqa: B008 (immutable)
    ) -> None:
        self._bookies = bookies
        self._settings = settings
        self._random = chosen
        self._quarantine = Quarantine(check, clock, chosen.random)
        self._located: BookiesView | None = None  # the view that _locations is of
        self._locations: dict[str, str] = {}

    def on_error(self, bookie_id: str, code: int) -> None:
        """Count a failed request for the quarantine."""
        self._quarantine.on_error(bookie_id, code)

    def quarantined(self) -> frozenset[str]:
        """Return the bookies that are quarantined now."""
        return self._quarantine.bookies()

    def on_change(self, callback: Callable[[], None]) -> None:
        """Call callback() after each change of the bookies and of their racks."""
        self._bookies.on_change(callback)

    def new_ensemble(
        self, quorums: LedgerQuorums, affinity: Affinity | None = None
    ) -> tuple[str, ...]:
        """Return distinct writable bookies for a new ledger. Raises NotEnoughBookies."""
        racks = self._racks(quorums, affinity)
        healthy = without(racks, self._quarantine.bookies())
        size, quorum = quorums.ensemble, quorums.write
        racks_min = min(quorum, self._racks_min)
        for candidates in (healthy, racks) if len(healthy) < len(racks) else (racks,):
            if len(candidates) < size:
                continue
            lowest = racks_min if self._is_enforced else 1
            for least in range(min(racks_min, len({*candidates.values()})), lowest - 1, -1):
                search = _Search(self._random, candidates, size, quorum, self._region_of)
                if found := search.find(least, reach=racks_min):
                    return found
        if len(racks) < size:
            raise self._too_few(quorums, affinity, len(racks))
        raise self._too_few_racks(quorums, racks, racks_min)

    def replacements(
        self, wanted: FindBookies, quorums: LedgerQuorums, affinity: Affinity | None = None
    ) -> dict[int, str]:
        """Return writable bookies that are neither members nor failed, as far as there are any."""
        racks = self._racks(quorums, affinity)
        quarantined = self._quarantine.bookies()
        ensemble: list[str | None] = list(wanted.ensemble)
        for index in wanted.indexes:
            ensemble[index] = None
        # The members without a replacement stay in the ensemble, so that they count as well.
        unusable = {*wanted.ensemble, *wanted.failed}
        found: dict[int, str] = {}
        for index in sorted(wanted.indexes):
            here = self._location(wanted.ensemble[index])
            members = [each and self._location(each) for each in ensemble]
            for excluded in (unusable | quarantined, unusable):
                candidates = without(racks, excluded)
                if self._is_enforced:
                    candidates = self._within_minimum(candidates, members, index, quorums)
                if candidates:
                    chosen = self._nearest(candidates, here, members)
                    found[index] = ensemble[index] = chosen
                    unusable.add(chosen)
                    break
        return found

    def _nearest(self, racks: Mapping[str, str], here: str, members: list[str | None]) -> str:
        """Return a bookie of the failed one's rack, else of a rack without members, else any."""
        for suits in (lambda rack: rack == here, lambda rack: rack not in members):
            suitable = [each for each, rack in racks.items() if suits(rack)]
            if suitable:
                return self._random.choice(suitable)
        return self._random.choice(list(racks))

    def _within_minimum(
        self,
        racks: Mapping[str, str],
        members: list[str | None],
        index: int,
        quorums: LedgerQuorums,
    ) -> dict[str, str]:
        """Return the bookies that leave enough racks to each write quorum with this index."""
        size, quorum = quorums.ensemble, quorums.write
        least = min(quorum, self._racks_min)

        def suits(rack: str) -> bool:
            return spreads([*members[:index], rack, *members[index + 1 :]], index, quorum, least)

        suitable = {rack for rack in set(racks.values()) if suits(rack)}
        assert len(members) == size
        return {each: rack for each, rack in racks.items() if rack in suitable}

    # --- candidates ---------------------------------------------------------------------------

    @property
    def _racks_min(self) -> int:
        return max(self._settings.racks_min, 1) if self._is_aware else 1

    @property
    def _is_aware(self) -> bool:
        return self._settings.is_rack_aware or self._settings.is_region_aware

    @property
    def _is_enforced(self) -> bool:
        return self._settings.is_enforced and self._racks_min > 1

    def _racks(self, quorums: LedgerQuorums, affinity: Affinity | None) -> dict[str, str]:
        """Return the writable bookies that a ledger may use, with the rack of each."""
        view = self._bookies.view
        racks = {
            each: self._location(each) for each in self._in_groups(view, quorums.ensemble, affinity)
        }
        if self._is_enforced:
            # Bookies in unknown racks may all be in one.
            racks = {each: rack for each, rack in racks.items() if rack != self._unknown}
        return racks

    def _in_groups(self, view: BookiesView, size: int, affinity: Affinity | None) -> list[str]:
        """Return the writable bookies of the groups that a ledger may use."""
        writable = sorted(view.writable)
        affinity = affinity or self._settings.groups
        if affinity is None or not view.groups:
            return writable
        primary, secondary = names_in(affinity.primary), names_in(affinity.secondary)
        if ANY_GROUP.primary in primary:
            return writable
        grouped: set[str] = set().union(*view.groups.values())
        allowed: set[str] = set()
        for more in (
            _members(view.groups, primary),
            _members(view.groups, secondary),
            set(writable) - grouped,
        ):
            allowed |= more
            found = [each for each in writable if each in allowed]
            if len(found) >= size:
                break
        return found

    def _location(self, bookie_id: str) -> str:
        """Return the rack of a bookie with a leading slash, or "/region/rack"."""
        view = self._bookies.view
        if view is not self._located:
            self._located = view
            self._locations.clear()
        location = self._locations.get(bookie_id)
        if location is None:
            named = view.rack_of(bookie_id).strip("/ ") if self._is_aware else ""
            location = f"/{named}" if named else self._unknown
            self._locations[bookie_id] = location
        return location

    @property
    def _unknown(self) -> str:
        return DEFAULT_REGION_AND_RACK if self._settings.is_region_aware else DEFAULT_RACK

    def _region_of(self, rack: str) -> str:
        return rack.split("/", 2)[1] if self._settings.is_region_aware else ""

    # --- refusals -----------------------------------------------------------------------------

    def _too_few(
        self, quorums: LedgerQuorums, affinity: Affinity | None, usable: int
    ) -> NotEnoughBookies:
        view = self._bookies.view
        size, writable = quorums.ensemble, len(view.writable)
        setting, lower = "managedLedgerDefaultEnsembleSize", "lower it"
        if quorums.is_policy:
            setting = "the persistence policy of the topic or its namespace"
            lower = "change the policy with 'pulsar-admin topics (or namespaces) set-persistence'"
        needs = f"a ledger needs {size} bookies ({setting}), but there {_are(writable)} writable"
        if writable >= size and not self._is_enforced:
            of = "the bookie affinity group of the namespace"
            if affinity is None:
                of = "bookkeeperClientIsolationGroups"
            return NotEnoughBookies(
                f"{needs}, and only {usable} of them may be used by {of}: add bookies to its"
                " groups, or change it"
            )
        if writable >= size:
            return NotEnoughBookies(
                f"{needs}, and only {usable} of them have a known rack, which"
                " bookkeeperClientEnforceMinNumRacksPerWriteQuorum demands: set the racks of the"
                " others with 'pulsar-admin bookies set-bookie-rack'"
            )
        read_only = f" and {len(view.read_only)} read-only" if view.read_only else ""
        return NotEnoughBookies(f"{needs}{read_only}: start more bookies, or {lower}")

    def _too_few_racks(
        self, quorums: LedgerQuorums, racks: Mapping[str, str], racks_min: int
    ) -> NotEnoughBookies:
        return NotEnoughBookies(
            f"each write quorum needs {racks_min} racks (bookkeeperClientMinNumRacksPerWriteQuorum,"
            " which bookkeeperClientEnforceMinNumRacksPerWriteQuorum enforces), but the"
            f" {len(racks)} usable bookies in {len(set(racks.values()))} racks do not allow an"
            f" ensemble of {quorums.ensemble} with that: start bookies in other racks, or lower it"
        )


class _Search:
    """A search, rack by rack, for an ensemble in which each write quorum has enough racks.

    At each index the racks are tried in a random order, weighted by their bookies. Racks of
    regions with fewer members come first, then racks without a bookie among the neighbours.
    """

    def __init__(
        self,
        chosen: Random,
        racks: Mapping[str, str],
        size: int,
        quorum: int,
        region_of: Callable[[str], str],
    ) -> None:
        self._random = chosen
        self._quorum = quorum
        self._least = self._reach = 1
        self._region_of = region_of
        self._members: Counter[str] = Counter()  # by region, and by rack where regions matter
        self._spare: dict[str, list[str]] = {}
        self._racks: list[str | None] = [None] * size
        self._steps_left = BOOKIES_CHECKED_MAX // quorum**2
        for each, rack in racks.items():
            self._spare.setdefault(rack, []).append(each)
        self._left = Counter({rack: len(each) for rack, each in self._spare.items()})

    def find(self, least: int, reach: int) -> tuple[str, ...] | None:
        """Return an ensemble with so many racks in each write quorum, or None.

        Neighbours are less than `reach` indexes away.
        """
        self._least, self._reach = least, reach
        if not self._place(0):
            return None
        for bookies in self._spare.values():
            self._random.shuffle(bookies)
        return tuple(self._spare[rack].pop() for rack in self._racks if rack is not None)

    def _place(self, index: int) -> bool:
        """Choose the racks from an index on. Return False if that is impossible."""
        racks = self._racks
        if index == len(racks):
            return True
        for rack in self._ordered(index):
            self._steps_left -= 1
            if self._steps_left < 0:
                return False
            racks[index] = rack
            if spreads(racks, index, self._quorum, self._least):
                self._count(rack, 1)
                if self._place(index + 1):
                    return True
                self._count(rack, -1)
            racks[index] = None
        return False

    def _count(self, rack: str, count: int) -> None:
        self._left[rack] -= count
        if region := self._region_of(rack):
            self._members[region] += count
            self._members[rack] += count

    def _ordered(self, index: int) -> list[str]:
        size = len(self._racks)
        distances = [*range(1 - self._reach, 0), *range(1, self._reach)]
        near = {self._racks[(index + distance) % size] for distance in distances}
        draw = self._random.random
        return sorted(
            (rack for rack, left in self._left.items() if left > 0),
            key=lambda rack: (
                self._members[self._region_of(rack)],
                rack in near,
                self._members[rack],
                -(draw() ** (1 / self._left[rack])),
            ),
        )


def spreads(racks: list[str | None], index: int, quorum: int, least: int) -> bool:
    """Return True if each write quorum with this index has, or can still have, enough racks."""
    size = len(racks)
    for first in range(index - quorum + 1, index + 1):
        window = [racks[at % size] for at in range(first, first + quorum)]
        unknown = window.count(None)
        if len({*window} - {None}) + unknown < least:
            return False
    return True


def names_in(text: str) -> set[str]:
    """Return the names in a list that commas separate."""
    return {each.strip() for each in text.split(",")} - {""}


def without(racks: Mapping[str, str], excluded: Collection[str]) -> dict[str, str]:
    """Return the racks of the bookies that are not excluded."""
    return {each: rack for each, rack in racks.items() if each not in excluded}


def _members(groups: Groups, names: Iterable[str]) -> set[str]:
    return set().union(*(groups.get(name, ()) for name in names))


def _are(count: int) -> str:
    return f"is {count}" if count == 1 else f"are {count}"

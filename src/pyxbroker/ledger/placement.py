"""The placement contract: on which bookies a new ledger begins, and which ones replace others.

FixedPlacement serves a process that knows all its bookies from the start, such as standalone with
its embedded one. On a BookKeeper cluster RackPlacement (rack_placement.py) chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.ledger.errors import NotEnoughBookies

if TYPE_CHECKING:
    from pyxbroker.ledger.bookie import Bookie
    from pyxbroker.ledger.writer import FindBookies

POLICY_KEY = "EnsemblePlacementPolicyConfig"
"""The custom metadata of a ledger that has an affinity (Pulsar's EnsemblePlacementPolicyConfig)."""
_CLASS = "IsolatedBookieEnsemblePlacementPolicy"
_PACKAGE = "org.apache.pulsar.bookie.rackawareness"
_PRIMARY = "isolationBookieGroups"
_SECONDARY = "secondaryIsolationBookieGroups"


class LedgerQuorums(NamedTuple):
    """The numbers of bookies and copies of each entry (managedLedgerDefault... settings)."""

    ensemble: int = 1
    write: int = 1
    ack: int = 1
    is_policy: bool = False
    """True if a policy of the topic or its namespace sets them, for messages."""


class Affinity(NamedTuple):
    """The groups of bookies that a ledger belongs to; names separated by commas, as in Pulsar's
    BookieAffinityGroupData. The secondary groups are used when the primary ones have too few
    bookies.
    """

    primary: str = ""
    secondary: str = ""


ANY_GROUP = Affinity("*", "*")
"""Without restriction (Pulsar's group of system topics)."""


class Placement(Protocol):
    """A placement policy. No method waits."""

    has_groups: bool
    """True if the affinity of a ledger matters."""

    def new_ensemble(
        self, quorums: LedgerQuorums, affinity: Affinity | None = None
    ) -> tuple[str, ...]:
        """Return the bookies of a new ledger, in the order of its ensemble.

        Raises NotEnoughBookies, whose sentence names the setting that decides.
        """

    def replacements(
        self, wanted: FindBookies, quorums: LedgerQuorums, affinity: Affinity | None = None
    ) -> dict[int, str]:
        """Return a bookie for each of the indexes, as far as other bookies are available."""

    def on_error(self, bookie_id: str, code: int) -> None:
        """A request to a bookie failed with a code (bookie.py)."""

    def on_change(self, callback: Callable[[], None]) -> object:
        """Call callback() each time that other bookies may be chosen than before."""


class FixedPlacement:
    """The bookies in the order of their ids, whatever the groups are."""

    has_groups = False

    def __init__(self, bookies: Mapping[str, Bookie]) -> None:
        self._bookies = bookies

    def new_ensemble(
        self, quorums: LedgerQuorums, affinity: Affinity | None = None
    ) -> tuple[str, ...]:
        if quorums.ensemble > len(self._bookies):
            raise NotEnoughBookies(
                f"an ensemble of {quorums.ensemble} needs as many bookies, but there are"
                f" {len(self._bookies)}"
            )
        return tuple(sorted(self._bookies))[: quorums.ensemble]

    def replacements(
        self, wanted: FindBookies, quorums: LedgerQuorums, affinity: Affinity | None = None
    ) -> dict[int, str]:
        spare = (
            name
            for name, bookie in sorted(self._bookies.items())
            if name not in wanted.ensemble and name not in wanted.failed and not bookie.failure
        )
        # There may be fewer bookies than indexes.
        return dict(zip(sorted(wanted.indexes), spare))  # noqa: B905

    def on_error(self, bookie_id: str, code: int) -> None:
        """Nothing: no other bookie could be preferred."""

    def on_change(self, callback: Callable[[], None]) -> None:
        """Nothing: the bookies stay the same."""


def custom_metadata_of(affinity: Affinity) -> dict[str, bytes]:
    """Return the custom metadata by which later ensemble changes, and BookKeeper's auto-recovery,
    obey the affinity.
    """
    import json

    properties = {_PRIMARY: affinity.primary}
    if affinity.secondary:
        properties[_SECONDARY] = affinity.secondary
    config = {"policyClass": f"{_PACKAGE}.{_CLASS}", "properties": properties}
    return {POLICY_KEY: json.dumps(config, indent=2, separators=(",", " : ")).encode()}


def affinity_of(custom_metadata: Mapping[str, bytes]) -> Affinity | None:
    """Return the affinity in a ledger's custom metadata, or None."""
    text = custom_metadata.get(POLICY_KEY)
    if text is None:
        return None
    import json

    try:
        config = json.loads(text)
        if config["policyClass"].rpartition(".")[2] != _CLASS:
            return None
        properties = config["properties"]
        return Affinity(str(properties.get(_PRIMARY) or ""), str(properties.get(_SECONDARY) or ""))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None  # another program's; BookKeeper's client ignores it as well

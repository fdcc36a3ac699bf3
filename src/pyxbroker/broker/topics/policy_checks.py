"""What policies say of single messages: encrypted, not too large, not delayed for too long."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from pyxbroker.base.errors import MetadataStoreError, NotAllowed, PulsarError
from pyxbroker.publish_checks import NOT_ENCRYPTED, TOO_LARGE, TOO_LATE, forbidden

if TYPE_CHECKING:
    from pyxbroker.broker.topics.publish_steps import Publication


KINDS_MAX = 1_000


@functools.lru_cache(KINDS_MAX)
def policy_checks(encrypted: bool, bytes_max: int, delay_max_ms: int) -> PolicyChecks:
    """One for all topics with the same limits: a namespace may have many."""
    return PolicyChecks(encrypted, bytes_max, delay_max_ms)


class PolicyChecks:
    """A publish step that refuses what they forbid; a limit of 0 is none. It keeps nothing of what
    it has seen.
    """

    def __init__(self, encrypted: bool, bytes_max: int, delay_max_ms: int) -> None:
        self._limits = (encrypted, bytes_max, delay_max_ms)
        self._errors: dict[int, PulsarError] = {
            NOT_ENCRYPTED: MetadataStoreError("Messages must be encrypted"),
            TOO_LARGE: NotAllowed("Exceed maximum message size"),
            TOO_LATE: NotAllowed(
                f"Exceeds max allowed delivery delay of {delay_max_ms} milliseconds"
            ),
        }

    def check(self, publication: Publication) -> None:
        for index, reason in forbidden(publication.run, *self._limits):
            publication.refuse(index, self._errors[reason])

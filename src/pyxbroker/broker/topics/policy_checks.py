"""Checks of single messages by policies: encryption, size and delay."""

from __future__ import annotations

import functools

from pyxbroker.base.errors import MetadataStoreError, NotAllowed, PulsarError
from pyxbroker.broker.topics.publish_steps import Publication, StepOrder
from pyxbroker.publish_checks import NOT_ENCRYPTED, TOO_LARGE, TOO_LATE, forbidden

KINDS_MAX = 1_000


@functools.lru_cache(KINDS_MAX)
def policy_checks(encrypted: bool, bytes_max: int, delay_max_ms: int) -> PolicyChecks:
    """Return the step for these limits. Topics with the same limits share one."""
    return PolicyChecks(encrypted, bytes_max, delay_max_ms)


class PolicyChecks:
    """A publish step that refuses messages that policies forbid. A limit of 0 means no limit.

    The step holds no state of a topic, so that topics can share it.
    """

    order = StepOrder.POLICY

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

"""What may go wrong between Spark and a broker: each says it in a sentence that Spark shows.

Spark hands an error of a Python worker on as text, so the text has all there is to know.
"""

from __future__ import annotations


class PulsarSparkError(Exception):
    """The root; also what has no better class."""


class WrongOption(PulsarSparkError):
    """An option that does not exist, has a value it cannot have, or is not built yet."""


class NotReachable(PulsarSparkError):
    """Nobody answers at the service URL, or not in time."""


class TopicMissing(PulsarSparkError):
    """A topic that was asked for is not there."""


class DataLost(PulsarSparkError):
    """Messages that a query needs were deleted."""


class Refused(PulsarSparkError):
    """The broker said no."""

    def __init__(self, sentence: str, may_pass: bool = False, code: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        """The name of a ServerError, where it is one."""
        self.may_pass = may_pass
        """Whether asking again later may help."""

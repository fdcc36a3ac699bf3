"""What may go wrong between Spark and a broker: each says it in a sentence that Spark shows.

Spark hands an error of a Python worker on as text, so the text has all there is to know.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class PulsarSparkError(Exception):
    """The root; also what has no better class."""


class WrongOption(PulsarSparkError):
    """An option that does not exist, has a value it cannot have, or is not built yet."""


class WrongInstallation(PulsarSparkError):
    """A library, an interpreter or Java is missing, or too old."""


class NotReachable(PulsarSparkError):
    """Nobody answers at the service URL, or not in time."""


class TopicMissing(PulsarSparkError):
    """A topic that was asked for is not there."""

    words = ""
    """What the broker said, where it was asked."""


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
        self.words = ""
        """What the broker said, without what is said around it."""


@contextmanager
def without_traceback() -> Iterator[None]:
    """Let Spark show a PulsarSparkError of the body without the traceback of its Python worker.

    A decorator of what Spark calls in a worker. A worker ends with its first error, so the
    variable, which Spark's setting hideTraceback sets as well, holds for that error only.
    """
    try:
        yield
    except PulsarSparkError:
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise

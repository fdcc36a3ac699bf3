"""The errors of the connector. Each has a sentence that Spark shows to the user.

Spark passes an error of a Python worker on as text, so the text contains everything.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


class PulsarSparkError(Exception):
    """The base class; also raised for errors without a class of their own."""


class WrongOption(PulsarSparkError):
    """An option that does not exist, or has an invalid value."""


class WrongInstallation(PulsarSparkError):
    """A library, an interpreter or Java is missing, or too old."""


class NotReachable(PulsarSparkError):
    """No broker answers at the service URL, or not in time."""


class TopicMissing(PulsarSparkError):
    """A requested topic does not exist."""

    words = ""
    """The broker's message, if a broker was asked."""


class DataLost(PulsarSparkError):
    """Messages that a query needs were deleted."""


class Refused(PulsarSparkError):
    """A broker refused a request."""

    def __init__(self, sentence: str, may_pass: bool = False, code: str = "") -> None:
        super().__init__(sentence)
        self.code = code
        """The name of a ServerError; empty for other refusals."""
        self.may_pass = may_pass
        """True if a retry may succeed."""
        self.words = ""
        """The broker's message alone."""


@contextmanager
def without_traceback() -> Iterator[None]:
    """Let Spark show a PulsarSparkError of the body without the traceback of its Python worker.

    A decorator of functions that Spark calls in a worker. A worker ends with its first error, so
    the variable, which Spark's setting hideTraceback sets as well, holds for that error only.
    """
    try:
        yield
    except PulsarSparkError:
        spec = getattr(sys.modules["__main__"], "__spec__", None)
        if spec is not None and spec.name.startswith("pyspark."):
            os.environ["SPARK_HIDE_TRACEBACK"] = "1"
        raise

"""Regular expressions of somebody else's, in RE2's syntax.

RE2 takes a time that is linear in the length of a text, whatever the expression says. How long that
is for each character is bounded by the memory of its program.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

PROGRAM_BYTES_MAX = 128 << 10
"""Of a compiled expression, with what RE2 remembers of texts that it has seen."""

# What RE2 says of expressions that Java knows and RE2 does not (assertions, backreferences,
# possessive repetitions, classes of Java's own), and of those that take more memory than they may.
_BEYOND = (
    b"invalid perl operator",
    b"invalid escape sequence",
    b"invalid character class range",
    b"bad repetition operator",
    b"pattern too large",
)


class Expression(Protocol):
    """A compiled expression, as RE2 has it."""

    @property
    def pattern(self) -> str:
        """What it was compiled from."""

    def fullmatch(self, text: bytes) -> object | None:
        """None when it does not match all of a text in UTF-8."""


class ExpressionError(Exception):
    """What is no expression for RE2; the message is RE2's reason.

    `may_be_java` says that other engines may understand it.
    """

    def __init__(self, reason: bytes) -> None:
        super().__init__(reason.decode())
        self.may_be_java = reason.startswith(_BEYOND)


def compile_expression(text: str) -> Expression:
    """Raises ExpressionError."""
    # 3 MiB and 5 ms, which a broker without expressions does not need.
    import re2

    try:
        return re2.compile(text, _options())
    except re2.error as error:
        [reason] = error.args
        raise ExpressionError(reason) from error


@lru_cache(maxsize=1)
def _options() -> object:
    import re2

    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    options.never_capture = True
    options.log_errors = False
    return options

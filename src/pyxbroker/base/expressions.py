"""Regular expressions from users, in RE2's syntax.

RE2 matches in time linear in the length of the text, for any expression. The memory limit of its
program bounds the time per character.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Protocol

PROGRAM_BYTES_MAX = 128 << 10
"""Memory of a compiled expression, including RE2's cache of states."""

_MISSING = b"the package google-re2 is not installed"

# RE2's errors for syntax that only Java supports (assertions, backreferences, possessive
# quantifiers, Java's own classes) and for expressions that exceed the memory limit.
_BEYOND = (
    _MISSING,
    b"invalid perl operator",
    b"invalid escape sequence",
    b"invalid character class range",
    b"bad repetition operator",
    b"pattern too large",
)


class Expression(Protocol):
    """A compiled RE2 expression."""

    @property
    def pattern(self) -> str:
        """The source text of the expression."""

    def fullmatch(self, text: bytes) -> object | None:
        """Return a match, or None if the expression does not match all of a UTF-8 text."""


class ExpressionError(Exception):
    """RE2 rejects the expression; the message is RE2's reason.

    `may_be_java` is True if another engine may accept the expression.
    """

    def __init__(self, reason: bytes) -> None:
        super().__init__(reason.decode())
        self.may_be_java = reason.startswith(_BEYOND)


def compile_expression(text: str) -> Expression:
    """Compile an expression. Raises ExpressionError."""
    # Imported on first use: re2 takes 3 MiB and 5 ms.
    try:
        import re2
    except ModuleNotFoundError:  # a wheel for musl does not require it
        raise ExpressionError(_MISSING) from None
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

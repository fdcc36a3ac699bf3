"""Files of keys and values, read like java.util.Properties, which Pulsar uses for its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


class ConfigError(Exception):
    """A setting cannot be used. The message names its place, its key and what is expected."""


LINE_END = re.compile(r"\r\n|\r|\n")
BLANKS = " \t\f"
# A key ends at the first separator without a backslash before it.
KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line number, key and value of each pair in a file, in order.

    Pulsar passes bytes to Properties.load, so they are ISO-8859-1; other characters are written as
    \\uXXXX. Raises ConfigError for invalid content.
    """
    try:
        text = path.read_bytes().decode("latin-1")
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"The configuration file {path} cannot be read: {reason}.") from None
    for number, line in _logical_lines(text):
        if "\0" in line:
            raise ConfigError(
                f"{path}, line {number}: it contains a null byte, so this is not a properties file."
            )
        key = KEY.match(line)
        assert key is not None
        separator = SEPARATOR.match(line, key.end())
        assert separator is not None
        try:
            yield number, _unescaped(key[0]), _unescaped(line[separator.end() :])
        except ValueError as error:
            raise ConfigError(f"{path}, line {number}: {error}.") from None


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line that is neither blank nor a comment, with the number of its first line.

    An odd number of backslashes at the end of a line continues it. The last backslash is removed,
    as are the leading blanks of the next line. A continuation line is never a comment.
    """
    joined, first = "", 0
    lines = LINE_END.split(text)
    # The end of the file ends a line with a continuation, as a final line end does, unless that is
    # CR LF. The difference only shows for a line that is a single backslash.
    last = len(lines) - (not lines[-1] and not text.endswith("\r\n"))
    for number, line in enumerate(lines, start=1):
        part = line.lstrip(BLANKS)
        if not joined:
            first = number
            if part[:1] in ("", "#", "!"):
                continue
        backslashes = len(part) - len(part.rstrip("\\"))
        if backslashes % 2:
            part = part[:-1]
            if number < last:
                joined += part
                continue
        yield first, joined + part
        joined = ""
    if joined:
        yield first, joined


def _unescaped(text: str) -> str:
    """Resolve escapes. Raises ValueError for an invalid escape or a null character."""
    if "\\" not in text:
        return text
    plain = ESCAPE.sub(_character, text)
    try:
        # Two \uXXXX are one character if they form a surrogate pair.
        plain = plain.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("a \\uXXXX is half of a surrogate pair without its other half") from None
    if "\0" in plain:
        raise ValueError("\\u0000 cannot be part of a setting")
    return plain


def _character(escape: re.Match[str]) -> str:
    meant = escape[1]
    if len(meant) > 1:
        return chr(int(meant[1:], 16))
    if meant == "u":
        raise ValueError("\\u has to be followed by four hexadecimal digits")
    return ESCAPED.get(meant, meant)

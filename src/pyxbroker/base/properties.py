"""Files of keys and values, read as java.util.Properties does; Pulsar reads its own with it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path


class ConfigError(Exception):
    """A setting that cannot be used; the sentence names its place, its key and what is expected."""


LINE_END = re.compile(r"\r\n|\r|\n")
BLANKS = " \t\f"
# A key ends at the first separator that has no backslash before it.
KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{4}|.)", re.DOTALL)
ESCAPED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def read_properties(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, key and value of each pair of a file, in their order.

    Pulsar gives Properties.load the bytes, not characters, and so they are ISO-8859-1: what that
    does not have is written as \\uXXXX. Raises ConfigError for what cannot be read.
    """
    try:
        text = path.read_bytes().decode("latin-1")
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"The configuration file {path} cannot be read: {reason}.") from None
    for number, line in _logical_lines(text):
        if "\0" in line:
            raise ConfigError(
                f"{path}, line {number}: there is a byte 0, so this is not a file of settings."
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
    """Each line that is not empty and no comment, with the number of its first line.

    An odd number of backslashes at the end of a line continues it: the last of them goes, as do the
    blanks that the next line begins with. What continues a line is no comment.
    """
    joined, first = "", 0
    lines = LINE_END.split(text)
    # The end of a file ends a line that would go on, as the last end of a line does, unless that is
    # of two characters: it matters where nothing but a backslash is there.
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
    """Raises ValueError for what stands for no character, or for one that no setting can have."""
    if "\\" not in text:
        return text
    plain = ESCAPE.sub(_character, text)
    try:
        # Two \uXXXX are one character where each is half of it.
        plain = plain.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError("a \\uXXXX is half of a character, and its other half is not there") from (
            None
        )
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

"""Files of key=value lines, as Pulsar's configuration files are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


class ConfigError(Exception):
    """A setting that cannot be used; the sentence names its place, its key and what is expected."""


def read_properties(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line number, key and value of each line of a Java properties file, as Pulsar's files are."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"The configuration file {path} cannot be read: {reason}.") from None
    joined, first = "", 0
    for number, line in enumerate(lines, start=1):
        if not joined:
            first = number
            if line.lstrip()[:1] in ("#", "!"):
                continue
        joined += line.strip()
        if joined.endswith("\\"):
            joined = joined[:-1]
            continue
        if joined:
            equals, colon = joined.find("="), joined.find(":")
            ends = [at for at in (equals, colon) if at >= 0]
            if not ends:
                raise ConfigError(f"{path}, line {first}: expected key=value, found {joined!r}.")
            yield first, joined[: min(ends)].strip(), joined[min(ends) + 1 :].strip()
        joined = ""

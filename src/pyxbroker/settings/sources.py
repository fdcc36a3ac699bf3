"""Where the values of settings come from: a file, the environment, the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pyxbroker.base.properties import ConfigError, read_properties
from pyxbroker.settings.names import (
    ALIASES,
    PROTECTION,
    WITHOUT_EFFECT,
    ZOOKEEPER_ALIASES,
)
from pyxbroker.settings.schema import Setting, Value

ENVIRONMENT_PREFIX = "PULSAR_PREFIX_"


# Key and value as somebody wrote them, and where, for the sentence that refuses the value.
Given = tuple[str, str, str]


def of_file(path: Path) -> Iterator[Given]:
    """The lines of a configuration file. Raises ConfigError when it cannot be read."""
    for line, key, text in read_properties(path):
        yield key, text, f"{path}, line {line}"


def of_environment(environment: Mapping[str, str]) -> Iterator[Given]:
    """The variables `PULSAR_PREFIX_<key>`."""
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX)
            yield key, text, f"environment variable {name}"


def of_command_line(overrides: Mapping[str, str]) -> Iterator[Given]:
    """The options of a command."""
    for key, text in overrides.items():
        yield key, text, "command line"


class Reader:
    """Makes values of what sources say; a later source wins.

    `values` is by the keys of the schema. `unknown` lists what was given and does nothing here, in
    the words of who gave it.
    """

    def __init__(self, schema: Mapping[str, Setting]) -> None:
        self.values: dict[str, Value] = {}
        self.unknown: list[str] = []
        self._schema = schema

    def read(self, source: Iterable[Given]) -> None:
        """Takes the values of one source. Raises ConfigError for one that cannot be used."""
        # By which name a key was set last: Pulsar's current one wins over its older ones whatever
        # their order in a file.
        named_by: dict[str, str] = {}
        for key, text, place in source:
            self._take(key, text, place, named_by)

    def _take(self, key: str, text: str, place: str, named_by: dict[str, str]) -> None:
        if key in PROTECTION and text.strip().lower() == "true":
            raise ConfigError(
                f"{place}: {key} is true, and there is none yet: anybody would be served."
            )
        target = ALIASES.get(key, key)
        row = self._schema.get(target)
        if row is None:
            if key not in WITHOUT_EFFECT | PROTECTION and key not in self.unknown:
                self.unknown.append(key)
            return
        if key != target and (not text.strip() or named_by.get(target) == target):
            return
        try:
            value = row.parse(text)
        except (ValueError, KeyError):
            raise ConfigError(
                f"{place}: {key} is {text.strip()!r}; expected {row.expected()}."
            ) from None
        if key in ZOOKEEPER_ALIASES:
            value = f"zk:{value}"
        self.values[target] = value
        named_by[target] = key

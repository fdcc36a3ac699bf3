"""Sources of settings: a file, the environment, the command line."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from pyxbroker.base.properties import ConfigError, read_properties
from pyxbroker.settings.names import (
    ALIASES,
    CONFIGURATION_STORE,
    CONFIGURATION_STORES,
    OLDER,
    OLDER_WINS,
    OWN_STORES,
    STANDALONE_ALIASES,
    WITHOUT_EFFECT,
    ZOOKEEPER_ALIASES,
)
from pyxbroker.settings.schema import Setting, Value

ENVIRONMENT_PREFIX = "PULSAR_PREFIX_"
TLS_SWITCH = "tlsEnabled"  # Pulsar's switch from before it had separate ports for TLS
METADATA = "metadataStoreUrl"

# Keys that are evaluated or silently accepted without being settings.
SILENT = WITHOUT_EFFECT | CONFIGURATION_STORES | {TLS_SWITCH}


# Key and value as given, and the place, for the error message about the value.
Given = tuple[str, str, str]


def of_file(path: Path) -> Iterator[Given]:
    """Yield the lines of a configuration file. Raise ConfigError if it cannot be read."""
    for line, key, text in read_properties(path):
        yield key, text, f"{path}, line {line}"


def of_environment(environment: Mapping[str, str]) -> Iterator[Given]:
    """Yield the variables `PULSAR_PREFIX_<key>`."""
    for name, text in sorted(environment.items()):
        if name.startswith(ENVIRONMENT_PREFIX):
            key = name.removeprefix(ENVIRONMENT_PREFIX)
            yield key, text, f"environment variable {name}"


def of_command_line(overrides: Mapping[str, str]) -> Iterator[Given]:
    """Yield the options of a command."""
    for key, text in overrides.items():
        yield key, text, "command line"


class Ignored:
    """Keys that were given and have no effect, each once, in the order in which they were given."""

    def __init__(self) -> None:
        # Keys of Pulsar and BookKeeper with their default value,
        self.at_default: dict[str, None] = {}
        # and with another value, so that the operator expects an effect.
        self.wanted: dict[str, None] = {}
        self.unknown: dict[str, None] = {}  # keys that no known program has
        # Keys that a file sets twice to different values: the place of the last one, which counts.
        self.repeated: dict[str, str] = {}
        # Deprecated names with a value that asks for something, and the newer names.
        self.older: dict[str, str] = {}
        # Keys that name a metadata store that is ignored, and its URL.
        self.stores: dict[str, str] = {}
        self.bare: list[str] = []  # environment variables that lack the prefix

    def add(self, key: str, text: str) -> None:
        """Record a key that is no setting here; the last of several values counts."""
        # Imported here because few files have such keys.
        from pyxbroker.settings import java_keys

        if not java_keys.is_known(key):
            self.unknown[key] = None
            return
        is_default = java_keys.asks_for_nothing(key, text)
        now, other = (self.at_default, self.wanted)[:: 1 if is_default else -1]
        other.pop(key, None)
        now[key] = None


class Reader:
    """Converts what sources give to values; a later source overrides an earlier one.

    `values` is indexed by the keys of the schema. With `is_cluster`, the settings are those of a
    broker of a cluster, whose stores any source may name.
    """

    def __init__(self, schema: Mapping[str, Setting], is_cluster: bool = False) -> None:
        self.values: dict[str, Value] = {}
        self.ignored = Ignored()
        self.tls_switch = ""  # place of the last TLS_SWITCH that is true
        self._schema = schema
        self._is_cluster = is_cluster
        if is_cluster:
            self._aliases = ALIASES | dict.fromkeys(CONFIGURATION_STORES, CONFIGURATION_STORE)
        else:
            self._aliases = ALIASES | STANDALONE_ALIASES

    def read(self, source: Iterable[Given], is_command_line: bool = False) -> None:
        """Read the values of one source. Raise ConfigError for a value that is invalid."""
        # The name that last set each key. One of two names wins, in whatever order they are given.
        named_by: dict[str, str] = {}
        texts: dict[str, str] = {}
        for key, text, place in source:
            if texts.setdefault(key, text) != text:
                self.ignored.repeated[key] = place
            texts[key] = text
            target = self._aliases.get(key, key)
            if key in OLDER:
                self._note_older(key, text)
            if key == TLS_SWITCH:
                self.tls_switch = place if text.strip().lower() == "true" else ""
            elif not self._is_cluster and (
                key in CONFIGURATION_STORES
                or (target == METADATA and not is_command_line and not text.startswith(OWN_STORES))
            ):
                self._pass_over(key, text.strip())
            else:
                self._take(key, target, text, place, named_by)

    def _note_older(self, key: str, text: str) -> None:
        newer, default = OLDER[key]
        text = text.strip().lower()
        if text and text != default and not text.startswith("-"):
            self.ignored.older[key] = newer
        else:
            self.ignored.older.pop(key, None)

    def _pass_over(self, key: str, url: str) -> None:
        if url:
            self.ignored.stores[key] = url
        else:
            self.ignored.stores.pop(key, None)

    def _take(self, key: str, target: str, text: str, place: str, named_by: dict[str, str]) -> None:
        row = self._schema.get(target)
        if row is None:
            if key not in WITHOUT_EFFECT:
                self.ignored.add(key, text)
            return
        if key != target and _is_unset(key, text):
            return
        if _rank(named_by.get(target, key)) > _rank(key):
            return
        try:
            value = row.parse(text)
        except (ValueError, KeyError):
            raise ConfigError(
                f"{place}: {key} is {text.strip()!r}; expected {row.expected(text)}."
            ) from None
        if key in ZOOKEEPER_ALIASES:
            value = f"zk:{value}"
        self.values[target] = value
        named_by[target] = key


def _is_unset(older: str, text: str) -> bool:
    """Return True if the value of an older name leaves the setting to the current name."""
    text = text.strip()
    return not text or (older in OLDER_WINS and (text == "0" or text.startswith("-")))


def _rank(name: str) -> int:
    """Return the precedence of one of the names of a setting; the highest wins."""
    if name in OLDER_WINS:
        return 2
    is_older = (
        name in ALIASES
        or name in STANDALONE_ALIASES
        or (name in CONFIGURATION_STORES and name != CONFIGURATION_STORE)
    )
    return 0 if is_older else 1

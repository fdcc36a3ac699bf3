"""Scenarios: groups of producers and consumers from YAML files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.extras import require
from pyxbroker.base.suggestions import did_you_mean
from pyxbroker.base.topic_name import TopicName
from pyxbroker.client.entries import CODECS
from pyxbroker.perf.groups import KEYS, TYPES, ConsumerGroup, Group, ProducerGroup
from pyxbroker.perf.results import NeedsLibrary
from pyxbroker.proto import PulsarApi as pb

SHIPPED = Path(__file__).parent / "scenarios"
STEP = "step"
"""The rate of a group that has the rate of the scenario's current step."""
MAXIMUM = "max"

_KEYS = frozenset(("about", "seconds", "warm-up", "steps", "groups", "connections"))
_COMMON = frozenset(("name", "kind", "topics", "count"))
_OF_PRODUCERS = _COMMON | {
    *("size", "rate", "batching", "batch-messages", "batch-bytes", "batch-delay-ms"),
    *("compression", "keys", "key-count", "outstanding", "producer-name"),
}
_OF_CONSUMERS = _COMMON | {"subscription", "subscriptions", "type", "position", "queue"}


class BadScenario(Exception):
    """A scenario does not exist, or its file has an error."""


@dataclass(frozen=True)
class Scenario:
    """A scenario. Each step runs all groups once."""

    name: str
    about: str
    groups: tuple[Group, ...]
    stepped: frozenset[str]
    """Names of the groups that have the rate of the step."""
    steps: tuple[float, ...] = (0.0,)
    """Messages per second; 0: the maximum."""
    seconds: float = 30.0
    warm_up_s: float = 5.0
    connections: int = 1

    def at(self, rate: float) -> list[Group]:
        """Return the groups of a step."""
        return [
            replace(each, rate=rate)
            if isinstance(each, ProducerGroup) and each.name in self.stepped
            else each
            for each in self.groups
        ]


def shipped() -> list[str]:
    """Return the names of the scenarios that are installed."""
    return sorted(path.stem for path in SHIPPED.glob("*.yaml"))


def load(name: str) -> Scenario:
    """Return an installed scenario, or that of a file. Raises BadScenario and NeedsLibrary."""
    path = SHIPPED / f"{name}.yaml" if name in shipped() else Path(name)
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise BadScenario(f"{name} is not valid YAML: it is not text") from error
    except OSError as error:
        known = ", ".join(shipped())
        raise BadScenario(
            f"{name} is neither a scenario ({known}) nor a file that can be read: {error.strerror}"
        ) from error
    return replace(parse(name, text), name=path.stem)


def parse(name: str, text: str) -> Scenario:
    """Return the scenario that a YAML text describes. Raises BadScenario and NeedsLibrary."""
    require("A scenario", "yaml", error=NeedsLibrary)
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problem = getattr(error, "problem", None) or "it has characters that YAML forbids"
        raise BadScenario(f"{name} is not valid YAML: {line}{problem}") from error
    _check_names(name, found, _KEYS)
    rows = found.get("groups")
    if not isinstance(rows, list) or not rows:
        raise BadScenario(f"{name} has no groups")
    groups, stepped = [], set()
    for number, row in enumerate(rows, start=1):
        where = f"group {number} of {name}"
        try:
            group, has_step = _group(where, row, number)
        except (ValueError, InvalidTopicName) as error:
            raise BadScenario(f"{where} has an error: {error}") from error
        groups.append(group)
        if has_step:
            stepped.add(group.name)
    steps = found.get("steps", [MAXIMUM])
    try:
        if not isinstance(steps, list) or not steps:
            raise ValueError(f"steps is {steps!r}; expected a list of rates")
        return Scenario(
            name,
            " ".join(str(found.get("about", "")).split()),
            tuple(groups),
            frozenset(stepped),
            tuple(_rate("steps", each) for each in steps),
            _number("seconds", found.get("seconds", 30)),
            _number("warm-up", found.get("warm-up", 5)),
            _integer(found, "connections", 1),
        )
    except ValueError as error:
        raise BadScenario(f"{name} has an error: {error}") from error


def _group(where: str, row: Any, number: int) -> tuple[Group, bool]:
    kind = row.get("kind") if isinstance(row, Mapping) else None
    if kind == "producers":
        _check_names(where, row, _OF_PRODUCERS)
        return _producers(row, number), row.get("rate") == STEP
    if kind == "consumers":
        _check_names(where, row, _OF_CONSUMERS)
        return _consumers(row, number), False
    raise BadScenario(f"{where} has kind {kind!r}; expected producers or consumers")


def _producers(row: Mapping[str, Any], number: int) -> ProducerGroup:
    rate = row.get("rate", MAXIMUM)
    keys = _one_of(row, "keys", "none", KEYS)
    is_batched = row.get("batching", True)
    if not isinstance(is_batched, bool):
        raise ValueError(f"batching is {is_batched!r}; expected true or false")
    if is_batched and keys != "none":
        raise ValueError("messages of a batch have no keys; write batching: false")
    return ProducerGroup(
        _topics(row),
        str(row.get("name", f"producers-{number}")),
        _integer(row, "count", 1),
        str(row.get("producer-name", "")),
        _integer(row, "size", 1024, 0),
        0.0 if rate == STEP else _rate("rate", rate),
        outstanding_max=_integer(row, "outstanding", 0, 0),
        batch_messages=_integer(row, "batch-messages", 1000) if is_batched else 1,
        batch_bytes=_integer(row, "batch-bytes", 128 << 10),
        batch_delay_s=_number("batch-delay-ms", row.get("batch-delay-ms", 1)) / 1000,
        codec=CODECS[_one_of(row, "compression", "NONE", tuple(CODECS))],
        keys=keys,
        key_count=_integer(row, "key-count", 1 << 31),
    )


def _consumers(row: Mapping[str, Any], number: int) -> ConsumerGroup:
    position = _one_of(row, "position", "Latest", ("Latest", "Earliest"))
    return ConsumerGroup(
        _topics(row),
        str(row.get("name", f"consumers-{number}")),
        _integer(row, "count", 1),
        _names("subscriptions", row.get("subscriptions", row.get("subscription", "perf"))),
        _one_of(row, "type", "Shared", TYPES),
        pb.CommandSubscribe.InitialPosition.Value(position),
        _integer(row, "queue", 1000),
    )


# --- values ---------------------------------------------------------------------------------------


def _topics(row: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(str(TopicName.get(each)) for each in _names("topics", row.get("topics")))


def _names(name: str, value: Any) -> tuple[str, ...]:
    found = [value] if isinstance(value, str) else value
    if not isinstance(found, list) or not found or not all(isinstance(each, str) for each in found):
        shown = "missing" if value is None else repr(value)
        raise ValueError(f"{name} is {shown}; expected a name or a list of names")
    return tuple(found)


def _integer(row: Mapping[str, Any], name: str, default: int, least: int = 1) -> int:
    value = row.get(name, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ValueError(f"{name} is {value!r}; expected a whole number of at least {least}")
    return value


def _rate(name: str, value: Any) -> float:
    """Return messages per second; 0 stands for the maximum."""
    return 0.0 if value == MAXIMUM else _number(name, value, "max or ")


def _number(name: str, value: Any, expected: str = "") -> float:
    try:
        number = float(value)  # in YAML 1e6 is text
    except (TypeError, ValueError):
        number = -1
    if isinstance(value, bool) or not 0 <= number <= 1e9:
        raise ValueError(f"{name} is {value!r}; expected {expected}a number from 0 to 1e9")
    return number


def _one_of(row: Mapping[str, Any], name: str, default: str, known: tuple[str, ...]) -> str:
    value = row.get(name, default)
    if value not in known:
        raise ValueError(f"{name} is {value!r}; expected one of {', '.join(known)}")
    return str(value)


def _check_names(where: str, found: Any, known: frozenset[str]) -> None:
    """Raise BadScenario for something that is no mapping, or for an unknown name in it."""
    if not isinstance(found, Mapping):
        raise BadScenario(f"{where} is not a mapping of names to values")
    for each in found:
        if each not in known:
            meant = did_you_mean(str(each), known)
            raise BadScenario(f"{where} has an unknown name {each!r}{'; ' * bool(meant)}{meant}")

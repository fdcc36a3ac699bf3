"""Scenarios: groups of producers and consumers from YAML files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
        text = path.read_text()
    except OSError as error:
        known = ", ".join(shipped())
        raise BadScenario(
            f"{name} is neither a scenario ({known}) nor a file that can be read: {error.strerror}"
        ) from error
    return parse(path.stem, text)


def parse(name: str, text: str) -> Scenario:
    """Return the scenario that a YAML text describes. Raises BadScenario and NeedsLibrary."""
    require("A scenario", "yaml", error=NeedsLibrary)
    import yaml

    try:
        found = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise BadScenario(f"{name} is not valid YAML: {error}") from error
    _check_names(name, found, _KEYS)
    rows = found.get("groups")
    if not isinstance(rows, list) or not rows:
        raise BadScenario(f"{name} has no groups")
    groups, stepped = [], set()
    for number, row in enumerate(rows, start=1):
        where = f"group {number} of {name}"
        try:
            group, has_step = _group(where, row, number)
        except (TypeError, ValueError, KeyError, InvalidTopicName) as error:
            raise BadScenario(f"{where} has an error: {error}") from error
        groups.append(group)
        if has_step:
            stepped.add(group.name)
    try:
        return Scenario(
            name,
            " ".join(str(found.get("about", "")).split()),
            tuple(groups),
            frozenset(stepped),
            tuple(rate_of(each) for each in found.get("steps", [MAXIMUM])),
            float(found.get("seconds", 30)),
            float(found.get("warm-up", 5)),
            int(found.get("connections", 1)),
        )
    except (TypeError, ValueError) as error:
        raise BadScenario(f"{name} has an error: {error}") from error


def rate_of(value: Any) -> float:
    """Return messages per second; 0 stands for the maximum. Raises ValueError."""
    if value == MAXIMUM:
        return 0.0
    rate = float(value)
    if not 0 <= rate < 1e9:
        raise ValueError(f"{value} is not a rate")
    return rate


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
    keys = _one_of(row.get("keys", "none"), KEYS)
    is_batched = bool(row.get("batching", True))
    if is_batched and keys != "none":
        raise ValueError("messages of a batch have no keys; write batching: false")
    return ProducerGroup(
        _topics(row["topics"]),
        str(row.get("name", f"producers-{number}")),
        _at_least(1, row.get("count", 1)),
        str(row.get("producer-name", "")),
        _at_least(0, row.get("size", 1024)),
        0.0 if rate == STEP else rate_of(rate),
        outstanding_max=_at_least(0, row.get("outstanding", 0)),
        batch_messages=_at_least(1, row.get("batch-messages", 1000)) if is_batched else 1,
        batch_bytes=_at_least(1, row.get("batch-bytes", 128 << 10)),
        batch_delay_s=float(row.get("batch-delay-ms", 1)) / 1000,
        codec=CODECS[_one_of(row.get("compression", "NONE"), tuple(CODECS))],
        keys=keys,
        key_count=_at_least(1, row.get("key-count", 1 << 31)),
    )


def _consumers(row: Mapping[str, Any], number: int) -> ConsumerGroup:
    subscriptions = row.get("subscriptions", [row.get("subscription", "perf")])
    position = _one_of(row.get("position", "Latest"), ("Latest", "Earliest"))
    return ConsumerGroup(
        _topics(row["topics"]),
        str(row.get("name", f"consumers-{number}")),
        _at_least(1, row.get("count", 1)),
        tuple(str(each) for each in subscriptions),
        _one_of(row.get("type", "Shared"), TYPES),
        pb.CommandSubscribe.InitialPosition.Value(position),
        _at_least(1, row.get("queue", 1000)),
    )


def _topics(names: Iterable[Any]) -> tuple[str, ...]:
    if isinstance(names, str):
        names = [names]
    found = tuple(str(TopicName.get(str(each))) for each in names)
    if not found:
        raise ValueError("topics is empty")
    return found


def _at_least(least: int, value: Any) -> int:
    number = int(value)
    if number < least:
        raise ValueError(f"{value} is less than {least}")
    return number


def _one_of(value: Any, known: tuple[str, ...]) -> str:
    if value not in known:
        raise ValueError(f"{value!r} is none of {', '.join(known)}")
    return str(value)


def _check_names(where: str, found: Any, known: frozenset[str]) -> None:
    """Raise BadScenario for something that is no mapping, or for an unknown name in it."""
    if not isinstance(found, Mapping):
        raise BadScenario(f"{where} is not a mapping of names to values")
    for each in found:
        if each not in known:
            meant = did_you_mean(str(each), known)
            raise BadScenario(f"{where} has an unknown name {each!r}{'; ' * bool(meant)}{meant}")

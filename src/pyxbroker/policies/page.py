"""Generator of docs/policies.md: `python -m pyxbroker.policies.page` prints the page."""

from __future__ import annotations

from typing import Any

from pyxbroker.policies.shapes import Level, Part, Path, Policy
from pyxbroker.policies.table import TABLE
from pyxbroker.settings.config import Config

HEAD = """\
# Policies

Written by `make docs` from `policies/table.py`.

Policies apply to topics. For each policy the broker checks the topic, then the namespace, then its
own settings; the first level with a value wins. A topic has two records in the system topic
`__change_events` of its namespace, Pulsar's `TopicPolicies`: first its own one, then the one that
all clusters share. A namespace has one record, Pulsar's `Policies`, JSON in metadata at
`/admin/policies/<tenant>/<namespace>`. A field that is absent or null sets nothing. Neither does a
negative number where 0 means "no limit", nor a rate without a limit.

A change by any process is in force on open topics within a second. A field with an
invalid value is refused alone: the policy keeps its last value, and the log names the namespace or
topic and the field. A refused policy deletes nothing, even after a restart: retention keeps all
messages, nothing expires or is evicted, and the broker deletes neither inactive topics nor
expired subscriptions. While a record cannot be read at all, this applies to all its policies. While
the record of a namespace does not exist, its open topics keep their policies, and no topic is
deleted as inactive.

## Policies of topics and namespaces

| policy | field of a namespace | field of a topic | type | broker's setting | meaning |
|---|---|---|---|---|---|"""

OF_BROKERS = """
## Policies of the broker alone

| policy | broker's setting | meaning |
|---|---|---|"""


class _Reader:
    """A configuration that records which settings are read."""

    def __init__(self) -> None:
        self._config = Config()
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.names.append(name)
        return getattr(self._config, name)


def settings_of(row: Policy) -> list[str]:
    """Return the broker's settings that determine the default of a policy."""
    reader: Any = _Reader()
    row.broker(reader)
    return list(dict.fromkeys(reader.names))


def markdown() -> str:
    """Return the whole page."""
    lines = [HEAD]
    for row in TABLE:
        if row.paths:
            places = (_places(row.paths.get(level, ())) for level in (Level.NAMESPACE, Level.TOPIC))
            cells = (*places, _type(row), _settings(row), row.about)
            lines.append(f"| `{row.name}` | {' | '.join(cells)} |")
    lines.append(OF_BROKERS)
    for row in TABLE:
        if not row.paths:
            lines.append(f"| `{row.name}` | {_settings(row)} | {row.about} |")
    return "\n".join(lines) + "\n"


def _settings(row: Policy) -> str:
    return ", ".join(f"`{name}`" for name in settings_of(row))


def _places(paths: tuple[Path, ...]) -> str:
    return " or ".join(f"`{'.'.join(path)}`" for path in paths) or "-"


def _type(row: Policy) -> str:
    return "; ".join(map(_part, row.parts))


def _part(part: Part) -> str:
    name = f"`{part.name}` " if part.name else ""
    optional = " (may be left out)" if part.is_optional else ""
    return f"{name}{part.expected()}{optional}"


if __name__ == "__main__":
    print(markdown(), end="")

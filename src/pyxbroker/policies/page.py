"""docs/policies.md, from the table: `python -m pyxbroker.policies.page` prints it."""

from __future__ import annotations

from typing import Any

from pyxbroker.policies.shapes import Level, Part, Path, Policy
from pyxbroker.policies.table import TABLE
from pyxbroker.settings.config import Config

HEAD = """\
# Policies

Written by `make docs` from `policies/table.py`.

A policy holds for a topic. It is asked for at the topic first, then at the namespace, then at the
broker; the first of them that says something wins. A topic says it in two records of the system
topic `__change_events` of its namespace, Pulsar's `TopicPolicies`: its own one and then the one
that all clusters share. Namespaces say it in their record, Pulsar's `Policies`, JSON in metadata at
`/admin/policies/<tenant>/<namespace>`. A field that is not there, or null, says nothing; so does a
negative number where 0 is no limit, and a rate that limits nothing.

A change, by whichever process, is in force on open topics within a second. A field with a value
that it cannot have is refused by itself: its policy stays as it was, and the log names the
namespace or topic and the field. Nothing is deleted by a policy that is refused, also after a
restart: retention keeps everything, nothing expires or is evicted for it, and no topic and no
subscription is deleted since nobody uses it. While a record cannot be read at all, that holds for
all its policies. While it is gone, open topics stay as they are, and no topic is deleted as
inactive.

## Policies of topics and namespaces

| policy | field of a namespace | field of a topic | type | broker's setting | meaning |
|---|---|---|---|---|---|"""

OF_BROKERS = """
## Policies of the broker alone

| policy | broker's setting | meaning |
|---|---|---|"""


class _Reader:
    """A configuration that notes what is read of it."""

    def __init__(self) -> None:
        self._config = Config()
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.names.append(name)
        return getattr(self._config, name)


def settings_of(row: Policy) -> list[str]:
    """The broker's settings that a policy's default is made of."""
    reader: Any = _Reader()
    row.broker(reader)
    return list(dict.fromkeys(reader.names))


def markdown() -> str:
    """The whole page."""
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

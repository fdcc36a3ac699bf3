"""How policies of Apache Pulsar differ from ours: docs/compatibility.md has the table.

A test that expects something else of Apache Pulsar names a row of it, so that nothing differs in
silence.
"""

from __future__ import annotations

import functools

from harness.brokers import ROOT

from compat_tests.conftest import broker_kind

REASONS = {"defect", "not yet"}
HEAD = "| what | here | Apache Pulsar 4.2.4 | why |"


@functools.cache
def table() -> dict[str, str]:
    """The reason of each row."""
    page = (ROOT / "docs" / "compatibility.md").read_text()
    _, _, rest = page.partition(HEAD + "\n")
    rows = rest.partition("\n\n")[0].splitlines()[1:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    return {what.replace("`", ""): why for what, _, _, why in cells}


def differs(what: str) -> bool:
    """Whether the broker under test is one for which this row of the table says something else."""
    assert what in table(), f"{what!r} is no row of docs/compatibility.md"
    return broker_kind() == "apache"

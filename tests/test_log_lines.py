"""docs/log-lines.md explains each line that the broker logs at WARNING and above, and no others."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
SOURCES = ROOT / "src" / "pyxbroker"
PAGE = ROOT / "docs" / "log-lines.md"

LEVELS = {
    **dict.fromkeys(("warning", "refused"), "WARNING"),
    **dict.fromkeys(("error", "critical"), "ERROR"),
    **dict.fromkeys(("failure", "exception"), "defect"),
    "info": "INFO",
}
LOGS = re.compile(r"(self\.)?_?log")
FORWARDED = {"attempt": 0, "_check_open": 0, "on_defect": 0, "_evict": 1, "refusal_of": 2}
"""Functions that log one of their arguments, and its place."""
NOT_CONSTANT = {"event", "why", "finding.sentence", "sentence"}
"""Arguments of log calls: those that a function of FORWARDED gets, and findings in metadata."""


def texts_of(node: ast.expr, constants: dict[str, str]) -> Iterator[str]:
    """Yield the texts that an expression may have; `...` stands for inserted values."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.IfExp):
        yield from texts_of(node.body, constants)
        yield from texts_of(node.orelse, constants)
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(each.value) if isinstance(each, ast.Constant) else "..." for each in node.values
        )
    elif (name := ast.unparse(node)) in constants:
        yield constants[name]
    else:
        assert name in NOT_CONSTANT, f"{name} is logged; name the function that gets it"


def logged_by(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the level and the text of each line that a module logs."""
    constants = {
        ast.unparse(each.targets[0]): each.value.value
        for each in ast.walk(tree)
        if isinstance(each, ast.Assign)
        and isinstance(each.value, ast.Constant)
        and isinstance(each.value.value, str)
    }
    chosen = _chosen_methods(tree)
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        name = call.func.id if isinstance(call.func, ast.Name) else ""
        for level in chosen.get(name, ()):
            for text in texts_of(call.args[0], constants):
                yield LEVELS[level], text
        if isinstance(call.func, ast.Attribute):
            name = call.func.attr
            if name in LEVELS and LOGS.fullmatch(ast.unparse(call.func.value)):
                for text in texts_of(call.args[0], constants):
                    yield LEVELS[name], text
        place = FORWARDED.get(name, len(call.args))
        if place < len(call.args) and isinstance(call.args[place], (ast.Constant, ast.IfExp)):
            for text in texts_of(call.args[place], constants):
                yield "WARNING", text


def _chosen_methods(tree: ast.Module) -> dict[str, set[str]]:
    """Return the methods of a log by the names of `write = log.info if ... else log.error`."""
    found: dict[str, set[str]] = defaultdict(set)
    for each in ast.walk(tree):
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.IfExp):
            for method in (each.value.body, each.value.orelse):
                if isinstance(method, ast.Attribute) and LOGS.fullmatch(ast.unparse(method.value)):
                    found[ast.unparse(each.targets[0])].add(method.attr)
    return found


@cache
def logged() -> dict[str, set[str]]:
    """Return the levels of each text that the package logs at INFO and above."""
    found = defaultdict(set)
    for path in SOURCES.rglob("*.py"):
        if path.relative_to(SOURCES).parts[0] != "spark":  # it runs in the processes of Spark
            for level, text in logged_by(ast.parse(path.read_text())):
                found[text].add(level)
    return found


def explained() -> dict[str, re.Pattern[str]]:
    """Return the lines that the page explains; `...` in them stands for any text."""
    cells = [row.split(" | ")[0] for row in PAGE.read_text().splitlines() if row.startswith("| ")]
    spans = [span for cell in cells for span in re.findall(r"`([^`]+)`", cell)]
    return {span: re.compile(re.escape(span).replace(r"\.\.\.", ".*")) for span in spans}


def test_the_page_has_each_line_at_warning_and_above() -> None:
    patterns = explained().values()
    missing = [
        text
        for text, levels in logged().items()
        if levels != {"INFO"} and not any(each.fullmatch(text) for each in patterns)
    ]
    assert missing == []


def test_each_line_of_the_page_is_logged() -> None:
    texts = logged()
    assert [
        span
        for span, pattern in explained().items()
        if not any(pattern.fullmatch(text) for text in texts)
    ] == []


def test_texts_that_a_log_call_may_write_are_found() -> None:
    module = ast.parse(
        'LOST = "a file is lost"\n'
        "log.error(LOST)\n"
        'self._log.warning(f"closed by {setting}", peer=peer)\n'
        'log.info("first" if is_first else "next")\n'
        'log.failure("a call failed", error)\n'
        "attempt('it did not expire', topic)\n"
        "write = log.info if is_known else log.error\n"
        "write('a copy failed')\n"
        "other.error('not logged')\n"
    )
    assert sorted(logged_by(module)) == [
        ("ERROR", "a copy failed"),
        ("ERROR", "a file is lost"),
        ("INFO", "a copy failed"),
        ("INFO", "first"),
        ("INFO", "next"),
        ("WARNING", "closed by ..."),
        ("WARNING", "it did not expire"),
        ("defect", "a call failed"),
    ]

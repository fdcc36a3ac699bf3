"""What was found so far, kept in build/mutants/ so that a run that was cut goes on; the table."""

from __future__ import annotations

import hashlib
import json
import threading
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mutants.draw import Mutant
from mutants.judge import KILLED, NOT_COMPILED, SURVIVED, Outcome
from mutants.kept import EQUIVALENT, OPEN, Kept


class Results:
    """By the id of the mutant. Any thread.

    What caught one counts for as long as the tests are those that did; what one survived counts for
    a run that asks no more tests.
    """

    def __init__(self, path: Path, root: Path, only_near: bool = False) -> None:
        self._path = path
        self._root = root
        self._only_near = only_near
        self._lock = threading.Lock()
        self._found: dict[str, dict[str, Any]] = {}
        if path.exists():
            self._found = json.loads(path.read_text())["mutants"]
        self._asked: dict[str, dict[str, Any]] = {}

    def known(self, mutant: Mutant, again: bool, kept: Kept | None = None) -> str | None:
        """What became of it in an earlier run; with `again`, survivors are judged anew."""
        with self._lock:
            found = self._found.get(mutant.id)
            if found is None or (again and found["what"] == SURVIVED) or self._is_stale(found):
                return None
            self._asked[mutant.id] = found | {"line": mutant.line, **_reason(kept)}
            return str(found["what"])

    def _is_stale(self, found: dict[str, Any]) -> bool:
        if found["what"] == KILLED:
            return bool(found.get("judged_by") != self._digest(found["by"]))
        return bool(found["what"] == SURVIVED and found.get("only_near") and not self._only_near)

    def _digest(self, test: str) -> str:
        """Of the file that has a test, or of all tests in C."""
        path = self._root / test.split("::")[0]
        if test.startswith("tests/native"):
            files = sorted((self._root / "tests" / "native").glob("*.[ch]"))
        else:
            files = [path] if path.is_file() else []
        return hashlib.sha1(b"".join(each.read_bytes() for each in files)).hexdigest()

    def add(self, mutant: Mutant, outcome: Outcome, kept: Kept | None) -> dict[str, Any]:
        row = {
            "id": mutant.id,
            "name": mutant.name,
            "language": mutant.language,
            "file": mutant.path,
            "line": mutant.line,
            "function": mutant.function,
            "operator": mutant.operator,
            "diff": mutant.diff,
            **outcome.as_json(),
            "judged_by": self._digest(outcome.by),
            "only_near": self._only_near,
            **_reason(kept),
        }
        with self._lock:
            self._found[mutant.id] = self._asked[mutant.id] = row
            unfinished = self._path.with_suffix(".tmp")
            text = {"mutants": self._found, "summary": summary(self._found.values())}
            unfinished.write_text(json.dumps(text, indent=1))
            unfinished.replace(self._path)
        return row

    def rows(self) -> list[dict[str, Any]]:
        """What this run asked for and what counts, the survivors last."""
        with self._lock:
            rows = [each for each in self._asked.values() if counts(each)]
        return sorted(rows, key=lambda each: (each["what"] != KILLED, each["file"], each["line"]))


def _reason(kept: Kept | None) -> dict[str, str]:
    return {"kept": kept.kind if kept else "", "reason": kept.reason if kept else ""}


def counts(row: dict[str, Any]) -> bool:
    return row["what"] in (KILLED, SURVIVED) and row["kept"] != EQUIVALENT


def summary(rows: Iterable[dict[str, Any]]) -> dict[str, Any]:
    rows = [each for each in rows if counts(each)]
    caught = Counter(each["language"] for each in rows if each["what"] == KILLED)
    tried = Counter(each["language"] for each in rows)
    return {
        "tried": len(rows),
        "caught": sum(caught.values()),
        "by language": {name: [caught[name], tried[name]] for name in sorted(tried)},
    }


def unlisted(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Survivors that nobody has given a reason for."""
    return [each for each in rows if each["what"] == SURVIVED and each["kept"] != OPEN]


def line_of(row: dict[str, Any]) -> str:
    where = f"{row['file']}:{row['line']}"
    if row["what"] == KILLED:
        found = f"caught by {row['by']}" + (f" ({row['how']})" if row["how"] else "")
    elif row["kept"]:
        found = f"{row['kept']}: {row['reason']}"
    elif row["what"] == NOT_COMPILED:
        found = "does not compile, another one is drawn"
    else:
        found = f"SURVIVED ({row['stages'] or 'no test calls it'})"
    what = row["name"] or row["operator"]
    return f"{row['id']}  {where:<48}  {what:<20}  {found}  [{row['seconds']:.0f} s]"


def table(rows: list[dict[str, Any]]) -> str:
    lines = [line_of(each) for each in rows]
    for row in rows:
        if row["what"] == SURVIVED:
            lines += ["", f"{row['id']} {row['file']}:{row['line']} in {row['function'] or '-'}"]
            lines += [f"    {each}" for each in row["diff"].splitlines()]
    found = summary(rows)
    lines.append("")
    for language, (caught, tried) in found["by language"].items():
        lines.append(f"{language}: {caught} of {tried} caught")
    share = 100 * found["caught"] / max(found["tried"], 1)
    lines.append(f"mutants: {found['caught']} of {found['tried']} caught, {share:.1f} %")
    return "\n".join(lines)

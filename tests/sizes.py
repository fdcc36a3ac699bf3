"""Lists what is long: files and functions that may be better in two pieces. No test fails for it.

python tests/sizes.py
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
CODE = (".py", ".pyx", ".pxd", ".c", ".h", ".go")
FUNCTION_LINES = 70
FILE_LINES = 600


def functions_of_python(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of each function."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            assert node.end_lineno is not None
            yield node.name, node.lineno, node.end_lineno - node.lineno + 1


def functions_of_cython(text: str) -> Iterator[tuple[str, int, int]]:
    """The same by indentation: a function ends before the next line that is not deeper than it."""
    lines = text.splitlines()
    for start, line in enumerate(lines):
        head = re.match(r"(\s*)(?:async def|def|cdef|cpdef)\b[^=]*?(\w+)\s*\(", line)
        if head is None:
            continue
        indent = len(head[1])
        at = start
        while at < len(lines) and not lines[at].split("#")[0].rstrip().endswith(":"):
            at += 1
            if at < len(lines) and lines[at].strip() and indent >= _indent(lines[at]):
                break
        last = at
        for index in range(at + 1, len(lines)):
            if not lines[index].strip():
                continue
            if _indent(lines[index]) <= indent and not lines[index].lstrip().startswith(")"):
                break
            last = index
        yield head[2], start + 1, last - start + 1


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip())


def functions_of_c(text: str) -> Iterator[tuple[str, int, int]]:
    """The same by braces in the first column, which is how our C is written, and Go by gofmt."""
    lines = text.splitlines()
    name, start = "", 0
    for index, line in enumerate(lines):
        head = re.match(r"[A-Za-z_].*?(\w+)\(", line)
        if head is not None and not line.rstrip().endswith(";"):
            name, start = head[1], index
        elif line.startswith("}") and name:
            if re.fullmatch(r"}\s*", line):
                yield name, start + 1, index - start + 1
            name = ""


def functions(path: Path) -> Iterator[tuple[str, int, int]]:
    """Name, first line and number of lines of each function of a file."""
    text = path.read_text()
    if path.suffix == ".py":
        return functions_of_python(text)
    return functions_of_c(text) if path.suffix in (".c", ".h", ".go") else functions_of_cython(text)


def main() -> None:
    """Prints what is longer than usual."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    for path in sorted(ROOT / name for name in names.split("\0") if name):
        if path.suffix not in CODE or not path.exists():
            continue
        name = path.relative_to(ROOT).as_posix()
        lines = len(path.read_text().splitlines())
        if lines > FILE_LINES:
            print(f"{name}: {lines} lines")
        for function, line, length in functions(path):
            if length > FUNCTION_LINES:
                print(f"{name}:{line}: {function} has {length} lines")


if __name__ == "__main__":
    main()

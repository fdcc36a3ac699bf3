"""Imports between modules form no cycles, not even imports that only annotations need."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parent.parent / "src" / "pyxbroker"
CYTHON = re.compile(
    r"^(?:from\s+([\w.]+)\s+c?import\s+(\([^)]*\)|.+)|c?import\s+([\w.]+))", re.MULTILINE
)


def test_cycles_of_imports_have_at_most_two_files_of_one_room() -> None:
    wrong = []
    for cycle in cycles(imports()):
        rooms = {module.split(".")[1] for module in cycle}
        if len(cycle) > 2 or len(rooms) > 1:
            wrong.append(f"{len(cycle)} modules: {' '.join(sorted(cycle))}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_cycles_are_found() -> None:
    edges = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"d"}, "f": {"a"}}
    assert cycles(edges) == {frozenset("abc"), frozenset("de")}


def test_imports_for_annotations_count_and_those_in_functions_do_not(tmp_path: Path) -> None:
    code = "from a import b, c\nif TYPE_CHECKING:\n    import d.e\ndef f():\n    import g\n"
    (tmp_path / "module.py").write_text(code)
    assert dict(imported_by(tmp_path / "module.py")) == {"a": ["b", "c"], "d.e": []}
    (tmp_path / "module.pyx").write_text("from a cimport (b,\n    c)\ncimport d.e\nimport f\n")
    assert dict(imported_by(tmp_path / "module.pyx")) == {"a": ["b", "c"], "d.e": [], "f": []}


def cycles(edges: dict[str, set[str]]) -> set[frozenset[str]]:
    """Return the sets of modules that reach each other."""
    reached = {module: reachable(edges, module) for module in edges}
    return {
        frozenset(other for other in reached[module] if module in reached[other])
        for module in edges
        if module in reached[module]
    }


def reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    unseen = [start]
    while unseen:
        new = edges[unseen.pop()] - found
        found |= new
        unseen += new
    return found


def imports() -> dict[str, set[str]]:
    """Return the modules of the package that each of its modules imports."""
    files: dict[str, list[Path]] = {}
    for path in PACKAGE.rglob("*.p*"):
        if path.suffix in (".py", ".pyi", ".pyx", ".pxd"):
            parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
            files.setdefault(".".join(parts).removesuffix(".__init__"), []).append(path)
    edges: dict[str, set[str]] = {}
    for module, paths in files.items():
        edges[module] = set()
        for path in paths:
            for base, names in imported_by(path):
                submodules = {f"{base}.{name}" for name in names} & files.keys()
                edges[module] |= submodules or ({base} & files.keys())
        edges[module].discard(module)  # the .pyx that cimports its .pxd
    return edges


def imported_by(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the modules that a file imports, each with the names that it takes from the module.

    Imports in functions do not count: they run after all modules are loaded.
    """
    text = path.read_text()
    if path.suffix in (".pyx", ".pxd"):
        for base, names, whole in CYTHON.findall(text):
            yield base or whole, re.findall(r"\w+", names)
        return
    nodes: list[ast.AST] = [ast.parse(text)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, [alias.name for alias in node.names]
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            nodes += ast.iter_child_nodes(node)

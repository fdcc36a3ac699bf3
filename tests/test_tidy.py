"""The house rules that a machine can check: arrows between parts, sizes, codes, words."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sizes import functions_of_c, functions_of_cython, functions_of_python

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "src" / "pyxbroker"
NATIVE = ROOT / "src" / "bookie_native"
SPARK = ROOT / "spark"  # src/pyxbroker/spark is a symbolic link to it

LINE_MAX = 100

CODE = (".py", ".pyx", ".pxd", ".c", ".h", ".go")

# Each room, and those that it may import. `road` is what lies at the top: the .pyx files and the
# C module; `proto` the generated messages. Who wants to import more changes this table, and says
# why in the commit.
GROUND = {"base", "proto"}
ARROWS: dict[str, set[str]] = {
    "road": set(),
    "base": set(),
    "proto": set(),
    "auth": {*GROUND, "settings", "policies"},
    "settings": {"base"},
    "metadata": {*GROUND},
    # Above the broker, which describes what it asks of a cluster by `broker/lookup.py`.
    # It asks the other brokers as a client does.
    "cluster": {*GROUND, "road", "ledger", "metadata", "settings", "stats", "broker", "client"},
    "policies": {*GROUND, "metadata", "settings"},
    "stats": {*GROUND, "road", "settings"},
    "ledger": {*GROUND, "road", "metadata"},
    "bookie": {*GROUND, "road", "ledger", "metadata"},
    # Whole files of a standalone; the broker's part is in `roles`.
    "backup": {*GROUND, "bookie", "ledger", "metadata"},
    "mledger": {*GROUND, "road", "ledger", "metadata"},
    "schemas": {*GROUND, "road", "ledger", "metadata"},
    "broker": {
        *GROUND,
        *("road", "ledger", "mledger", "metadata", "policies", "settings", "auth"),
        "schemas",
    },
    # An HTTP server: what is answered, and which endpoints there are, is handed in.
    "web": {"base", "auth"},
    "admin": {
        *GROUND,
        *("web", "auth", "broker", "cluster", "metadata", "policies", "schemas", "settings"),
        "stats",
    },
    "roles": {
        *GROUND,
        *("road", "bookie", "ledger", "mledger", "metadata", "policies", "settings", "stats"),
        *("broker", "web", "admin", "cluster", "auth", "client"),
    },
    # The client knows nothing of a broker's inside: it may as well talk to another kind of broker.
    "client": {*GROUND, "road"},
    # What runs in Spark's workers: no part of a broker, but what a schema is.
    "spark": {*GROUND, "road", "schemas", "client"},
    # Its brokers are processes: it knows only their command line.
    "testing": set(),
    # The load generator: a client of any broker.
    "perf": {*GROUND, "road", "client"},
    # Its tokens are looked at by the same code as a broker's.
    # It asks running brokers as a client does.
    "cli": {
        *GROUND,
        *("roles", "settings", "metadata", "bookie", "auth", "spark", "client", "perf", "backup"),
    },
}


def tracked(*suffixes: str) -> list[Path]:
    """The files of the project, without build outputs; new ones that git does not ignore count."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    paths = [ROOT / name for name in names.split("\0") if name]
    return [path for path in paths if path.is_file() and (not suffixes or path.suffix in suffixes)]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- sizes ------------------------------------------------------------------------------------


def test_lines_are_short() -> None:
    wrong = []
    for path in tracked(*CODE):
        for number, line in enumerate(path.read_text().splitlines(), start=1):
            if len(line) > LINE_MAX:
                wrong.append(f"{relative(path)}:{number}: {len(line)} characters")
    assert not wrong, "\n" + "\n".join(wrong)


def test_functions_are_measured() -> None:
    body = "\n".join(f"    x{n} = {n}" for n in range(80))
    python = f"def a(\n    b,\n):\n{body}\n\n\ndef c():\n    pass\n"
    assert list(functions_of_python(python)) == [("a", 1, 83), ("c", 6 + 80, 2)]
    cython = (
        f"cdef int a(\n        int b,\n) except -1:\n{body}\n\n\ncdef class D:\n    cdef int x\n"
    )
    assert next(functions_of_cython(cython)) == ("a", 1, 83)
    native = f"static int a(int b,\n             int c)\n{{\n{body}\n}}\n"
    assert list(functions_of_c(native)) == [("a", 1, 84)]
    assert list(functions_of_c(f"int a(void) {{\n{body}\n}}\n")) == [("a", 1, 82)]


# --- arrows -----------------------------------------------------------------------------------


def imports_of(path: Path) -> set[str]:
    """The parts of the package that a module imports: the first name after `pyxbroker.`."""
    text = path.read_text()
    if path.suffix != ".py":
        found = re.findall(r"^\s*(?:from|import|cimport)\s+pyxbroker\.(\w+)", text, re.MULTILINE)
        found += re.findall(r"^\s*from\s+pyxbroker\s+c?import\s+(\w+)", text, re.MULTILINE)
        return set(found)
    parts = set()
    for node in ast.walk(ast.parse(text)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            names = [node.module]
            if node.module == "pyxbroker":
                names = [f"pyxbroker.{alias.name}" for alias in node.names]
        for name in names:
            if name.startswith("pyxbroker."):
                parts.add(name.split(".")[1])
    return parts


def room_of(path: Path) -> str:
    """The room of a module; "" for the two at the top that are the package's own."""
    if SPARK in path.parents:
        return "spark"
    parts = path.relative_to(PACKAGE).parts
    if len(parts) > 1:
        return parts[0]
    return "" if path.suffix == ".py" else "road"


def rooms_imported(path: Path) -> set[str]:
    """The rooms that a module imports or cimports, without its own."""
    found = imports_of(path) - {"__version__"}
    return {each if (PACKAGE / each).is_dir() else "road" for each in found} - {room_of(path)}


def modules() -> list[Path]:
    files = tracked(".py", ".pyx", ".pxd", ".pyi")
    return [path for path in files if not {PACKAGE, SPARK}.isdisjoint(path.parents)]


def test_rooms_import_along_the_arrows() -> None:
    wrong = []
    for path in modules():
        room = room_of(path)
        if room:
            above = rooms_imported(path) - ARROWS[room]
            wrong += [f"{relative(path)} imports {each}" for each in sorted(above)]
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_room_has_its_arrows() -> None:
    rooms = {room_of(path) for path in modules()} - {""}
    assert rooms == set(ARROWS)


def test_the_arrows_make_no_ring() -> None:
    left = dict(ARROWS)
    while left:
        lowest = [room for room, below in left.items() if not below & left.keys()]
        assert lowest, f"a ring among {sorted(left)}"
        for room in lowest:
            del left[room]


def test_what_a_start_imports_first_is_light() -> None:
    """roles/start.py opens the data, and imports the rest while other threads do that."""
    program = "import sys, pyxbroker.roles.start; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "pyxbroker.bookie.layout" in modules
    for late in ("pyxbroker.broker.broker", "pyxbroker.connection", "pyxbroker.admin.app"):
        assert late not in modules


def test_a_start_waits_for_nothing_that_only_clients_need() -> None:
    program = "import sys, pyxbroker.roles.standalone; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    rooms = (
        *("broker.commands", "broker.topics", "broker.subscriptions", "broker.compaction"),
        *("broker.statistics", "broker.dispatch", "mledger", "policies", "proto"),
    )
    late = [each for each in modules if each.startswith(tuple(f"pyxbroker.{x}" for x in rooms))]
    assert late == []
    assert not {"google.protobuf", "uuid", "re2", "h11"} & set(modules)


def test_what_is_imported_after_a_start_is_what_the_first_client_needs() -> None:
    program = """
import importlib, sys
from pyxbroker.broker.broker import IMPORTED_LATE
for name in IMPORTED_LATE:
    importlib.import_module(name)
known = set(sys.modules)
import pyxbroker.broker.commands.handlers, pyxbroker.broker.commands.session
import pyxbroker.broker.topics.topics
print(*sorted(set(sys.modules) - known))
"""
    late = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    assert late == []


def test_only_the_command_line_imports_the_roles() -> None:
    assert [room for room, below in ARROWS.items() if "roles" in below] == ["cli"]


def test_the_top_is_the_road() -> None:
    """Modules in Python live in rooms."""
    top = [path.name for path in modules() if path.parent == PACKAGE and path.suffix == ".py"]
    assert sorted(top) == ["__init__.py", "__main__.py"]


# --- codes and words ----------------------------------------------------------------------------


def test_every_server_error_has_exactly_one_class() -> None:
    from pyxbroker.base import errors
    from pyxbroker.proto import PulsarApi

    classes = [
        each
        for each in vars(errors).values()
        if isinstance(each, type)
        and issubclass(each, errors.PulsarError)
        and each.__module__ == errors.__name__
        and "code" in vars(each)
    ]
    of_code: dict[int, list[str]] = {code: [] for code in PulsarApi.ServerError.values()}
    for each in classes:
        of_code[each.code].append(each.__name__)
    names = PulsarApi.ServerError
    wrong = {names.Name(code): found for code, found in of_code.items() if len(found) != 1}
    # PulsarError itself may carry UnknownError, the code of what has no better one.
    assert wrong == {}


# Spelled in pieces so that this file passes its own test.
UNFINISHED = re.compile("|".join(["TO" + "DO", "FIX" + "ME", r"\bX" + r"XX\b", "HA" + r"CK\b"]))
MACHINE = re.compile(
    "|".join(["/wo" + "rk/", "/ro" + "ot/", r"/ho" + r"me/\w", r"https?://[^\s/]*\bregis" + "try"])
)

PRODUCT = ("src/", "spark/")
# docs/STYLE.md: a docstring commands or names, and actors and things have their field's word.
FIRST_WORD = re.compile(
    r'^\s*"""(Wh(at|en|ere|ether|ich|o|y)|How|If|It|Of|That|The same|There|Raises|Returns)\b'
)
RIDDLE = re.compile(
    r"(?<![a-z.])(nobody|somebody|whoever|everybody|anybody|strangers?|told|tellings?|besides?"
    r"|haste|mend(ed|s)?|lets? go|comes? again|goes on|gives? way|gave way|stands? in line"
    r"|at once|bit by bit|in a hurry|now and then|there (is|are) none|what it is called"
    r"|look(s|ed|ing)? (at|after|into))(?![a-z])".replace(" ", "[ _]"),
    re.IGNORECASE,
)


@pytest.mark.parametrize(
    ("pattern", "what", "folders"),
    [
        (UNFINISHED, "unfinished work", ""),
        (MACHINE, "a machine's path or host", ""),
        (FIRST_WORD, "a docstring that neither commands nor names", PRODUCT),
        (RIDDLE, "a word for which the field has a better one", PRODUCT),
    ],
    ids=["unfinished", "machine", "first-word", "riddle"],
)
def test_no_line_has(pattern: re.Pattern[str], what: str, folders: str | tuple[str, ...]) -> None:
    wrong = []
    for path in tracked():
        if path.name == "LICENSE" or not relative(path).startswith(folders):
            continue
        if b"\0" in path.read_bytes()[:4096]:
            continue
        text = path.read_text(errors="replace")
        for number, line in enumerate(text.splitlines(), start=1):
            if pattern.search(line):
                wrong.append(f"{relative(path)}:{number}: {what}: {line.strip()[:80]}")
    assert not wrong, "\n" + "\n".join(wrong)


def test_docstrings_of_functions_are_imperative() -> None:
    wrong = []
    for path in tracked(".py"):
        if not relative(path).startswith(PRODUCT):
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if is_function and not node.decorator_list:
                first = (ast.get_docstring(node) or "").partition(" ")[0]
                if re.fullmatch("[A-Z][a-z]*[^s]s", first):
                    wrong.append(f"{relative(path)}:{node.lineno}: {node.name}: {first} ...")
    assert not wrong, "\n" + "\n".join(wrong)


def test_no_test_is_skipped() -> None:
    words = re.compile(r"mark\.(skip|xfail)|pytest\.(skip|xfail|importorskip)\(|unittest\.skip")
    wrong = []
    for folder in ("tests", "compat_tests", "torture", "bench"):
        for path in (ROOT / folder).rglob("*.py"):
            if path != Path(__file__) and words.search(path.read_text()):
                wrong.append(relative(path))
    assert not wrong, "\n" + "\n".join(wrong)

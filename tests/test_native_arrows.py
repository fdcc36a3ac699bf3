"""Who calls whom among the C files of the storage: from each layer only into lower ones."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

NATIVE = Path(__file__).parent.parent / "src" / "bookie_native"

# The lowest first. A file calls files of layers before its own, and none of its own layer.
LAYERS: tuple[tuple[str, ...], ...] = (
    # Ground: what knows nothing else of ours.
    (
        "condition",
        "crc32",
        "crc32c",
        "disk",
        "entry_log_file",
        "events",
        "id_map",
        "segment",
        "sha1",
    ),
    # Memory of entries, their records, and disks that fail now and then.
    ("cache", "digest", "disk_faults", "disk_retry", "record", "warmer", "window"),
    # Files that are read from their beginning to their end.
    ("entry_log_scan", "journal_manifest", "replay_window"),
    ("entry_log_rebuild", "journal_files", "log_manifest"),
    # The journal, one entry log, and all of them.
    ("entry_log", "entry_log_index", "journal"),
    ("entry_log_write", "index", "replay"),
    # The threads beside the journal's.
    ("index_open", "reader"),
    ("flush",),
    # The owner's side, which composes them.
    ("storage_ledgers",),
    ("storage_trouble",),
    ("storage_flush", "storage_read"),
    ("storage", "storage_write"),
    # Python's side.
    ("module_faults",),
    ("module",),
)

# A function in the first column, up to its opening brace; not a prototype.
HEAD = re.compile(r"^[A-Za-z_][\w *]*?\b(\w+)\([^;{}]*\)\s*\{", re.M)
WORD = re.compile(r"(?<![.\w])(?<!->)[A-Za-z_]\w*")


def code_of(path: Path) -> str:
    """Without comments and what stands in quotes."""
    text = re.sub(r"/\*.*?\*/", " ", path.read_text(), flags=re.S)
    return re.sub(r'"(?:\\.|[^"\\\n])*"', '""', text)


def functions(code: str) -> Iterator[tuple[str, bool, str]]:
    """Name, whether it is static, and body of each function."""
    for head in HEAD.finditer(code):
        end = code.index("\n}", head.end() - 1)
        yield head[1], head[0].startswith("static"), code[head.end() : end]


def calls(files: dict[str, str], headers: list[str]) -> dict[str, dict[str, set[str]]]:
    """Of each file: the files whose functions it names, and those functions.

    Who names an inline function of a header names what that one does.
    """
    where = {
        name: file
        for file, code in files.items()
        for name, is_static, _ in functions(code)
        if not is_static
    }
    inline = {name: body for code in headers for name, _, body in functions(code)}
    found: dict[str, dict[str, set[str]]] = {}
    for file, code in files.items():
        found[file] = {}
        words = set(WORD.findall(code))
        looked: set[str] = set()
        while more := (words & inline.keys()) - looked:
            looked |= more
            words |= {word for name in more for word in WORD.findall(inline[name])}
        for word in words & where.keys():
            if where[word] != file:
                found[file].setdefault(where[word], set()).add(word)
    return found


def ring(arrows: dict[str, set[str]]) -> list[str]:
    """Those that are in a ring, or are only reached through one."""
    left = dict(arrows)
    while lowest := [each for each, below in left.items() if not below & left.keys()]:
        for each in lowest:
            del left[each]
    return sorted(left)


def native_calls() -> dict[str, dict[str, set[str]]]:
    files = {path.stem: code_of(path) for path in NATIVE.glob("*.c")}
    return calls(files, [code_of(path) for path in NATIVE.glob("*.h")])


def test_every_file_has_its_layer() -> None:
    listed = [name for layer in LAYERS for name in layer]
    assert sorted(listed) == sorted(path.stem for path in NATIVE.glob("*.c"))


def test_files_call_only_lower_layers() -> None:
    layer_of = {name: number for number, layer in enumerate(LAYERS) for name in layer}
    wrong = [
        f"{file}.c calls {', '.join(sorted(names))} of {other}.c"
        for file, below in native_calls().items()
        for other, names in below.items()
        if layer_of[other] >= layer_of[file]
    ]
    assert not wrong, "\n" + "\n".join(wrong)


def test_every_function_of_a_header_is_found_in_a_file() -> None:
    """Else the test above would pass by seeing nothing."""
    defined = {
        name
        for path in NATIVE.glob("*.c")
        for name, is_static, _ in functions(code_of(path))
        if not is_static
    }
    declared = set()
    for path in NATIVE.glob("*.h"):
        prototypes = re.findall(r"^[A-Za-z_][\w *]*?\b(\w+)\([^;{}()]*\);", code_of(path), re.M)
        declared |= set(prototypes)
    assert len(declared) > 150
    assert declared - defined == set()


def test_only_the_module_knows_python() -> None:
    """What its threads run is in the other files, so they can neither take nor need the GIL."""
    sources = {path.name: path.read_text() for path in NATIVE.glob("*.[ch]")}
    reaches = {"Python.h"}
    count = 0
    while count != len(reaches):
        count = len(reaches)
        include = re.compile(rf'#include [<"]({"|".join(map(re.escape, sorted(reaches)))})[>"]')
        reaches |= {name for name, text in sources.items() if include.search(text)}
    assert reaches == {"Python.h", "module.c", "module.h", "module_faults.c"}
    threads = {name for name, text in sources.items() if "pthread_create(" in text}
    assert threads and not threads & reaches


def test_headers_include_each_other_without_a_ring() -> None:
    include = re.compile(r'^#include "([\w.]+)"', re.M)
    arrows = {path.name: set(include.findall(path.read_text())) for path in NATIVE.glob("*.h")}
    assert any(arrows.values())
    assert ring(arrows) == []


def broken(add: Callable[[dict[str, str]], None]) -> list[str]:
    files = {
        "low": "int low_get(int at) {\n    return at;\n}\n",
        "high": "static int twice(int at) {\n    return low_get(low_get(at));\n}\n"
        "int high_get(int at) {\n    return twice(at);\n}\n",
    }
    add(files)
    headers = ["static inline void low_notice(int at) {\n    high_get(at);\n}\n"]
    return ring({file: set(below) for file, below in calls(files, headers).items()})


def test_a_ring_is_found() -> None:
    assert broken(lambda files: None) == []
    call = "void low_call(void) {\n    high_get(1);\n}\n"
    assert broken(lambda files: files.update(low=files["low"] + call)) == ["high", "low"]
    address = "void *low_address(void) {\n    return (void *)high_get;\n}\n"
    assert broken(lambda files: files.update(low=files["low"] + address)) == ["high", "low"]
    inline = "void low_inline(void) {\n    low_notice(1);\n}\n"
    assert broken(lambda files: files.update(low=files["low"] + inline)) == ["high", "low"]
    field = "int low_field(api *a) {\n    return a->high_get + (*a).high_get;\n}\n"
    assert broken(lambda files: files.update(low=files["low"] + field)) == []

"""Disk errors in a running process: builds errors.c and changes its rules.

    library = build_errors(workspace)
    errors = Errors(library, data_directory, workspace / "errors")
    broker = Broker("pyxbroker", workspace / "broker", environment=errors.environment())
    errors.rule("entry_log", "read", error="EIO")             # from now on every read
    errors.rule("journal", "sync", error="EIO", hits_max=1)
    with errors.window(0.5): ...             # rules that are made in here end after 0.5 s
    errors.hits(), errors.places(), errors.clear()

The layout of the control file stands at the head of errors.c.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from harness.preloaded import build

CALLS = {
    "open": 1,
    "read": 2,
    "write": 4,
    "sync": 8,
    "rename": 16,
    "unlink": 32,
    "truncate": 64,
    "allocate": 128,
    "punch": 256,
    "mmap": 512,
    "mkdir": 1024,
}
_CALL_NAMES = {bit: name for name, bit in CALLS.items()}

# Kinds of files below the data directory, as patterns of errors.c.
KINDS = {
    "journal": "bookie/journal/*.journal",
    "journal_new": "bookie/journal/prepare.tmp",
    "entry_log": "bookie/ledgers/*.log",
    "entry_log_new": "bookie/ledgers/*.log.tmp",
    "metadata": "metadata/metadata.db",
    "metadata_wal": "metadata/metadata.db-wal",
    "metadata_other": "metadata/*|!metadata/metadata.db|!metadata/metadata.db-wal|!*/",
    "metadata_copies": "metadata.copies/*|!*/",
    "journal_manifest": "bookie/journal/journal.manifest*",
    "log_manifest": "bookie/ledgers/manifest*",
    "cookie": "bookie/current/VERSION*",
    "reserve": "*reserve",
    "lock": "pyxbroker.lock",
    "directory": "*/|/",
    "any": "*",
}

_HEADER = struct.Struct("<4sIQ48x")
_RULE = struct.Struct("<IIiIqQQQQQ192s")
_PLACE = struct.Struct("<II120s")
RULES_MAX, PLACES_MAX = 32, 256
_RULES_AT = _HEADER.size
_PLACES_AT = _RULES_AT + RULES_MAX * _RULE.size
_BYTES = _PLACES_AT + PLACES_MAX * _PLACE.size
_CALLS_AT, _GENERATION_AT = 4, 8
_HITS_IN_RULE = 56  # offset of a rule's counter of hits


def build_errors(directory: Path) -> Path:
    """Compile errors.c into ``directory``; returns the library's path."""
    return build(Path(__file__).resolve().with_name("errors.c"), directory)


@dataclass(frozen=True)
class Place:
    """How often calls of one kind on one file were hit."""

    call: str
    path: str
    hits: int


class Errors:
    """The rules for one directory; they may be changed at any time, from one thread."""

    def __init__(self, library: Path, root: Path, control: Path) -> None:
        self.library = library
        self.root = root.resolve()
        self.control = control
        control.write_bytes(_HEADER.pack(b"ERR1", 0, 0).ljust(_BYTES, b"\0"))
        with control.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), _BYTES)
        self._window_end_ns: int | None = None

    def environment(self, others: dict[str, str] | None = None) -> dict[str, str]:
        """What the process needs; ``others`` is the environment of another preloaded library."""
        mine = {
            "LD_PRELOAD": str(self.library),
            "ERRORS_ROOT": str(self.root),
            "ERRORS_CONTROL": str(self.control),
        }
        if others and others.get("LD_PRELOAD"):
            mine["LD_PRELOAD"] += f":{others['LD_PRELOAD']}"
        return (others or {}) | mine

    def rule(
        self,
        kind: str,
        *calls: str,
        error: int | str = 0,
        bytes_max: int = -1,
        delay_ms: int = 0,
        skip: int = 0,
        hits_max: int = 0,
        seconds: float | None = None,
    ) -> int:
        """Let calls fail from now on; returns the rule's number.

        ``kind`` is one of ``KINDS`` or a pattern of paths below the directory; ``error`` an errno
        or its name, 0 for a call that is only short (``bytes_max``) or slow (``delay_ms``).  The
        first ``skip`` calls pass, then ``hits_max`` (0: all) are hit, for ``seconds`` (None: until
        ``clear``).
        """
        pattern = KINDS.get(kind, kind).encode()
        if len(pattern) > 191:
            raise ValueError(f"the pattern is longer than 191 bytes: {kind}")
        number = getattr(errno, error) if isinstance(error, str) else error
        bits = sum(CALLS[call] for call in calls)
        until_ns = self._window_end_ns or 0
        if seconds is not None:
            until_ns = time.monotonic_ns() + int(seconds * 1e9)
        for at in range(RULES_MAX):
            offset = _RULES_AT + at * _RULE.size
            if struct.unpack_from("<I", self._map, offset)[0] == 0:
                break
        else:
            raise ValueError(f"there are {RULES_MAX} rules already")
        made = (0, bits, number, delay_ms, bytes_max, skip, hits_max, until_ns, 0, 0, pattern)
        _RULE.pack_into(self._map, offset, *made)
        struct.pack_into("<I", self._map, offset, self._next_generation())
        self._set_calls()
        return at

    def clear(self, rule: int | None = None) -> None:
        """End one rule, or all of them; counters of what was hit stay until the next ``rule``."""
        for at in range(RULES_MAX) if rule is None else [rule]:
            struct.pack_into("<I", self._map, _RULES_AT + at * _RULE.size, 0)
        self._next_generation()
        self._set_calls()

    def hits(self, rule: int | None = None) -> int:
        """How many calls one rule has hit, or all rules since they were made."""
        which = range(RULES_MAX) if rule is None else [rule]
        offsets = (_RULES_AT + at * _RULE.size + _HITS_IN_RULE for at in which)
        return sum(struct.unpack_from("<Q", self._map, offset)[0] for offset in offsets)

    def places(self) -> list[Place]:
        """Everything that was hit since ``forget``, by call and file."""
        found = []
        for at in range(PLACES_MAX):
            call, hits, path = _PLACE.unpack_from(self._map, _PLACES_AT + at * _PLACE.size)
            if call == 0:
                break
            text = path.rstrip(b"\0").decode(errors="replace")
            found.append(Place(_CALL_NAMES[call], text, hits))
        return found

    def forget(self) -> None:
        """End all rules and forget what was hit; no process may run under the library now."""
        self.clear()
        self._map[_RULES_AT:] = bytes(_BYTES - _RULES_AT)

    @contextlib.contextmanager
    def window(self, seconds: float) -> Iterator[None]:
        """Rules that are made in here end ``seconds`` after now, also when nobody clears them."""
        self._window_end_ns = time.monotonic_ns() + int(seconds * 1e9)
        try:
            yield
        finally:
            self._window_end_ns = None

    def close(self) -> None:
        """Give the control file up and remove it."""
        self._map.close()
        self.control.unlink(missing_ok=True)

    def _next_generation(self) -> int:
        [generation] = struct.unpack_from("<Q", self._map, _GENERATION_AT)
        struct.pack_into("<Q", self._map, _GENERATION_AT, generation + 1)
        return (generation + 1) & 0xFFFFFFFF

    def _set_calls(self) -> None:
        bits = 0
        for at in range(RULES_MAX):
            active, calls = struct.unpack_from("<II", self._map, _RULES_AT + at * _RULE.size)
            bits |= calls if active else 0
        struct.pack_into("<I", self._map, _CALLS_AT, bits)

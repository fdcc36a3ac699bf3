"""Type stub of the C storage (src/bookie_native/module.c, storage.h)."""

from os import PathLike
from typing import Any, TypeAlias, TypedDict, final

Buffer: TypeAlias = bytes | bytearray | memoryview

NO_LEDGER: int
NO_ENTRY: int
DAMAGED: int
FULL: int
FENCED: int
FAILED: int
ADD_RECOVERY: int
crc32c_variant: str
_c_api: Any

def crc32c(data: Buffer, crc: int = 0, /) -> int: ...
def crc32c_combine(crc_a: int, crc_b: int, length_b: int, /) -> int: ...
def check_records(data: Buffer, log_id: int, /) -> tuple[int, list[tuple[int, int, int, int]]]:
    """Check the records of an entry log; `data` are its bytes from the first record on. Return the
    number of intact records, and (offset in data, bytes, ledger id, entry id) of each damaged one.
    The ids are -1 for bytes that are not a record. Zeros are those of deleted ledgers.
    """

class Stats(TypedDict):
    adds: int
    add_bytes: int
    groups: int
    syncs: int
    sync_ns_total: int
    sync_ns_max: int
    journal_bytes: int
    queue_adds: int
    flushes: int
    flush_bytes: int
    cache_bytes: int
    dirty_bytes: int
    entry_logs: int
    entry_log_bytes: int
    ledgers: int
    entries: int
    cache_hits: int
    disk_reads: int
    damaged_entries: int
    replayed_entries: int
    trouble: int

@final
class DiskFaults:
    """Disk calls that fail on demand, for tests; pass it to Storage(faults=...)."""

    def rule(
        self,
        call: str,
        match: str = "",
        *,
        after: int = 0,
        errno: int = 0,
        short_bytes: int = -1,
        times: int = ...,
    ) -> None:
        """Let `after` calls on files whose name contains `match` succeed, then fail `times` of them
        with `errno`, or limit them to `short_bytes` bytes.
        """
    def clear(self) -> None: ...
    def count(self, call: str, /) -> int: ...

@final
class Storage:
    """A bookie's journal, write cache and entry logs (storage.h), for one thread.

    Sizes are in bytes. Storage errors are OSError with their errno.
    """

    durable_sequence: int
    failure: int
    event_fd: int
    _handle: Any

    def __init__(
        self,
        journal_directory: str | bytes | PathLike[str],
        ledger_directory: str | bytes | PathLike[str],
        *,
        journal_file_bytes: int,
        dirty_bytes_max: int,
        cache_bytes_max: int,
        entry_bytes_max: int,
        journal_sync_data: bool = True,
        accept_loss: bool = False,
        faults: DiskFaults | None = None,
    ) -> None: ...
    def add(self, header: Buffer, data: Buffer, crc: int | None = None, flags: int = 0) -> int: ...
    def commit(self) -> None: ...
    def fence(self, ledger_id: int, /) -> int: ...
    def master_key(self, ledger_id: int, key: bytes, /) -> int: ...
    def next_event(self) -> tuple[int, str] | None: ...
    def read(
        self, ledger_id: int, first: int, last: int, max: int, bytes_max: int, /
    ) -> list[tuple[int, bytes]]: ...
    def read_submit(
        self, ledger_id: int, first: int, last: int, max: int, bytes_max: int, tag: object, /
    ) -> None: ...
    def read_completions(self) -> list[tuple[Any, list[tuple[int, bytes]] | int]]: ...
    def last_entry(self, ledger_id: int, /) -> int: ...
    def is_fenced(self, ledger_id: int, /) -> bool: ...
    def ledgers(self, position: int, max: int, /) -> tuple[list[int], int]: ...
    def delete_ledger(self, ledger_id: int, /) -> None: ...
    def flush(self) -> None: ...
    def begin_copy(self) -> tuple[int, bool]:
        """Start an entry log with all unflushed entries. Return the end of the ids of the logs with
        the entries added so far, and True if a flush was started. Raises BlockingIOError while
        another flush is under way.
        """
    def save_space(self, on: bool, /) -> None:
        """While on, spare journal files are removed, and a flush frees those that need one."""
    def trouble(self) -> int:
        """Return 0, or the negative errno because of which storage refuses writes at present: that
        of the last flush, or of preparing the next journal file. Each change signals the event_fd.
        """
    def stats(self) -> Stats: ...
    def latencies(self) -> dict[str, tuple[int, bytes]]:
        """Return the total nanoseconds and the 64-bit bucket counts (latency.h) of add, sync, read
        and failed_read.
        """
    def close(self, flush: bool = True) -> None: ...

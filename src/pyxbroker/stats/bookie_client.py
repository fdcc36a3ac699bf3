"""The series of /metrics about the bookies that a broker of a cluster uses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple, Protocol

from pyxbroker.stats.definitions import COUNTER, GAUGE, SUMMARY
from pyxbroker.stats.exposition import braced, escaped, family, head

_NS_PER_MS = 1_000_000


class Channel(Protocol):
    """The connection to one bookie, with counts since the start."""

    @property
    def adds_done(self) -> int: ...
    @property
    def adds_failed(self) -> int: ...
    @property
    def adds_ns(self) -> int: ...
    @property
    def reads_done(self) -> int: ...
    @property
    def reads_failed(self) -> int: ...
    @property
    def reads_ns(self) -> int: ...
    @property
    def pending_bytes(self) -> int: ...


class BookieClientStats(NamedTuple):
    """Statistics of the bookies and of the requests to them."""

    channels: Mapping[str, Channel]  # by bookie id, as the next one
    damaged: Mapping[str, int]
    states: Mapping[str, int]  # number of bookies
    ensemble_changes: int
    speculative_reads: int


def text_of(stats: BookieClientStats, cluster: str) -> str:
    """Return all series. `cluster` is the label that all of them have."""
    return "".join(_texts(stats, cluster))


def _texts(stats: BookieClientStats, cluster: str) -> Iterator[str]:
    labels = {each: f'{cluster},bookie="{escaped(each)}"' for each in sorted(stats.channels)}
    channels = [(label, stats.channels[each]) for each, label in labels.items()]
    yield _latencies(
        "pulsar_managedLedger_client_per_channel_bookie_client_ADD_ENTRY",
        "Milliseconds until a bookie acknowledged an entry.",
        [(label, each.adds_done, each.adds_failed, each.adds_ns) for label, each in channels],
    )
    yield _latencies(
        "pulsar_managedLedger_client_per_channel_bookie_client_READ_ENTRY",
        "Milliseconds until a bookie answered a read of one or more entries.",
        [(label, each.reads_done, each.reads_failed, each.reads_ns) for label, each in channels],
    )
    yield family(
        "pyxbroker_bookie_client_pending_bytes",
        "Bytes of entries that a bookie has not acknowledged yet.",
        GAUGE,
        [(braced(label), each.pending_bytes) for label, each in channels],
    )
    yield family(
        "pyxbroker_bookie_client_damaged_entries_total",
        "Entries of a bookie that failed their digest and were read from another one.",
        COUNTER,
        [(braced(label), stats.damaged.get(each, 0)) for each, label in labels.items()],
    )
    yield family(
        "pyxbroker_bookies",
        "Number of bookies: writable, of these in quarantine, and read-only.",
        GAUGE,
        [(braced(f'{cluster},state="{state}"'), count) for state, count in stats.states.items()],
    )
    for series, about, count in (
        (
            "pulsar_managedLedger_client_bookkeeper_client_NUM_ENSEMBLE_CHANGE",
            "Changes of ensembles.",
            stats.ensemble_changes,
        ),
        (
            "pulsar_managedLedger_client_bookkeeper_client_SPECULATIVE_READ_COUNT",
            "Reads that asked another bookie before the first one answered.",
            stats.speculative_reads,
        ),
        (
            "pulsar_managedLedger_client_bookkeeper_client_READ_ENTRY_DM",
            "Entries that failed their digest.",
            sum(stats.damaged.values()),
        ),
    ):
        yield family(series, about, COUNTER, [(braced(cluster), count)])


def _latencies(series: str, about: str, rows: list[tuple[str, int, int, int]]) -> str:
    """Return a summary without quantiles, of rows with label, successes, failures and time."""
    text = head(series, about, SUMMARY)
    for label, done, failed, ns in rows:
        success = braced(f'{label},success="true"')
        failure = braced(f'{label},success="false"')
        text += f"{series}_count{success}{done}\n{series}_count{failure}{failed}\n"
        text += f"{series}_sum{success}{ns / _NS_PER_MS}\n"
    return text

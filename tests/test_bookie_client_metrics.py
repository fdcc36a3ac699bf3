"""The series of /metrics about bookies in other processes."""

from __future__ import annotations

from types import SimpleNamespace

from pyxbroker.stats.bookie_client import BookieClientStats, text_of

CHANNEL = "pulsar_managedLedger_client_per_channel_bookie_client"
CLIENT = "pulsar_managedLedger_client_bookkeeper_client"


def test_each_bookie_has_its_latencies_failures_and_bytes() -> None:
    counts = {"adds_done": 4, "adds_failed": 1, "adds_ns": 6_000_000}
    counts |= {"reads_done": 2, "reads_failed": 0, "reads_ns": 500_000, "pending_bytes": 77}
    states = {"writable": 3, "quarantined": 1, "read_only": 2}
    stats = BookieClientStats({"b1:3181": SimpleNamespace(**counts)}, {"b1:3181": 5}, states, 6, 7)
    lines = text_of(stats, 'cluster="east"').splitlines()
    bookie = '{cluster="east",bookie="b1:3181"'
    for line in (
        f'{CHANNEL}_ADD_ENTRY_count{bookie},success="true"}} 4',
        f'{CHANNEL}_ADD_ENTRY_count{bookie},success="false"}} 1',
        f'{CHANNEL}_ADD_ENTRY_sum{bookie},success="true"}} 6.0',
        f'{CHANNEL}_READ_ENTRY_sum{bookie},success="true"}} 0.5',
        f"pyxbroker_bookie_client_pending_bytes{bookie}}} 77",
        f"pyxbroker_bookie_client_damaged_entries_total{bookie}}} 5",
        'pyxbroker_bookies{cluster="east",state="quarantined"} 1',
        f'{CLIENT}_NUM_ENSEMBLE_CHANGE{{cluster="east"}} 6',
        f'{CLIENT}_SPECULATIVE_READ_COUNT{{cluster="east"}} 7',
        f'{CLIENT}_READ_ENTRY_DM{{cluster="east"}} 5',
    ):
        assert line in lines, line

"""Settings for how much dispatchers read and send in one round."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, setting


class Dispatch(Section, title="Dispatch"):
    dispatcherMaxReadBatchSize: int = setting(
        100,
        "Entries that a dispatcher reads in one round.",
        minimum=1,
        dynamic=True,
    )
    dispatcherMaxReadSizeBytes: int = setting(
        5 * 1024 * 1024,
        "Bytes that a dispatcher reads in one round.",
        unit="bytes",
        minimum=1,
        dynamic=True,
    )
    dispatcherMinReadBatchSize: int = setting(
        1,
        "Entries that a dispatcher reads in one round after a failed read. The number doubles with"
        " each successful read that follows.",
        minimum=1,
        dynamic=True,
    )
    dispatcherMaxRoundRobinBatchSize: int = setting(
        20,
        "Entries that one consumer of a shared subscription receives before the next consumer.",
        minimum=1,
        dynamic=True,
    )
    dispatcherReadFailureBackoffInitialTimeInMs: int = setting(
        50,
        "First wait of a dispatcher after a failed read. The wait doubles with each further"
        " failure. Pulsar's own default is 15000.",
        unit="ms",
        minimum=1,
        dynamic=True,
    )
    dispatcherReadFailureBackoffMaxTimeInMs: int = setting(
        1_000,
        "Longest wait of a dispatcher after failed reads. Pulsar's own default is 60000.",
        unit="ms",
        minimum=1,
        dynamic=True,
    )

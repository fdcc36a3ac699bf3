"""Settings of the choice of bookies for ledgers on a BookKeeper cluster."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting


class Placement(Section, title="Placement of ledgers"):
    bookkeeperClientRackawarePolicyEnabled: bool = setting(
        True,
        "Spread the bookies of each ledger over racks, which `pulsar-admin bookies` sets. This and"
        " the other settings of this section have no effect in a broker with one embedded bookie.",
    )
    bookkeeperClientRegionawarePolicyEnabled: bool = setting(
        False,
        "Spread the bookies of each ledger evenly over regions first. A rack is then of the form"
        " /region/rack.",
    )
    bookkeeperClientMinNumRacksPerWriteQuorum: int = setting(
        2, "Racks that the copies of an entry are in, where there are as many.", minimum=1
    )
    bookkeeperClientEnforceMinNumRacksPerWriteQuorum: bool = setting(
        False,
        "If true, refuse ledgers with fewer racks than bookkeeperClientMinNumRacksPerWriteQuorum,"
        " and leave out bookies whose rack is unknown. If false, take as many racks as there are.",
    )
    bookkeeperClientIsolationGroups: str = setting(
        "",
        "Groups of bookies for ledgers of namespaces without a bookie affinity group, separated by"
        " commas; empty is all bookies.",
    )
    bookkeeperClientSecondaryIsolationGroups: str = setting(
        "",
        "Groups that are added while those of bookkeeperClientIsolationGroups have too few writable"
        " bookies. If these are too few as well, bookies that are in no group are added.",
    )
    strictBookieAffinityEnabled: bool = setting(
        False,
        "If true, topics of namespaces without a bookie affinity group only use bookies that are in"
        " no group.",
    )
    bookkeeperClientHealthCheckEnabled: bool = setting(
        True, "Place no new ledgers for a while on bookies that keep failing."
    )
    bookkeeperClientHealthCheckIntervalSeconds: int = setting(
        60, "Interval in which the errors of a bookie are counted.", unit="s", minimum=1
    )
    bookkeeperClientHealthCheckErrorThresholdPerInterval: int = setting(
        5, "Errors in an interval after which a bookie is quarantined.", minimum=1
    )
    bookkeeperClientHealthCheckQuarantineTimeInSeconds: int = setting(
        1800, "Time that a bookie stays in quarantine.", unit="s", minimum=1
    )
    bookkeeperClientQuarantineRatio: float = limit(
        1.0, "Probability that a bookie with so many errors is quarantined.", maximum=1
    )

"""Settings of a cluster of several brokers."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting

MODULAR = "org.apache.pulsar.broker.loadbalance.impl.ModularLoadManagerImpl"


class SeveralBrokers(Section, title="Several brokers"):
    loadManagerClassName: str = setting(
        MODULAR,
        "How the brokers of a cluster share its bundles. A broker starts only with"
        " ModularLoadManagerImpl. This and the other settings of this section have no effect in"
        " standalone.",
    )
    namespaceBundleUnloadingTimeoutMs: int = limit(
        60_000,
        "Time after which a bundle is given up although topics of it are still being closed.",
        unit="ms",
        minimum=1,
        dynamic=True,
    )

"""The settings of a process: one documented schema, and the sources of the values.

Keys and meanings are those of Apache Pulsar (`broker.conf`, `standalone.conf`) and Apache
BookKeeper (`bookkeeper.conf`). Each key is an attribute of `Config`. Later sources override earlier
ones: the default, the configuration file, the environment (`PULSAR_PREFIX_<key>`), the command
line. The schema is in `sections/`. The sample configuration file and the reference page are
generated from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pyxbroker.base.errors import InvalidTopicName
from pyxbroker.base.limits import CLUSTER_BYTES_MAX, too_long
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.topic_name import TenantName
from pyxbroker.settings import sources
from pyxbroker.settings.names import ALIASES
from pyxbroker.settings.schema import Setting, Value
from pyxbroker.settings.sections.bookkeeper import BookKeeper, Placement
from pyxbroker.settings.sections.cluster import FAILURE_TIMEOUT_MS_MIN, SeveralBrokers
from pyxbroker.settings.sections.dispatch import Dispatch
from pyxbroker.settings.sections.general import PORT_MAX as PORT_MAX
from pyxbroker.settings.sections.general import General
from pyxbroker.settings.sections.limits import Limits
from pyxbroker.settings.sections.load_balancing import LoadBalancing
from pyxbroker.settings.sections.managed_ledger import ManagedLedger
from pyxbroker.settings.sections.metadata import Metadata
from pyxbroker.settings.sections.metrics import Metrics
from pyxbroker.settings.sections.openid import OpenId
from pyxbroker.settings.sections.rates import Rates
from pyxbroker.settings.sections.security import Security
from pyxbroker.settings.sections.storage import Storage
from pyxbroker.settings.sections.tls import Tls
from pyxbroker.settings.sections.topics import Topics, Transactions

DEFAULT_METADATA_URL = "embedded:metadata"
CLUSTER_DEFAULTS: dict[str, Value] = dict.fromkeys(
    (
        "managedLedgerDefaultEnsembleSize",
        "managedLedgerDefaultWriteQuorum",
        "managedLedgerDefaultAckQuorum",
    ),
    2,
)
"""Defaults that differ in a broker of a cluster, where they are Pulsar's."""

MISTYPED_LETTERS_MAX = 2  # difference in length between a mistyped key and the key that was meant
MISTYPED_LIKENESS_MIN = 0.85
MISTYPED_SHOWN_MAX = 15  # each suggestion costs milliseconds, and a log line should stay readable

# Space that a journal file needs in addition to the largest payload: the rest of the frame, the
# entry's envelope, the headers of record, group and file, and the padding to blocks (storage.c,
# journal.h).
FRAME_PADDING_BYTES = 10240
ENTRY_METADATA_BYTES_MAX = 28  # broker entry metadata in front of an entry
ENTRY_HEADER_BYTES_MAX = 52
RECORD_HEADER_BYTES = 32
GROUP_HEADER_BYTES = 64
BLOCK_BYTES = 4096


AUTHENTICATION_CLASS = "bookkeeper_clientAuthProviderFactoryClass"
"""The key that Pulsar passes on to BookKeeper's client with the same effect."""


class Config(
    General,
    Security,
    OpenId,
    Tls,
    Metadata,
    Limits,
    Rates,
    Topics,
    Transactions,
    Dispatch,
    ManagedLedger,
    BookKeeper,
    Placement,
    SeveralBrokers,
    LoadBalancing,
    Storage,
    Metrics,
):
    """All settings of one process, as attributes with Pulsar's names.

    The sections are in the order of the reference page. `Config(brokerServicePort=0)` sets some
    values and leaves the others at their defaults; `Config.load` reads the usual sources. `ignored`
    lists the keys that were given and have no effect.
    """

    def __init__(self, **values: Value) -> None:
        self.ignored = sources.Ignored()
        for key, row in SCHEMA.items():
            setattr(self, key, row.default)
        for key, value in values.items():
            if key not in SCHEMA:
                raise ConfigError(f"There is no setting named {key!r}.")
            setattr(self, key, value)

    @classmethod
    def load(
        cls,
        path: Path | None = None,
        environment: Mapping[str, str] | None = None,
        overrides: Mapping[str, str] | None = None,
        *,
        is_cluster: bool = False,
    ) -> Config:
        """Read the file, then the environment's `PULSAR_PREFIX_*`, then the command line's values.

        `is_cluster`: the settings of a broker of a cluster instead of standalone. Raise ConfigError
        if the file cannot be read or a value is invalid.
        """
        reader = sources.Reader(SCHEMA, is_cluster)
        if path is not None:
            reader.read(sources.of_file(path))
        reader.read(sources.of_environment(environment or {}))
        reader.read(sources.of_command_line(overrides or {}), is_command_line=True)
        config = cls(**((CLUSTER_DEFAULTS if is_cluster else {}) | reader.values))
        config.ignored = reader.ignored
        if is_cluster:
            config._check_bookie_authentication()
        else:
            config._check_journal_size()
        config._check_quorums()
        config._check_failure_timeout()
        config._check_system_topics()
        config._check_cluster_name()
        config._check_advertised_address()
        config._check_tls_switch(reader.tls_switch)
        config._drop_stores_in_use()
        if any(map(_is_like_a_key, environment or {})):
            from pyxbroker.settings import bare_variables

            config.ignored.bare = bare_variables.find(environment or {}, config)
        return config

    def _check_journal_size(self) -> None:
        least = journal_size_min(self.maxMessageSize)
        if self.journalMaxSizeMB < least:
            raise ConfigError(
                f"journalMaxSizeMB={self.journalMaxSizeMB} is too small: a journal file has to hold"
                f" the largest entry (maxMessageSize={self.maxMessageSize}); set at least {least}."
            )

    def _check_quorums(self) -> None:
        quorums = {
            f"managedLedgerDefault{name}": getattr(self, f"managedLedgerDefault{name}")
            for name in ("EnsembleSize", "WriteQuorum", "AckQuorum")
        }
        if sorted(quorums.values(), reverse=True) != [*quorums.values()]:
            values = ", ".join(f"{key}={value}" for key, value in quorums.items())
            raise ConfigError(
                f"{values} do not fit: each must be at least as large as the next one."
            )

    def _check_failure_timeout(self) -> None:
        if 0 < self.brokerFailureTimeoutMs < FAILURE_TIMEOUT_MS_MIN:
            raise ConfigError(
                f"brokerFailureTimeoutMs={self.brokerFailureTimeoutMs} is too small: brokers need"
                f" more time for their answers. Set at least {FAILURE_TIMEOUT_MS_MIN}, or 0 (off)."
            )

    def _check_system_topics(self) -> None:
        if self.transactionCoordinatorEnabled and not self.systemTopicEnabled:
            raise ConfigError(
                "transactionCoordinatorEnabled=true needs systemTopicEnabled=true: what a topic"
                " needs to recover its transactions is in a system topic."
            )

    def _check_bookie_authentication(self) -> None:
        for key in ("bookkeeperClientAuthenticationPlugin", AUTHENTICATION_CLASS):
            if key in self.ignored.wanted:
                raise ConfigError(
                    f"{key} is set, but this broker has no such plugin and would connect to bookies"
                    " without authentication. Leave it empty; for authentication with a"
                    " certificate set bookkeeperTLSClientAuthentication=true."
                )

    def _check_cluster_name(self) -> None:
        trouble = too_long("name", self.clusterName, CLUSTER_BYTES_MAX)
        if trouble is not None:
            raise ConfigError(f"clusterName cannot be used. {trouble}")
        try:
            TenantName(self.clusterName)
        except InvalidTopicName:
            # A tenant's list of allowed clusters could not contain the name either.
            raise ConfigError(
                f"clusterName cannot be {self.clusterName!r}: it takes letters, digits and -=:._"
            ) from None

    def _check_advertised_address(self) -> None:
        """Refuse characters that would end the host part of the URLs that clients receive."""
        address = self.advertisedAddress
        if not address.isprintable() or any(each in " /@,?#%\\" for each in address):
            raise ConfigError(
                f"advertisedAddress cannot be {address!r}: it is one host name or address, without"
                " a scheme or a port."
            )

    def _check_tls_switch(self, place: str) -> None:
        ports = self.brokerServicePortTls, self.webServicePortTls
        if place and ports == (None, None) and "+ssl:" not in self.bindAddresses:
            raise ConfigError(
                f"{place}: {sources.TLS_SWITCH} is true, and no port speaks TLS. Set"
                " brokerServicePortTls and webServicePortTls."
            )

    def _drop_stores_in_use(self) -> None:
        """Forget ignored URLs that name the store in use: ignoring them changes nothing."""
        stores = self.ignored.stores
        used = self.metadataStoreUrl.removeprefix("zk:")
        for key in [key for key, url in stores.items() if url.removeprefix("zk:") == used]:
            del stores[key]

    def explain_unknown(self) -> str:
        """Return the unknown keys as a list, each with the key that was probably meant."""
        from pyxbroker.base.suggestions import did_you_mean
        from pyxbroker.settings import java_keys

        names = {*SCHEMA, *ALIASES, *sources.SILENT, *java_keys.DEFAULTS}
        explained = []
        for key in list(self.ignored.unknown)[:MISTYPED_SHOWN_MAX]:
            # Keys are long and similar, so one that differs by a whole word is a different key.
            likely = [each for each in names if abs(len(each) - len(key)) <= MISTYPED_LETTERS_MAX]
            meant = did_you_mean(key, sorted(likely), MISTYPED_LIKENESS_MIN, shown_max=1)
            explained.append(f"{key} ({meant})" if meant else key)
        return ",".join(explained)

    def changed(self) -> dict[str, Value]:
        """Return the settings that differ from their default, except secrets."""
        values = {key: getattr(self, key) for key in SCHEMA if key not in SECRET}
        return {key: value for key, value in values.items() if value != SCHEMA[key].default}


def journal_size_min(payload_bytes_max: int) -> int:
    """Return the smallest journal file size (MiB) that can store payloads of this size."""
    entry = (
        payload_bytes_max + FRAME_PADDING_BYTES + ENTRY_METADATA_BYTES_MAX + ENTRY_HEADER_BYTES_MAX
    )
    record = _round_up(RECORD_HEADER_BYTES + entry, 8)
    group = _round_up(GROUP_HEADER_BYTES + record, BLOCK_BYTES)
    return _round_up(BLOCK_BYTES + group, 1 << 20) >> 20


def _is_like_a_key(name: str) -> bool:
    """Return True for mixed case, which settings have and few environment variables do."""
    return name[:1].islower() and not name.islower()


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


SCHEMA: dict[str, Setting] = Config.rows
SECTIONS: dict[str, dict[str, Setting]] = {
    part.title: part.rows
    for part in (
        *(General, Security, OpenId, Tls, Metadata, Limits, Rates, Topics, Transactions),
        *(
            Dispatch,
            ManagedLedger,
            BookKeeper,
            Placement,
            SeveralBrokers,
            LoadBalancing,
            Storage,
            Metrics,
        ),
    )
}

# Never shown, not even as a changed setting: passwords, and values that may hold a key itself.
SECRET = frozenset(
    """
    basicAuthConf brokerClientAuthenticationParameters managedLedgerPassword tlsKeyStorePassword
    tlsTrustStorePassword tokenSecretKey
    """.split()
)

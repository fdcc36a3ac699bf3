"""Settings: where values come from, which are refused, and what the schema writes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from pyxbroker import _native
from pyxbroker.base.properties import ConfigError
from pyxbroker.cli.config import markdown, sample
from pyxbroker.entry import ENTRY_HEADER_SIZE_MAX
from pyxbroker.frames import FRAME_PADDING
from pyxbroker.policies.table import of_broker
from pyxbroker.settings import java_keys
from pyxbroker.settings.config import (
    ENTRY_METADATA_BYTES_MAX,
    SCHEMA,
    SECTIONS,
    Config,
    journal_size_min,
)
from pyxbroker.settings.names import (
    ALIASES,
    CONFIGURATION_STORES,
    OLDER,
    WITHOUT_EFFECT,
)
from pyxbroker.settings.sources import SILENT

SOURCE = Path(__file__).parent.parent / "src" / "pyxbroker"


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "broker.conf"
    path.write_text(text)
    return path


def test_defaults_are_standalone_pulsars() -> None:
    config = Config()
    assert config.clusterName == "standalone"
    assert (config.brokerServicePort, config.webServicePort) == (6650, 8080)
    assert config.maxMessageSize == 5 * 1024 * 1024
    assert config.journalSyncData is True
    assert config.changed() == {}


def test_file_then_environment_then_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, "maxProducersPerTopic=1\nmaxConsumersPerTopic=1\nclusterName=one\n")
    environment = {
        "PULSAR_PREFIX_maxConsumersPerTopic": "2",
        "PULSAR_PREFIX_clusterName": "two",
        "maxProducersPerTopic": "9",
    }
    config = Config.load(path, environment, {"clusterName": "three"})
    assert config.maxProducersPerTopic == 1
    assert config.maxConsumersPerTopic == 2
    assert config.clusterName == "three"


def test_java_properties_syntax(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "# a comment\n! another\n\n  brokerServicePort = 7000 \n"
        "superUserRoles=a,\\\n   b\nclusterName: c1\nclusterName=c2\n",
    )
    config = Config.load(path)
    assert config.brokerServicePort == 7000
    assert config.superUserRoles == "a,b"
    assert config.clusterName == "c2"


def test_empty_is_the_default_except_where_it_is_a_value(tmp_path: Path) -> None:
    path = write(
        tmp_path, "advertisedAddress=\ndbStorage_readAheadCacheMaxSizeMb=\nwebServicePort=\n"
    )
    config = Config.load(path)
    assert config.advertisedAddress == "localhost"
    assert (
        config.dbStorage_readAheadCacheMaxSizeMb
        == SCHEMA["dbStorage_readAheadCacheMaxSizeMb"].default
    )
    assert config.webServicePort is None


@pytest.mark.parametrize("key", ["zookeeperServers", "zkServers"])
def test_zookeeper_keys_become_a_metadata_url(key: str) -> None:
    assert Config.load(overrides={key: "h:2181"}).metadataStoreUrl == "zk:h:2181"


@pytest.mark.parametrize("first", [True, False])
def test_the_current_key_wins_over_its_older_name(first: bool) -> None:
    pairs = [("metadataStoreUrl", "memory:x"), ("zookeeperServers", "h:2181")]
    overrides = dict(pairs if first else reversed(pairs))
    assert Config.load(overrides=overrides).metadataStoreUrl == "memory:x"


def test_an_empty_older_name_changes_nothing(tmp_path: Path) -> None:
    config = Config.load(write(tmp_path, "zookeeperServers=\nzooKeeperSessionTimeoutMillis=\n"))
    assert config.changed() == {}
    assert not (config.ignored.stores or config.ignored.older)


STORE_KEYS = (
    *("zookeeperServers", "zkServers", "metadataServiceUri", "metadataStoreUrl"),
    *sorted(CONFIGURATION_STORES),
)


@pytest.mark.parametrize("key", STORE_KEYS)
def test_a_store_that_a_file_names_is_passed_over(tmp_path: Path, key: str) -> None:
    path = write(tmp_path, f"{key}=h:2181\n")
    config = Config.load(path)
    assert (config.metadataStoreUrl, config.ignored.stores) == ("", {key: "h:2181"})
    config = Config.load(None, {f"PULSAR_PREFIX_{key}": "h:2181"})
    assert (config.metadataStoreUrl, config.ignored.stores) == ("", {key: "h:2181"})
    # The one of the command line counts, and a file that names the same one loses nothing.
    config = Config.load(path, overrides={"metadataStoreUrl": "zk:h:2181"})
    assert (config.metadataStoreUrl, config.ignored.stores) == ("zk:h:2181", {})
    config = Config.load(path, overrides={"metadataStoreUrl": "zk:other:2181"})
    assert (config.metadataStoreUrl, config.ignored.stores) == ("zk:other:2181", {key: "h:2181"})


def test_an_embedded_store_that_a_file_names_is_used(tmp_path: Path) -> None:
    config = Config.load(write(tmp_path, "metadataStoreUrl=embedded:other\n"))
    assert (config.metadataStoreUrl, config.ignored.stores) == ("embedded:other", {})


# A value of each deprecated name of Pulsar's, and what it changes here.
OLDER_VALUES: dict[str, tuple[str, Mapping[str, object]]] = {
    "backlogQuotaDefaultLimitGB": ("10", {"backlogQuotaDefaultLimitGB": 10.0}),
    "brokerServicePurgeInactiveFrequencyInSeconds": (
        *("7", {"brokerDeleteInactiveTopicsFrequencySeconds": 7}),
    ),
    "loadBalancerBandwithInResourceWeight": ("0.5", {}),
    "loadBalancerBandwithOutResourceWeight": ("0.5", {}),
    "managedLedgerCacheEvictionFrequency": ("100.0", {}),
    "managedLedgerMaxUnackedRangesToPersistInZooKeeper": (
        *("7", {"managedLedgerMaxUnackedRangesToPersistInMetadataStore": 7}),
    ),
    "numWorkerThreadsForNonPersistentTopic": ("8", {}),
    "replicationTlsEnabled": ("true", {}),
    "subscriptionKeySharedEnable": ("false", {"subscriptionKeySharedEnable": False}),
    "tlsEnabled": ("true", {"brokerServicePortTls": 6651}),
    "zooKeeperAllowReadOnlyOperations": ("true", {}),
    "zooKeeperCacheExpirySeconds": ("7", {}),
    "zooKeeperOperationTimeoutSeconds": ("7", {"metadataStoreOperationTimeoutSeconds": 7}),
    "zooKeeperSessionTimeoutMillis": ("7", {"metadataStoreSessionTimeoutMillis": 7}),
}


@pytest.mark.parametrize("key", OLDER)
def test_a_deprecated_name_is_taken_and_its_newer_name_is_told(tmp_path: Path, key: str) -> None:
    text, changed = OLDER_VALUES[key]
    newer, default = OLDER[key]
    more = "brokerServicePortTls=6651\n" if key == "tlsEnabled" else ""
    config = Config.load(write(tmp_path, f"{more}{key}={text}\n"))
    assert config.changed() == changed
    assert config.ignored.older == {key: newer}
    assert not config.ignored.unknown
    for unchanged in ("", default):
        assert not Config.load(None, {f"PULSAR_PREFIX_{key}": unchanged}).ignored.older


def test_what_a_key_shared_subscription_needs_may_be_off_by_its_older_name() -> None:
    types = of_broker(Config.load(overrides={"subscriptionKeySharedEnable": "false"}))
    assert types.subscription_types == {"Exclusive", "Shared", "Failover"}


def test_a_bare_variable_with_the_name_of_a_setting_is_told() -> None:
    config = Config.load(
        environment={
            **{"maxProducersPerTopic": "9", "loadBalancerEnabled": "false", "http_proxy": "x"},
            **{"zookeeperServers": "h:1", "noSuchKey": "1", "PATH": "/", "numIOThreads": "4"},
            **{"maxTenants": "1", "PULSAR_PREFIX_maxTenants": "1"},
        }
    )
    assert config.changed() == {"maxTenants": 1}
    assert config.ignored.bare == [
        *("loadBalancerEnabled", "maxProducersPerTopic", "numIOThreads", "zookeeperServers"),
    ]


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("authenticationEnabled", "true"),
        ("authenticationEnabled", "yes"),
        ("authenticationProviders", "x"),
        ("authorizationEnabled", "true"),
        ("superUserRoles", "admin"),
        ("proxyRoles", "proxy"),
        ("tokenSecretKey", "file:///key"),
        ("openIDAllowedTokenIssuers", "https://x"),
        ("tlsRequireTrustedClientCertOnConnect", "true"),
        ("brokerServicePortTls", "6651"),
        ("tlsEnabled", "true"),
    ],
)
def test_a_bare_security_variable_refuses_the_start(key: str, text: str) -> None:
    with pytest.raises(ConfigError, match=f"without them: {key}. .* PULSAR_PREFIX_{key},"):
        Config.load(environment={key: text})
    assert Config.load(environment={key: ""}).ignored.bare == [key]


def test_a_bare_security_variable_that_asks_for_what_is_in_force_is_told() -> None:
    environment = {"authenticationEnabled": "true", "superUserRoles": "a"}
    given = {"authenticationEnabled": "true", "superUserRoles": "a"}
    assert Config.load(environment=environment, overrides=given).ignored.bare == sorted(given)
    assert Config.load(environment={"authenticationEnabled": "false"}).ignored.bare


def test_each_setting_has_a_name_that_is_looked_for_in_the_environment() -> None:
    names = (*SCHEMA, *ALIASES, *OLDER, *SILENT, *java_keys.DEFAULTS, *java_keys.OF_BOOKIES)
    assert [name for name in names if name.islower() or not name[0].islower()] == []


def test_unknown_keys_are_listed_once_and_java_keys_are_silent(tmp_path: Path) -> None:
    path = write(
        tmp_path, "functionsWorkerEnabled=true\nnumIOThreads=4\nfunctionsWorkerEnabled=1\n"
    )
    config = Config.load(path, {"PULSAR_PREFIX_functionsWorkerEnabled": "x"})
    assert list(config.ignored.wanted) == ["functionsWorkerEnabled"]
    assert not config.ignored.at_default
    assert not config.ignored.unknown


def test_keys_that_do_nothing_are_told_by_what_somebody_wants(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        "functionsWorkerEnabled=false\nexposeTopicLevelMetric=true\nbrokerClient_x=1\n"
        "loadBalancerDebugModeEnabled=false\nloadBalancerTransferEnabled=false\n",
    )
    ignored = Config.load(path).ignored
    assert list(ignored.at_default) == ["functionsWorkerEnabled", "loadBalancerDebugModeEnabled"]
    assert list(ignored.wanted) == ["brokerClient_x", "loadBalancerTransferEnabled"]
    assert list(ignored.unknown) == ["exposeTopicLevelMetric"]
    # Whoever takes it back wants nothing more.
    again = Config.load(path, overrides={"loadBalancerTransferEnabled": "true"}).ignored
    assert list(again.wanted) == ["brokerClient_x"]


def test_a_key_that_a_file_has_twice_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, "clusterName=a\nmaxMessageSize=2000\nclusterName=b\n")
    config = Config.load(path)
    assert config.clusterName == "b"
    assert list(config.ignored.repeated) == ["clusterName"]
    assert "line 3" in config.ignored.repeated["clusterName"]
    same = Config.load(write(tmp_path, "clusterName=a\nclusterName=a\n"))
    assert not same.ignored.repeated


def test_the_tls_switch_of_old_files_needs_a_port_for_tls(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1: tlsEnabled is true, and no port speaks TLS"):
        Config.load(write(tmp_path, "tlsEnabled= True\n"))
    with pytest.raises(ConfigError, match="tlsEnabled"):
        Config.load(environment={"PULSAR_PREFIX_tlsEnabled": "true"})
    listener = "bindAddresses=x:pulsar+ssl://0.0.0.0:6651"
    for port in ("brokerServicePortTls=6651", "webServicePortTls=8443", listener):
        config = Config.load(write(tmp_path, f"tlsEnabled=true\n{port}\n"))
        assert list(config.ignored.older) == ["tlsEnabled"]
    ignored = Config.load(write(tmp_path, "tlsEnabled=false\n")).ignored
    assert not (ignored.at_default or ignored.wanted or ignored.unknown or ignored.older)


def test_a_setting_that_is_not_implemented_is_named(tmp_path: Path) -> None:
    config = Config.load(write(tmp_path, "brokerClientSslProvider=x\n"))
    assert list(config.ignored.wanted) == ["brokerClientSslProvider"]


@pytest.mark.parametrize("address", ["a b", "http://a", "a:1/x", "me@a", "a,b", "a\nb"])
def test_what_clients_could_not_connect_to_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match=r"advertisedAddress cannot be .* one host name"):
        Config.load(overrides={"advertisedAddress": address})
    for good in ("a-b.example", "10.0.0.1", "[::1]", ""):
        Config.load(overrides={"advertisedAddress": good})


@pytest.mark.parametrize(
    ("key", "text", "expected"),
    [
        ("maxMessageSize", "5MB", "a whole number, 1024 to 1073741824 (bytes)"),
        ("maxMessageSize", "1_048_576", "a whole number, 1024 to 1073741824 (bytes)"),
        ("brokerServicePort", "65536", "a whole number, 0 to 65535"),
        ("journalSyncData", "yes", "true or false"),
        ("managedLedgerDigestType", "SHA1", "one of CRC32C, CRC32, MAC, DUMMY"),
        ("diskUsageThreshold", "1.5", "a number, 0.01 to 1"),
        ("managedLedgerDefaultEnsembleSize", "0", "a whole number, 1 or more"),
        ("managedLedgerDefaultEnsembleSize", "2147483648", "a whole number, 1 to 2147483647"),
    ],
)
def test_a_bad_value_names_place_key_and_what_is_expected(
    tmp_path: Path, key: str, text: str, expected: str
) -> None:
    path = write(tmp_path, f"# first\n{key}={text}\n")
    with pytest.raises(ConfigError) as caught:
        Config.load(path)
    assert str(caught.value) == f"{path}, line 2: {key} is {text!r}; expected {expected}."
    with pytest.raises(ConfigError, match=f"environment variable PULSAR_PREFIX_{key}: {key} is"):
        Config.load(None, {f"PULSAR_PREFIX_{key}": text})


@pytest.mark.parametrize("name", ["a/b", "a b", "\u00e4"])
def test_a_cluster_that_no_tenant_could_name_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="clusterName cannot be"):
        Config.load(None, None, {"clusterName": name})


def test_a_journal_file_too_small_for_the_largest_entry_is_refused_by_its_key(
    tmp_path: Path,
) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(write(tmp_path, "journalMaxSizeMB=4\n"))
    assert str(caught.value) == (
        "journalMaxSizeMB=4 is too small: a journal file has to hold the largest entry"
        " (maxMessageSize=5242880); set at least 6."
    )
    assert Config.load(None, None, {"journalMaxSizeMB": "6"}).journalMaxSizeMB == 6
    small = {"journalMaxSizeMB": "4", "maxMessageSize": "1048576"}
    assert Config.load(None, None, small).journalMaxSizeMB == 4


def test_transactions_without_system_topics_are_refused() -> None:
    on = {"transactionCoordinatorEnabled": "true"}
    with pytest.raises(ConfigError, match="needs systemTopicEnabled=true"):
        Config.load(None, None, on | {"systemTopicEnabled": "false"})
    assert Config.load(None, None, on).transactionCoordinatorEnabled
    Config.load(None, None, {"systemTopicEnabled": "false"})


def test_a_failure_timeout_in_which_no_broker_can_answer_is_refused() -> None:
    for text in ("1", "99"):
        with pytest.raises(ConfigError, match="Set at least 100, or 0"):
            Config.load(None, None, {"brokerFailureTimeoutMs": text}, is_cluster=True)
    for text in ("0", "100"):
        Config.load(None, None, {"brokerFailureTimeoutMs": text}, is_cluster=True)


def test_quorums_that_do_not_fit_are_refused_by_their_keys() -> None:
    with pytest.raises(ConfigError) as caught:
        Config.load(None, None, {"managedLedgerDefaultWriteQuorum": "3"}, is_cluster=True)
    assert str(caught.value) == (
        "managedLedgerDefaultEnsembleSize=2, managedLedgerDefaultWriteQuorum=3,"
        " managedLedgerDefaultAckQuorum=2 do not fit: each must be at least as large as the next"
        " one."
    )
    wide = {"managedLedgerDefaultEnsembleSize": "3", "managedLedgerDefaultAckQuorum": "1"}
    assert Config.load(None, None, wide, is_cluster=True).managedLedgerDefaultWriteQuorum == 2


# 14,496 bytes below a whole MiB is the largest payload that a file of that size holds.
@pytest.mark.parametrize("payload", [1024, 2 << 20, (4 << 20) - 14496, (4 << 20) - 14495, 5 << 20])
def test_the_least_journal_size_is_the_one_that_the_storage_opens_with(
    tmp_path: Path, payload: int
) -> None:
    entry = payload + FRAME_PADDING + ENTRY_METADATA_BYTES_MAX + ENTRY_HEADER_SIZE_MAX

    def open_with(size_mb: int) -> None:
        _native.Storage(
            tmp_path / "journal",
            tmp_path / "ledgers",
            journal_file_bytes=size_mb << 20,
            dirty_bytes_max=32 << 20,
            cache_bytes_max=64 << 20,
            entry_bytes_max=entry,
        ).close()

    least = journal_size_min(payload)
    open_with(least)
    if least > 1:
        with pytest.raises(OSError, match="too small"):
            open_with(least - 1)


def test_what_cannot_be_read_as_settings_is_refused(tmp_path: Path) -> None:
    # To Java a line without a separator is a key without a value.
    assert list(Config.load(write(tmp_path, "nonsense\n")).ignored.unknown) == ["nonsense"]
    with pytest.raises(ConfigError, match="line 2: it contains a null byte, so this is not a"):
        Config.load(write(tmp_path, "a=b\nclusterName=\0\n"))
    with pytest.raises(ConfigError, match=r"line 1: .*u has to be followed by four hexadecimal"):
        Config.load(write(tmp_path, "clusterName=\\u12g4\n"))
    with pytest.raises(ConfigError, match=r"line 1: .*u0000 cannot be part of a setting"):
        Config.load(write(tmp_path, "clusterName=a\\u0000b\n"))
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        Config.load(tmp_path)
    with pytest.raises(ConfigError, match="cannot be read: No such file or directory"):
        Config.load(tmp_path / "none.conf")


def test_keywords_must_be_settings() -> None:
    assert Config(brokerServicePort=0).brokerServicePort == 0
    with pytest.raises(ConfigError, match="brokerPort"):
        Config(brokerPort=0)


def test_secrets_are_not_shown() -> None:
    shown = Config(managedLedgerPassword="hush", maxProducersPerTopic=3).changed()
    assert shown == {"maxProducersPerTopic": 3}


def test_the_cache_for_readers_has_the_names_of_broker_and_bookie(tmp_path: Path) -> None:
    config = Config.load(write(tmp_path, "managedLedgerCacheSizeMB=7\nflushInterval=60000\n"))
    assert config.changed() == {"dbStorage_readAheadCacheMaxSizeMb": 7}
    assert not config.ignored.unknown
    both = "dbStorage_readAheadCacheMaxSizeMb=5\nmanagedLedgerCacheSizeMB=7\n"
    assert Config.load(write(tmp_path, both)).dbStorage_readAheadCacheMaxSizeMb == 5


def test_the_sample_file_states_every_default(tmp_path: Path) -> None:
    text = sample()
    uncommented = re.sub(r"^#(?=\w+=)", "", text, flags=re.MULTILINE)
    config = Config.load(write(tmp_path, uncommented))
    assert not (config.ignored.unknown or config.ignored.wanted)
    assert config.changed() == {}
    assert all(f"\n#{key}=" in text for key in SCHEMA)


def test_the_reference_page_has_every_key() -> None:
    page = markdown()
    assert [key for key in (*SCHEMA, *ALIASES, *WITHOUT_EFFECT) if f"`{key}`" not in page] == []
    committed = SOURCE.parent.parent / "docs" / "configuration.md"
    assert committed.read_text() == page, "run `make docs`"


def test_the_schema_is_consistent() -> None:
    assert [key for rows in SECTIONS.values() for key in rows] == list(SCHEMA)
    assert set(ALIASES.values()) <= set(SCHEMA)
    assert not set(ALIASES) & set(SCHEMA)
    assert not WITHOUT_EFFECT & (set(ALIASES) | set(SCHEMA))
    for row in SCHEMA.values():
        assert row.doc.endswith("."), row.key
        if row.default not in (None, ""):
            text = str(row.default).lower() if isinstance(row.default, bool) else str(row.default)
            assert row.parse(text) == row.default


def modules() -> list[Path]:
    """Return the modules of the package. rglob() does not follow the symbolic link to spark/."""
    folders = (SOURCE, SOURCE / "spark")
    return [path for folder in folders for path in folder.rglob("*.py*") if path.suffix != ".pyc"]


def test_each_setting_is_read_by_some_code() -> None:
    read: set[str] = set()
    for path in modules():
        read.update(re.findall(r"(?<![a-z])config\s*\.(\w+)", path.read_text()))
    assert set(SCHEMA) - read == set()


def test_every_setting_that_the_code_reads_exists() -> None:
    members = {name for name in dir(Config()) if not name.startswith("_")}
    wrong = []
    for path in modules():
        for name in re.findall(r"(?<![a-z])config\.([a-zA-Z_]+)\b(?!\.py)", path.read_text()):
            if "_" not in name and name != name.lower() and name not in members:
                wrong.append(f"{path.name}: config.{name}")
    assert wrong == []


def test_the_sample_file_in_conf_is_up_to_date() -> None:
    committed = SOURCE.parent.parent / "conf" / "standalone.conf"
    assert committed.read_text() == sample(), "run `make docs`"


@pytest.mark.parametrize("text", ["Shared", "Exclusive, Key_Shared", "Failover,Shared"])
def test_a_list_of_choices_is_taken(text: str) -> None:
    config = Config.load(overrides={"subscriptionTypesEnabled": text})
    assert config.subscriptionTypesEnabled == text


@pytest.mark.parametrize("text", ["bogus", "Shared,bogus", "Shared,,Failover"])
def test_a_list_with_another_name_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="separated by commas"):
        Config.load(overrides={"subscriptionTypesEnabled": text})


@pytest.mark.parametrize(
    "key", ["bookkeeperClientAuthenticationPlugin", "bookkeeper_clientAuthProviderFactoryClass"]
)
def test_a_broker_of_a_cluster_refuses_authentication_to_bookies_that_it_does_not_have(
    tmp_path: Path, key: str
) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(f"{key}=org.apache.bookkeeper.sasl.SASLClientProviderFactory\n")
    with pytest.raises(ConfigError, match=f"^{key} is set, but this broker has no such plugin"):
        Config.load(conf, is_cluster=True)
    Config.load(conf)  # standalone has no other bookies
    conf.write_text(f"{key}=\n")
    Config.load(conf, is_cluster=True)


def test_every_key_of_bookkeepers_client_has_an_effect_or_is_listed() -> None:
    page = Path("docs/configuration.md").read_text()
    listed = page.partition("## BookKeeper's client, without effect")[2]
    for key in (each for each in java_keys.DEFAULTS if each.startswith("bookkeeper")):
        assert (f"`{key}`" in listed) is (key not in SCHEMA), key

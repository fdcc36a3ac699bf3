"""Each option of the connector in a session of Spark, against a real broker.

What an option means in detail other tests say, of what Spark's workers do and without Spark, which
is quicker. Here each one comes the way it comes to users: through Spark to the driver, to the tasks
that read and to those that write. `test_each_option_is_tried` looks that none is left out.
"""

from __future__ import annotations

import base64
import contextlib
import json
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pulsar
import pytest
import trustme
from harness.brokers import Broker
from harness.issuer import SECRET as ISSUERS_SECRET
from harness.issuer import Issuer
from harness.tokens import BASIC, PACKAGE, TOKENS, data_url, public

from compat_tests.conftest import BrokerFactory, official_client
from compat_tests.spark_rows import error_of, given
from compat_tests.tls_scene import Scene
from pyxbroker.spark.options import TABLE
from pyxbroker.spark.routing import HASHES

pytestmark = pytest.mark.spark

F = TypeVar("F", bound=Callable[..., Any])
JAVA = "org.apache.pulsar.client.impl.auth."
PLUGIN, PARAMS = "pulsar.client.authPluginClassName", "pulsar.client.authParams"
PASSWORD = "password-of-ann"
HASH = "$apr1$abcdefgh$Kh1fOnjtN6nYRkiyYRkQl/"  # Apache Pulsar has no bcrypt

ELSEWHERE = {
    # Options that another module of tests has in a session.
    "startingOffsets": "test_spark.py",
    "maxBytesPerTrigger": "test_spark.py",
    "maxRowsPerTrigger": "test_spark_admission.py",
    "publishTimeSkewMs": "test_spark_columns.py",
    "exactlyOnce": "test_spark_sink.py",
    "schemaType": "test_spark_sink.py",
    # And those of where a query begins, ends and stands, without one.
    **dict.fromkeys(("startingTime", "endingTime"), "test_spark_options.py"),
    "endingOffsets": "test_spark_ranges.py",
    **dict.fromkeys(
        ("waitingForNonExistedTopic", "predefinedSubscription", "subscriptionPrefix"),
        "test_spark_options.py",
    ),
}
TRIED: set[str] = set()


def tries(*names: str) -> Callable[[F], F]:
    """What a test tries."""
    TRIED.update(names)
    return lambda test: test


def test_each_option_is_tried() -> None:
    assert TRIED | ELSEWHERE.keys() == {row.name for row in TABLE}
    assert not TRIED & ELSEWHERE.keys()
    for name, module in ELSEWHERE.items():
        assert f"{name}" in (Path(__file__).parent / module).read_text()


# --- what every test does -------------------------------------------------------------------------


def publish(client: pulsar.Client, topic: str, *texts: str, **settings: Any) -> None:
    producer = client.create_producer(topic, **settings)
    for each in texts:
        producer.send(each.encode())
    producer.close()


def load(spark: Any, options: dict[str, str]) -> Any:
    return spark.read.format("pulsar").options(**options).load()


def texts(rows: Any) -> list[str]:
    return sorted(bytes(row.value).decode() for row in rows.select("value").collect())


def save(frame: Any, options: dict[str, str]) -> None:
    frame.write.format("pulsar").options(**options).mode("append").save()


def numbered(spark: Any, count: int, key: str = "cast(id as string)") -> Any:
    """Rows of one task."""
    return spark.range(0, count, 1, 1).selectExpr(f"{key} as __key", "cast(id as string) as value")


def stats(broker: Broker, topic: str, what: str = "stats") -> Any:
    return broker.rest("GET", f"/admin/v2/{topic.replace('://', '/')}/{what}")[1]


# --- TLS, and who one is --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    with Issuer(None) as one:
        one.claims = {"nbf": 0}
        yield one


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory, issuer: Issuer) -> Iterator[Scene]:
    """A broker with TLS that lets in who has a token of the issuer, a password or a certificate."""
    root = issuer.token("root")
    one = Scene(
        tmp_path_factory.mktemp("secure"),
        headers={"Authorization": f"Bearer {root}"},
        authenticationEnabled="true",
        authenticationProviders=f"{TOKENS},{BASIC},{PACKAGE}AuthenticationProviderTls",
        tokenPublicKey=data_url(public(issuer.private["k1"])),
        basicAuthConf=data_url(f"ann:{HASH}".encode()),
        authorizationEnabled="true",
        superUserRoles="me,ann,certified,orders,root",
        # Apache Pulsar's standalone is a client of its own.
        brokerClientAuthenticationPlugin=f"{JAVA}AuthenticationToken",
        brokerClientAuthenticationParameters=f"token:{root}",
    )
    yield one
    one.broker.close()


@pytest.fixture(scope="module")
def mutual(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A broker that speaks with nobody who has no certificate of its authority."""
    one = Scene(tmp_path_factory.mktemp("mutual"), tlsRequireTrustedClientCertOnConnect="true")
    yield one
    one.broker.close()


def secure(scene: Scene, topic: str, **more: str) -> dict[str, str]:
    """Options of a broker with TLS; each entry is an entry of a task by itself, as REST tells."""
    return {
        "service.url": scene.url,
        "topic": topic,
        "pulsar.client.tlsTrustCertsFilePath": str(scene.trusted),
        "pulsar.client.operationTimeoutMs": "5000",
    } | more


def with_rest(scene: Scene, options: dict[str, str], **more: str) -> dict[str, str]:
    """The same for a source that asks REST, too."""
    admin = {"admin.url": f"https://localhost:{scene.web_port}", "bytesPerTask": "1"}
    return options | admin | more


def login_of(way: str, scene: Scene, issuer: Issuer, directory: Path) -> dict[str, str]:
    file = directory / "secret"
    token = issuer.token("me")
    certificate, key = scene.issue("certified", "localhost", common_name="certified")
    told = {"client_id": "orders", "client_secret": ISSUERS_SECRET}
    credentials = "data:application/json;base64," + _base64(json.dumps(told))
    files = f"tlsCertFile:{certificate},tlsKeyFile:{key}"
    oauth2 = {"issuerUrl": issuer.url, "privateKey": credentials, "audience": "urn:broker"}
    classes = {
        "token": ("AuthenticationToken", f"token:{token}"),
        "file": ("AuthenticationToken", f"file://{file}"),
        "basic": ("AuthenticationBasic", json.dumps({"userId": "ann", "password": PASSWORD})),
        "tls": ("AuthenticationTls", files),
        "oauth2": ("oauth2.AuthenticationOAuth2", json.dumps(oauth2)),
    }
    file.write_text(token)
    name, params = classes[way]
    return {PLUGIN: JAVA + name, PARAMS: params}


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


@tries("service.url", "admin.url", "bytesPerTask", PLUGIN, PARAMS)
@tries("pulsar.client.tlsTrustCertsFilePath")
@pytest.mark.parametrize("way", ["token", "file", "basic", "tls", "oauth2"])
def test_who_one_is_by_both_protocols(
    spark: Any, scene: Scene, issuer: Issuer, topic: str, tmp_path: Path, way: str
) -> None:
    options = secure(scene, topic) | login_of(way, scene, issuer, tmp_path)
    save(numbered(spark, 3), options | {"pulsar.producer.batchingEnabled": "false"})
    rows = load(spark, with_rest(scene, options))
    assert (rows.rdd.getNumPartitions(), texts(rows)) == (3, ["0", "1", "2"])
    nobody = {name: value for name, value in options.items() if "auth" not in name}
    assert "AuthenticationError" in error_of(lambda: load(spark, nobody))


@tries("pulsar.admin.authPluginClassName", "pulsar.admin.authParams")
@tries("pulsar.admin.tlsTrustCertsFilePath", "pulsar.admin.tlsAllowInsecureConnection")
@tries("pulsar.admin.tlsHostnameVerificationEnable")
def test_rest_may_be_asked_in_another_way(
    spark: Any, scene: Scene, issuer: Issuer, topic: str, tmp_path: Path
) -> None:
    options = secure(scene, topic) | login_of("token", scene, issuer, tmp_path)
    save(numbered(spark, 3), options | {"pulsar.producer.batchingEnabled": "false"})
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    asked = with_rest(scene, options)
    basic = {
        "pulsar.admin.authPluginClassName": f"{JAVA}AuthenticationBasic",
        "pulsar.admin.authParams": f"ann:{PASSWORD}",
    }
    trusting = {"pulsar.admin.tlsTrustCertsFilePath": str(stranger)}
    elsewhere = {"admin.url": f"https://127.0.0.2:{scene.web_port}"}
    for more in (
        basic,
        trusting | {"pulsar.admin.tlsAllowInsecureConnection": "true"},
        elsewhere | {"pulsar.admin.tlsHostnameVerificationEnable": "false"},
        elsewhere | {"pulsar.admin.enableTlsHostnameVerification": "false"},
    ):
        assert load(spark, asked | more).rdd.getNumPartitions() == 3
    wrong = basic | {"pulsar.admin.authParams": "ann:hidden-guess"}
    for more, sentence in (
        (wrong, "pulsar.admin.authParams"),
        (trusting, "CERTIFICATE_VERIFY_FAILED"),
        (elsewhere, "CERTIFICATE_VERIFY_FAILED"),
    ):
        text = error_of(load(spark, asked | more).collect)
        assert sentence in text and "hidden-guess" not in text


@tries("pulsar.client.tlsCertificateFilePath", "pulsar.client.tlsKeyFilePath")
@tries("pulsar.admin.tlsCertificateFilePath", "pulsar.admin.tlsKeyFilePath")
def test_certificates_of_ones_own_where_a_broker_asks_for_them(
    spark: Any, mutual: Scene, topic: str
) -> None:
    certificate, key = mutual.issue("client")
    options = secure(mutual, topic)
    own = {
        "pulsar.client.tlsCertificateFilePath": str(certificate),
        "pulsar.client.tlsKeyFilePath": str(key),
    }
    save(numbered(spark, 3), options | own | {"pulsar.producer.batchingEnabled": "false"})
    asked = with_rest(mutual, options | own)
    rows = load(spark, asked)
    assert (rows.rdd.getNumPartitions(), texts(rows)) == (3, ["0", "1", "2"])
    assert "certificate required" in error_of(lambda: load(spark, options))
    strange = mutual.issue("stranger", ca=trustme.CA())
    names = ("pulsar.admin.tlsCertificateFilePath", "pulsar.admin.tlsKeyFilePath")
    wrong = dict(zip(names, map(str, strange), strict=True))
    assert "no web port answers at" in error_of(load(spark, asked | wrong).collect)
    right = dict(zip(names, (str(certificate), str(key)), strict=True))
    assert load(spark, asked | right).rdd.getNumPartitions() == 3


@tries("pulsar.client.tlsAllowInsecureConnection", "pulsar.client.tlsHostnameVerificationEnable")
@tries("pulsar.client.useTls")
def test_what_is_asked_of_a_brokers_certificate(
    spark: Any, scene: Scene, issuer: Issuer, topic: str, tmp_path: Path
) -> None:
    options = secure(scene, topic) | login_of("token", scene, issuer, tmp_path)
    stranger = tmp_path / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(stranger)
    trusting = options | {"pulsar.client.tlsTrustCertsFilePath": str(stranger)}
    insecure = trusting | {"pulsar.client.tlsAllowInsecureConnection": "true"}
    save(numbered(spark, 3), insecure)
    assert texts(load(spark, insecure)) == ["0", "1", "2"]
    elsewhere = options | {"service.url": f"pulsar+ssl://127.0.0.2:{scene.port}"}
    unchecked = elsewhere | {"pulsar.client.tlsHostnameVerificationEnable": "false"}
    assert texts(load(spark, unchecked)) == ["0", "1", "2"]
    plain = {"service.url": scene.url.replace("+ssl", ""), "pulsar.client.useTls": "true"}
    assert texts(load(spark, options | plain)) == ["0", "1", "2"]
    for wrong in (trusting, elsewhere):
        assert "is not trusted" in error_of(partial(load, spark, wrong))


# --- what is read ---------------------------------------------------------------------------------


@tries("topic", "topics", "topicsPattern", "columns", "reader", "pulsar.reader.receiverQueueSize")
def test_topics_and_how_they_are_read(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str
) -> None:
    publish(client, f"{topic}-1", "a", "b")
    publish(client, f"{topic}-2", "c")

    def read(**options: str) -> list[str]:
        return texts(load(spark, given(broker, options)))

    assert read(topic=f"{topic}-1") == ["a", "b"]
    assert read(topics=f"{topic}-1,{topic}-2") == ["a", "b", "c"]
    assert read(topicsPattern=f"{topic}-.*") == ["a", "b", "c"]
    assert read(topic=f"{topic}-1", reader="client") == ["a", "b"]
    assert read(topic=f"{topic}-1", pulsar_reader_receiverQueueSize="1") == ["a", "b"]
    rows = load(spark, given(broker, {"topic": f"{topic}-1", "columns": "__entryId,value"}))
    assert [(row[0], bytes(row[1])) for row in rows.collect()] == [(0, b"a"), (1, b"b")]


@tries("allowDifferentTopicSchemas")
def test_topics_with_different_schemas(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str
) -> None:
    client.create_producer(f"{topic}-1", schema=pulsar.schema.StringSchema()).send("a")
    publish(client, f"{topic}-2", "b")
    options = given(broker, {"topicsPattern": f"{topic}-.*"})
    assert "have different schemas" in error_of(lambda: load(spark, options))
    rows = load(spark, options | {"allowDifferentTopicSchemas": "true"})
    assert texts(rows) == ["a", "b"]


@tries("failOnDataLoss")
def test_what_was_deleted(spark: Any, own_broker: BrokerFactory, topic: str) -> None:
    broker = own_broker()
    broker.start()
    path = f"/admin/v2/{topic.replace('://', '/')}"
    with contextlib.closing(official_client(broker.url)) as client:
        publish(client, topic, "a", "b", "c")
        first = load(spark, given(broker, {"topic": topic, "columns": "__ledgerId"})).first()
        assert broker.rest("PUT", f"{path}/unload")[0] == 204
        publish(client, topic, "d")
        assert broker.rest("DELETE", f"{path}/truncate")[0] == 204
        publish(client, topic, "e")
    start = {"topic": topic, "startingOffsets": json.dumps({topic: f"{first[0]}:1"})}
    rows = load(spark, given(broker, start))
    assert "were deleted, or may have been" in error_of(rows.collect)
    rows = load(spark, given(broker, start | {"failOnDataLoss": "false"}))
    assert texts(rows)[-1] == "e"


@tries("pollTimeoutMs")
def test_a_task_to_which_nothing_comes_fails_in_time(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str
) -> None:
    publish(client, topic, *map(str, range(20)))
    rate = {
        "dispatchThrottlingRateInMsg": 1,
        "dispatchThrottlingRateInByte": -1,
        "relativeToPublishRate": False,
        "ratePeriodInSecond": 600,
    }
    path = f"/admin/v2/{topic.replace('://', '/')}/dispatchRate"
    assert broker.rest("POST", path, rate)[0] == 204
    options = {"topic": topic, "pollTimeoutMs": "2000", "pulsar_reader_receiverQueueSize": "1"}
    begin = time.monotonic()
    text = error_of(load(spark, given(broker, options)).collect)
    assert f"no message of {topic} came for 2 s" in text
    assert time.monotonic() - begin < 60


@tries("pulsar.client.operationTimeoutMs", "pulsar.client.connectionTimeoutMs")
def test_a_broker_that_does_not_answer_is_not_waited_for_long(spark: Any, topic: str) -> None:
    """One that takes a connection and is silent, and one that does not even take it."""
    with (
        socket.create_server(("127.0.0.1", 0), backlog=0) as server,
        contextlib.ExitStack() as full,
    ):
        port = server.getsockname()[1]
        options = {"service.url": f"pulsar://127.0.0.1:{port}", "topic": topic}
        begin = time.monotonic()
        silent = options | {"pulsar.client.operationTimeoutMs": "1000"}
        assert "did not answer in time" in error_of(lambda: load(spark, silent))
        for _ in range(3):  # until none is taken any more
            one = full.enter_context(socket.socket())
            one.settimeout(0.2)
            with contextlib.suppress(TimeoutError):
                one.connect(("127.0.0.1", port))
        full_one = options | {"pulsar.client.connectionTimeoutMs": "1000"}
        assert "no broker answers" in error_of(lambda: load(spark, full_one))
        assert time.monotonic() - begin < 9, "it has waited as long as is usual"


# --- what is written ------------------------------------------------------------------------------


@tries(*(f"pulsar.producer.{name}" for name in ("batchingEnabled", "batchingMaxMessages")))
@tries(*(f"pulsar.producer.{name}" for name in ("batchingMaxBytes", "compressionType")))
@tries("pulsar.producer.batchingMaxPublishDelayMicros")
def test_batches_and_codecs_of_a_sink(spark: Any, broker: Broker, topic: str) -> None:
    prefix = "pulsar.producer."
    patient = {f"{prefix}batchingMaxPublishDelayMicros": "30000000"}
    rows = numbered(spark, 12, "'k'")
    for number, (more, entries) in enumerate(
        (
            ({"batchingEnabled": "false"}, 12),
            ({"batchingMaxMessages": "6", "compressionType": "NONE"}, 2),
            ({"batchingMaxMessages": "4", "compressionType": "zstd"}, 3),
            ({"batchingMaxBytes": "1"}, 12),
        )
    ):
        options = patient | {prefix + name: value for name, value in more.items()}
        name = f"{topic}-{number}"
        save(rows, given(broker, {"topic": name}) | options)
        assert stats(broker, name, "internalStats")["entriesAddedCounter"] == entries
        assert len(texts(load(spark, given(broker, {"topic": name})))) == 12


@tries("pulsar.producer.chunkingEnabled")
def test_large_messages_of_a_sink(spark: Any, broker: Broker, topic: str) -> None:
    rows = spark.range(0, 1, 1, 1).selectExpr(f"repeat('x', {6 << 20}) as value")
    options = given(broker, {"topic": topic, "pulsar_producer_compressionType": "none"})
    text = error_of(lambda: save(rows, options))
    assert "pulsar.producer.chunkingEnabled=true sends it in chunks" in text
    save(rows, options | {"pulsar.producer.chunkingEnabled": "true"})
    (row,) = load(spark, given(broker, {"topic": topic})).collect()
    assert len(row.value) == 6 << 20


@tries("pulsar.producer.properties", "pulsar.producer.maxPendingMessages")
def test_what_producers_show_while_they_send(
    spark: Any, broker: Broker, client: pulsar.Client, topic: str
) -> None:
    shown: list[dict[str, str]] = []
    is_done = threading.Event()

    def watch() -> None:
        while not is_done.wait(0.02):
            for each in stats(broker, topic).get("publishers", ()):
                shown.append(each.get("metadata", {}))

    client.create_producer(topic).close()
    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        options = {
            "topic": topic,
            "pulsar_producer_properties": json.dumps({"by": "spark"}),
            "pulsar_producer_maxPendingMessages": "1",
            "pulsar_producer_batchingEnabled": "false",
        }
        save(numbered(spark, 3_000), given(broker, options))
    finally:
        is_done.set()
        watcher.join()
    assert {"by": "spark"} in shown
    assert stats(broker, topic)["msgInCounter"] == 3_000


@tries("pulsar.producer.sendTimeoutMs")
def test_a_message_that_is_not_acknowledged_in_time_fails_a_task(
    spark: Any, own_broker: BrokerFactory, topic: str
) -> None:
    broker = own_broker()
    broker.start()
    with contextlib.closing(official_client(broker.url)) as client:
        client.create_producer(topic).close()
    rate = {"publishThrottlingRateInMsg": 1, "publishThrottlingRateInByte": -1}
    path = f"/admin/v2/{topic.replace('://', '/')}/publishRate"
    assert broker.rest("POST", path, rate)[0] == 204
    options = {
        "topic": topic,
        # Less than there is between two messages at that rate.
        "pulsar_producer_sendTimeoutMs": "500",
        "pulsar_client_operationTimeoutMs": "5000",
        "pulsar_producer_batchingEnabled": "false",
    }
    begin = time.monotonic()
    text = error_of(lambda: save(numbered(spark, 500), given(broker, options)))
    assert f"messages were not acknowledged: {topic} cannot be written: the broker did not" in text
    assert time.monotonic() - begin < 25, "it has waited as long as is usual"


@tries("pulsar.producer.hashingScheme", "pulsar.producer.messageRoutingMode")
def test_partitions_that_a_sink_chooses(spark: Any, broker: Broker, topic: str) -> None:
    for name in (topic, f"{topic}-murmur", f"{topic}-single"):
        path = f"/admin/v2/{name.replace('://', '/')}/partitions"
        assert broker.rest("PUT", path, 3)[0] == 204
    rows = numbered(spark, 50)
    save(rows, given(broker, {"topic": topic}))
    murmur = {"topic": f"{topic}-murmur", "pulsar_producer_hashingScheme": "Murmur3_32Hash"}
    save(rows, given(broker, murmur))
    for name, scheme in ((topic, "JavaStringHash"), (f"{topic}-murmur", "Murmur3_32Hash")):
        for row in load(spark, given(broker, {"topic": name})).collect():
            index = HASHES[scheme](bytes(row["__key"]).decode()) % 3
            assert row["__topic"] == f"{name}-partition-{index}"
    single = {
        "topic": f"{topic}-single",
        "pulsar_producer_messageRoutingMode": "SinglePartition",
    }
    save(rows.drop("__key"), given(broker, single))
    found = load(spark, given(broker, {"topic": f"{topic}-single"})).collect()
    assert len(found) == 50 and len({row["__topic"] for row in found}) == 1


@tries("pulsar.producer.encryptionKeys", "pulsar.producer.defaultCryptoKeyReader")
@tries("pulsar.reader.defaultCryptoKeyReader")
def test_encrypted_messages(spark: Any, broker: Broker, topic: str, tmp_path: Path) -> None:
    private, common = tmp_path / "private.pem", tmp_path / "public.pem"
    for command in (
        ["openssl", "genrsa", "-out", str(private), "2048"],
        ["openssl", "rsa", "-in", str(private), "-pubout", "-out", str(common)],
    ):
        subprocess.run(command, check=True, capture_output=True)
    options = {
        "pulsar.producer.encryptionKeys": "mine",
        "pulsar.producer.defaultCryptoKeyReader": f"file://{common}",
    }
    save(numbered(spark, 3), given(broker, {"topic": topic}) | options)
    assert "it is encrypted; give its key" in error_of(
        load(spark, given(broker, {"topic": topic})).collect
    )
    key = {"topic": topic, "pulsar_reader_defaultCryptoKeyReader": str(private)}
    assert texts(load(spark, given(broker, key))) == ["0", "1", "2"]


# --- names that there are not ---------------------------------------------------------------------

UNKNOWN = (
    ("startingOffset", "did you mean startingOffsets"),
    ("failOnDataLos", "did you mean failOnDataLoss?"),
    ("topicPattern", "did you mean topicsPattern"),
    ("pulsar.reader.receiverQueSize", "did you mean pulsar.reader.receiverQueueSize?"),
    ("pulsar.client.authParam", "did you mean pulsar.client.authParams"),
    ("pulsar.admin.tlsTrustCertFilePath", "did you mean pulsar.admin.tlsTrustCertsFilePath?"),
    ("topic.schema.class", "follow the topic's schema in the registry"),
    ("subscribe", "give topic, or topics for several"),
)


@pytest.mark.parametrize(("name", "sentence"), UNKNOWN, ids=[each[0] for each in UNKNOWN])
def test_unknown_options_name_what_is_near(
    spark: Any, broker: Broker, topic: str, name: str, sentence: str
) -> None:
    options = given(broker, {"topic": topic}) | {name: "x"}
    for read in (spark.read, spark.readStream):
        text = error_of(read.format("pulsar").options(**options).load)
        assert sentence in text


def test_unknown_options_of_a_sink_name_what_is_near(
    spark: Any, broker: Broker, topic: str
) -> None:
    for name, sentence in (
        ("pulsar.producer.sendTimeout", "did you mean pulsar.producer.sendTimeoutMs?"),
        ("exactlyOne", "did you mean exactlyOnce?"),
        ("topic.schema.class", "written columns become a schema (schemaType)"),
        ("startingOffsets", "only of the batch source and the streaming source"),
    ):
        options = given(broker, {"topic": topic}) | {name: "x"}
        assert sentence in error_of(partial(save, numbered(spark, 1), options))

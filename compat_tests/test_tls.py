"""TLS on both ports: three official clients, certificates of either side, and files that change."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import socket
import ssl
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pytest
import trustme
from harness.go_client import Client as GoClient
from harness.java_client import Java
from harness.key_stores import key_stores

from compat_tests.tls_scene import IMPATIENT_S, Scene

SIZES = (0, 1, 1_000, 16_384, 100_000, 4_000_000)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    one = Scene(tmp_path_factory.mktemp("tls"), tlsCertRefreshCheckDurationSec="1")
    yield one
    one.broker.close()


def eventually(check: Callable[[], None]) -> None:
    """Certificates are looked at once a second."""
    until = time.monotonic() + 20
    while True:
        try:
            return check()
        except AssertionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)


def payloads() -> list[bytes]:
    return [os.urandom(size) for size in SIZES]


def test_pythons_client(scene: Scene, topic: str) -> None:
    sent = payloads()
    client = scene.client()
    producer = client.create_producer(topic)
    consumer = client.subscribe(topic, "s")
    for each in sent:
        producer.send(each)
    for each in sent:
        message = consumer.receive(10_000)
        assert message.data() == each
        consumer.acknowledge(message)
    client.close()


def test_batches_and_a_backlog(scene: Scene, topic: str) -> None:
    client = scene.client()
    producer = client.create_producer(
        topic, batching_enabled=True, block_if_queue_full=True, max_pending_messages=1000
    )
    for number in range(20_000):
        producer.send_async(b"%d" % number * 20, lambda *_: None)
    producer.flush()
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    for number in range(20_000):
        assert reader.read_next(10_000).data() == b"%d" % number * 20
    client.close()


def test_gos_client(scene: Scene, topic: str) -> None:
    client = GoClient(
        scene.url, tls_trust_certs_file_path=str(scene.trusted), tls_validate_hostname=True
    )
    consumer = client.subscribe(topic, "s")
    producer = client.create_producer(topic)
    for each in payloads()[1:]:  # the Go client hands out no empty message
        producer.send(each)
        message = consumer.receive(10_000)
        assert message.data() == each
        consumer.acknowledge(message)
    client.close()


def test_javas_client(scene: Scene, java: Java, topic: str) -> None:
    options = {"tlsTrustCertsFilePath": str(scene.trusted), "tlsHostnameVerificationEnable": True}
    with java.client(scene.url, **options) as client:
        consumer = client.subscribe(topic, "s")
        producer = client.create_producer(topic)
        for each in payloads():
            producer.send(each)
            message = consumer.receive()
            assert message.value == each


def test_https_and_a_lookup_by_it(scene: Scene, topic: str) -> None:
    context = scene.context()
    assert scene.web("/admin/v2/clusters", context) == (200, b'["standalone"]')
    name = topic.partition("://")[2]
    status, body = scene.web(f"/lookup/v2/topic/persistent/{name}", context)
    told = json.loads(body)
    assert status == 200
    assert told["brokerUrlSsl"] == ""
    assert told["brokerUrlTls"].startswith("pulsar+ssl://")
    assert told["brokerUrl"].startswith("pulsar://")
    client = pulsar.Client(
        f"https://localhost:{scene.web_port}", tls_trust_certs_file_path=str(scene.trusted)
    )
    client.create_producer(topic).send(b"found")
    client.close()


def test_a_client_that_trusts_another_authority_does_not_come_in(scene: Scene, topic: str) -> None:
    other = scene.directory / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    client = pulsar.Client(
        scene.url,
        tls_trust_certs_file_path=str(other),
        operation_timeout_seconds=2,
        logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
    )
    with pytest.raises(pulsar.PulsarException):
        client.create_producer(topic)
    client.close()
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        scene.web("/admin/v2/clusters", ssl.create_default_context(cafile=str(other)))


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", bytes(64)])
def test_bytes_without_tls_are_answered_by_the_end(scene: Scene, data: bytes) -> None:
    for port in (scene.port, scene.web_port):
        with socket.create_connection(("127.0.0.1", port), timeout=IMPATIENT_S) as sock:
            sock.sendall(data)
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(4096):
                    pass
    assert scene.web("/admin/v2/clusters", scene.context())[0] == 200


def test_an_older_version_is_refused(scene: Scene) -> None:
    context = scene.context()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version = context.maximum_version = ssl.TLSVersion.TLSv1_1
    context.set_ciphers("ALL:@SECLEVEL=0")
    for port in (scene.port, scene.web_port):
        with pytest.raises((ssl.SSLError, ConnectionResetError)):
            scene.shake_hands(port, context)


def test_clients_show_certificates_where_they_have_to(tmp_path: Path, topic: str) -> None:
    scene = Scene(
        tmp_path, tlsRequireTrustedClientCertOnConnect="true", tlsCertRefreshCheckDurationSec="1"
    )
    try:
        mine = scene.issue("mine", common_name="me")
        strange = scene.issue("strange", common_name="me", ca=trustme.CA())
        authentication = pulsar.AuthenticationTLS(*map(str, mine))
        client = scene.client(authentication=authentication)
        client.create_producer(topic).send(b"one")
        assert scene.web("/admin/v2/clusters", scene.context(mine))[0] == 200
        for files in (None, strange):
            with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
                scene.web("/admin/v2/clusters", scene.context(files))
            other = scene.client(
                **({"authentication": pulsar.AuthenticationTLS(*map(str, files))} if files else {})
            )
            with pytest.raises(pulsar.PulsarException):
                other.create_producer(topic)
            other.close()
        # What is not in the file any more is not trusted any more; who is connected stays.
        trustme.CA().cert_pem.write_to_path(scene.clients)

        def is_refused() -> None:
            try:
                status = scene.web("/admin/v2/clusters", scene.context(mine))[0]
            except (ssl.SSLError, ConnectionError, http.client.HTTPException):
                return
            raise AssertionError(status)

        eventually(is_refused)

        def stays_out() -> None:
            late = scene.client(authentication=authentication)
            try:
                late.create_producer(topic).close()
            except pulsar.PulsarException:
                return
            finally:
                late.close()
            raise AssertionError

        eventually(stays_out)
        client.create_producer(topic).send(b"two")
        client.close()
    finally:
        scene.broker.close()


@pytest.mark.pyxbroker
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_no_session_goes_on_when_an_authority_was_taken_out(
    scene: Scene, version: ssl.TLSVersion
) -> None:
    whole = scene.clients.read_bytes()
    other = trustme.CA()
    scene.clients.write_bytes(whole + other.cert_pem.bytes())
    context = scene.context(scene.issue("other", common_name="other", ca=other))
    context.minimum_version = context.maximum_version = version
    request = b"GET /admin/v2/clusters HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def ask(port: int, session: ssl.SSLSession | None = None) -> ssl.SSLSession | None:
        """What the server leaves to go on with; an error of who is not let in."""
        sock = socket.create_connection(("127.0.0.1", port), timeout=IMPATIENT_S)
        with context.wrap_socket(sock, server_hostname="localhost", session=session) as tls:
            tls.settimeout(0.5 if port == scene.port else IMPATIENT_S)
            with contextlib.suppress(TimeoutError):
                if port == scene.web_port:
                    tls.sendall(request)
                if not tls.recv(4096):
                    raise ConnectionResetError
            kept = tls.session
            with contextlib.suppress(OSError):
                tls.unwrap()  # with a farewell a session is kept
            return kept

    def is_let_in() -> None:
        try:
            left.extend(ask(port) for port in (scene.port, scene.web_port))
        except OSError as error:
            raise AssertionError from error

    left: list[ssl.SSLSession | None] = []
    eventually(is_let_in)
    scene.clients.write_bytes(whole)

    def stays_out() -> None:
        for port, session in zip((scene.port, scene.web_port), left[-2:], strict=True):
            try:
                ask(port, session)
            except OSError:
                continue
            raise AssertionError(port)

    eventually(stays_out)


def test_a_new_certificate_is_shown_without_a_restart(scene: Scene) -> None:
    def serial(port: int) -> int:
        with scene.shake_hands(port, scene.context()) as sock:
            shown = sock.getpeercert()
            assert shown
            return int(str(shown["serialNumber"]), 16)

    before = [serial(port) for port in (scene.port, scene.web_port)]
    scene.issue("server", "localhost", "127.0.0.1")

    def is_new() -> None:
        after = [serial(port) for port in (scene.port, scene.web_port)]
        assert not set(before) & set(after)
        assert len(set(after)) == 1

    eventually(is_new)


@pytest.mark.parametrize(("kind", "ending"), [("JKS", "jks"), ("PKCS12", "p12")])
def test_certificates_may_be_in_key_stores_of_java(
    tmp_path: Path, topic: str, kind: str, ending: str
) -> None:
    stores = key_stores()
    scene = Scene(
        tmp_path,
        tlsEnabledWithKeyStore="true",
        tlsKeyStoreType=kind,
        tlsKeyStore=str(stores / f"server.{ending}"),
        tlsKeyStorePassword="s3cret words",
        tlsTrustStoreType=kind,
        tlsTrustStore=str(stores / f"trust.{ending}"),
        tlsTrustStorePassword="changeit",
        tlsCertificateFilePath="",
        tlsKeyFilePath="",
        tlsTrustCertsFilePath="",
    )
    try:
        scene.trusted = stores / f"{ending}.pem"
        client = scene.client()
        client.create_producer(topic).send(b"one")
        client.close()
        assert scene.web("/admin/v2/clusters", scene.context())[0] == 200
        strange = scene.issue("strange", common_name="me")
        with pytest.raises((ssl.SSLError, ConnectionError, http.client.HTTPException)):
            scene.web("/admin/v2/clusters", scene.context(strange))
        assert "s3cret words" not in scene.broker.output()
    finally:
        scene.broker.close()


@pytest.mark.parametrize("others", ["", "token"])
def test_who_somebody_is_may_be_said_by_a_certificate(
    tmp_path: Path, topic: str, others: str
) -> None:
    names = ["AuthenticationProviderToken"] * bool(others) + ["AuthenticationProviderTls"]
    scene = Scene(
        tmp_path,
        first="me",
        authenticationEnabled="true",
        authenticationProviders=",".join(
            f"org.apache.pulsar.broker.authentication.{name}" for name in names
        ),
        tokenSecretKey="data:;base64," + base64.b64encode(bytes(range(32))).decode(),
        # Apache Pulsar's standalone is a client of its own.
        superUserRoles="me",
        brokerClientTlsEnabled="true",
        brokerClientTrustCertsFilePath=str(tmp_path / "ca.pem"),
        brokerClientAuthenticationPlugin="org.apache.pulsar.client.impl.auth.AuthenticationTls",
        brokerClientAuthenticationParameters=f"tlsCertFile:{tmp_path}/first.pem,"
        f"tlsKeyFile:{tmp_path}/first.key",
    )
    try:
        mine = scene.first
        assert mine is not None
        nameless = scene.issue("nameless", "localhost")
        client = scene.client(authentication=pulsar.AuthenticationTLS(*map(str, mine)))
        client.create_producer(topic).send(b"one")
        client.close()
        assert scene.web("/admin/v2/clusters", scene.context(mine))[0] == 200
        for files in (None, nameless):
            assert scene.web("/admin/v2/clusters", scene.context(files))[0] == 401
            shown = {} if files is None else {"authentication": tls_of(files)}
            other = scene.client(**shown)
            with pytest.raises(pulsar.PulsarException):
                other.create_producer(topic)
            other.close()
        # Nor over the port without TLS, whatever is claimed.
        plain = pulsar.Client(
            scene.broker.url,
            authentication=tls_of(mine),
            operation_timeout_seconds=2,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )
        with pytest.raises(pulsar.PulsarException):
            plain.create_producer(topic)
        plain.close()
    finally:
        scene.broker.close()


def tls_of(files: tuple[Path, Path]) -> pulsar.AuthenticationTLS:
    return pulsar.AuthenticationTLS(*map(str, files))

"""Certificates that do not count, of either side: who shows one is told what Apache Pulsar tells
them, and three official clients stay away from a broker that shows one.
"""

from __future__ import annotations

import datetime
import http.client
import ssl
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pulsar
import pytest
import trustme
from harness import wire
from harness.go_client import Client as GoClient
from harness.java_client import Java, JavaError
from harness.raw import ConnectionClosed, RawConnection
from harness.tokens import CLIENT, PACKAGE, SECRET, TOKENS, data_url, token

from compat_tests.tls_scene import IMPATIENT_S, Scene

REFUSALS = (pulsar.PulsarException, JavaError)
LET_IN = "let in"
NO_HANDSHAKE = "no handshake"
REFUSED = (3, "Failed to authenticate")
DAY = datetime.timedelta(days=1)
HOSTS = ("localhost", "127.0.0.1")


class Certificates(Scene):
    """A broker that lets in who has a certificate or a token; `times` of certificates that do not
    count now.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory,
            headers={"Authorization": f"Bearer {token('root')}"},
            tlsCertRefreshCheckDurationSec="1",
            authenticationEnabled="true",
            authenticationProviders=f"{TOKENS},{PACKAGE}AuthenticationProviderTls",
            tokenSecretKey=data_url(SECRET),
            maxFailedLoginsPerAddress="0",
            superUserRoles="root",
            # Apache Pulsar's standalone is a client of its own.
            brokerClientAuthenticationPlugin=CLIENT,
            brokerClientAuthenticationParameters=f"token:{token('root')}",
        )
        now = datetime.datetime.now(datetime.timezone.utc)
        self.times: dict[str, dict[str, Any]] = {
            "expired": {"not_before": now - 2 * DAY, "not_after": now - DAY},
            "not valid yet": {"not_before": now + DAY},
        }
        self.stranger = trustme.CA()

    def shown_by(self, name: str) -> tuple[Path, Path] | None:
        """What a client shows."""
        if name == "none":
            return None
        if name == "no name":
            return self.issue("nameless", "localhost")
        ca = self.stranger if name == "another authority" else None
        return self.issue("client", common_name="ann", ca=ca, **self.times.get(name, {}))

    def show(self, name: str) -> None:
        """The broker has another certificate; this returns when both ports show it."""
        before = self.shown()
        hosts = ("example.org",) if name == "another host" else HOSTS
        ca = self.stranger if name == "another authority" else None
        self.issue("server", *hosts, ca=ca, **self.times.get(name, {}))
        until = time.monotonic() + 60
        while set(self.shown()) & set(before) or len(set(self.shown())) > 1:
            assert time.monotonic() < until, name
            time.sleep(0.2)

    def shown(self) -> list[bytes | None]:
        """What both ports show."""
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        found = []
        for port in (self.port, self.web_port):
            with self.shake_hands(port, context) as sock:
                found.append(sock.getpeercert(binary_form=True))
        return found


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Certificates]:
    one = Certificates(Path(tmp_path_factory.mktemp("certificates")))
    yield one
    one.broker.close()


def told_by_protocol(scene: Scene, files: tuple[Path, Path] | None, **shown: Any) -> Any:
    """What becomes of a CONNECT that comes with a certificate."""
    fields = {"method": "tls", "data": b""} | shown
    with RawConnection(scene.port, handshake=False) as raw:
        try:
            raw.socket = scene.context(files).wrap_socket(raw.socket, server_hostname="localhost")
            raw.command(wire.CONNECT, {1: "raw", 4: 21, 3: fields["data"], 5: fields["method"]})
            answer = raw.receive(IMPATIENT_S)
        except (ssl.SSLError, ConnectionError, ConnectionClosed):
            return NO_HANDSHAKE
        if answer.type == wire.CONNECTED:
            return LET_IN
        return answer.number(2), answer.data(3).decode()


def told_by_rest(scene: Scene, files: tuple[Path, Path] | None) -> Any:
    try:
        return scene.web("/admin/v2/clusters", scene.context(files))[0]
    except (ssl.SSLError, ConnectionError, http.client.HTTPException):
        return NO_HANDSHAKE


@pytest.mark.parametrize(
    ("name", "by_protocol", "by_rest"),
    [
        ("good", LET_IN, 200),
        ("none", REFUSED, 401),
        ("no name", REFUSED, 401),
        ("another authority", NO_HANDSHAKE, NO_HANDSHAKE),
        ("expired", NO_HANDSHAKE, NO_HANDSHAKE),
        ("not valid yet", NO_HANDSHAKE, NO_HANDSHAKE),
    ],
)
def test_what_a_client_is_told_of_its_certificate(
    scene: Certificates, name: str, by_protocol: Any, by_rest: Any
) -> None:
    files = scene.shown_by(name)
    assert told_by_protocol(scene, files) == by_protocol
    assert told_by_rest(scene, files) == by_rest


def test_a_certificate_counts_for_nothing_where_another_method_is_named(
    scene: Certificates,
) -> None:
    files = scene.shown_by("good")
    for shown in (
        {"method": "token", "data": b"none"},
        {"method": "token", "data": token("ann", SECRET[::-1]).encode()},
        {"method": "none"},
    ):
        assert told_by_protocol(scene, files, **shown) == REFUSED


def clients(scene: Scene, java: Java, timeout_s: int = 2) -> list[Callable[[str], Any]]:
    """What makes the official clients with a token, of a URL."""
    shown = token("root")

    def of_python(url: str) -> Any:
        return pulsar.Client(
            url,
            authentication=pulsar.AuthenticationToken(shown),
            tls_trust_certs_file_path=str(scene.trusted),
            tls_validate_hostname=True,
            operation_timeout_seconds=timeout_s,
            logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error),
        )

    def of_go(url: str) -> Any:
        return GoClient(
            url,
            auth_plugin="token",
            auth_params=f'{{"token":"{shown}"}}',
            tls_trust_certs_file_path=str(scene.trusted),
            tls_validate_hostname=True,
            operation_timeout_seconds=timeout_s,
        )

    def of_java(url: str) -> Any:
        return java.client(
            url,
            authPluginClassName=CLIENT,
            authParams=f"token:{shown}",
            tlsTrustCertsFilePath=str(scene.trusted),
            tlsHostnameVerificationEnable=True,
            operationTimeoutMs=timeout_s * 1000,
            lookupTimeoutMs=timeout_s * 1000,
        )

    return [of_python, of_go, of_java]


@pytest.mark.parametrize("name", ["another authority", "another host", "expired", "not valid yet"])
def test_clients_stay_away_from_a_broker_whose_certificate_does_not_count(
    scene: Certificates, java: Java, topic: str, name: str
) -> None:
    urls = (scene.url, f"https://localhost:{scene.web_port}")
    scene.show(name)
    try:
        for make in clients(scene, java):
            for url in urls:
                client = make(url)
                with pytest.raises(REFUSALS):
                    client.create_producer(topic)
                client.close()
        with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
            scene.web("/admin/v2/clusters", scene.context())
    finally:
        scene.show("good")


def test_with_a_good_one_they_come(scene: Certificates, java: Java, topic: str) -> None:
    for make in clients(scene, java, timeout_s=20):
        for url in (scene.url, f"https://localhost:{scene.web_port}"):
            client = make(url)
            client.create_producer(topic).send(b"here")
            client.close()

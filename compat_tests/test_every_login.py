"""One broker with tokens, passwords, certificates, rights and a role for who shows nothing, on four
ports: three official clients come in with each, and who shows something wrong stays out. What each
is told is what Apache Pulsar tells them.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jwt
import pulsar
import pytest
import trustme
from harness import wire
from harness.go_client import Client as GoClient
from harness.java_client import Java, JavaError
from harness.raw import RawConnection
from harness.tokens import BASIC, PACKAGE, SECRET, TOKENS, data_url, rsa_key, token

from compat_tests.conftest import official_client
from compat_tests.tls_scene import Scene

REFUSALS = (pulsar.PulsarException, JavaError)
PATIENT_S, IMPATIENT_S = 20, 2
LOOKUP_FAILED = 2
AUTHORIZATION_ERROR = 4
SCHEMES = ("pulsar", "pulsar+ssl", "http", "https")
JAVA = "org.apache.pulsar.client.impl.auth.Authentication"
SETTINGS = {
    "authenticationEnabled": "true",
    "authenticationProviders": f"{TOKENS},{BASIC},{PACKAGE}AuthenticationProviderTls",
    "tokenSecretKey": data_url(SECRET),
    # `openssl passwd -apr1 -salt abcdefgh secret`.
    "basicAuthConf": data_url(b"ann:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\n"),
    "anonymousUserRole": "anybody",
    "authorizationEnabled": "true",
    "superUserRoles": "root",
    "maxFailedLoginsPerAddress": "0",
    # Apache Pulsar's standalone is a client of its own.
    "brokerClientAuthenticationPlugin": JAVA + "Token",
    "brokerClientAuthenticationParameters": f"token:{token('root')}",
}


class Login(NamedTuple):
    """What a client shows: a Java class's name with its parameters, and where."""

    kind: str  # Token, Basic, Tls; empty: nothing
    parameters: str = ""
    schemes: tuple[str, ...] = SCHEMES


def of_token(*arguments: Any, **claims: Any) -> Login:
    return Login("Token", "token:" + token(*arguments, **claims))


def of_password(user: str, password: str) -> Login:
    return Login("Basic", json.dumps({"username": user, "password": password}))


def of_certificate(common_name: str) -> Login:
    return Login("Tls", common_name, ("pulsar+ssl", "https"))


GOOD = {
    "token": of_token("ann"),
    "password": of_password("ann", "secret"),
    "certificate": of_certificate("ann"),
    "nothing": Login(""),
}
WRONG = {
    "another key": of_token("ann", SECRET[::-1]),
    "expired": of_token("ann", exp=-10),
    "not valid yet": of_token("ann", nbf=86_400),
    "a private key": of_token("ann", rsa_key(), "RS256"),
    "not signed": Login("Token", "token:" + jwt.encode({"sub": "ann"}, None, algorithm="none")),
    "no token": Login("Token", "token:none"),
    "password": of_password("ann", "Secret"),
    "user": of_password("nobody", "secret"),
    "role without a right": of_token("ben"),
    "certificate of a role without a right": of_certificate("ben"),
    "certificate of another authority": of_certificate("stranger"),
    "certificate that has expired": of_certificate("expired"),
    "certificate that is not valid yet": of_certificate("early"),
}


class Everything(Scene):
    """The broker: `ann` has rights on one namespace, who shows nothing on another one."""

    def __init__(self, directory: Path) -> None:
        super().__init__(
            directory, headers={"Authorization": f"Bearer {token('root')}"}, **SETTINGS
        )
        # Java's client takes no other keys.
        now, day = datetime.datetime.now(datetime.timezone.utc), datetime.timedelta(days=1)
        self.certificates = {
            name: self.issue(name, common_name=role, key_type=trustme.KeyType.RSA, **different)
            for name, role, different in (
                ("ann", "ann", {}),
                ("ben", "ben", {}),
                ("stranger", "ann", {"ca": trustme.CA()}),
                ("expired", "ann", {"not_before": now - 2 * day, "not_after": now - day}),
                ("early", "ann", {"not_before": now + day}),
            )
        }
        for role, namespace in (("ann", "public/default"), ("anybody", "public/open")):
            path = f"/admin/v2/namespaces/{namespace}"
            if namespace != "public/default":
                assert self.broker.request("PUT", path, {})[0] == 204
            status, _ = self.broker.request(
                "POST", f"{path}/permissions/{role}", ["produce", "consume"]
            )
            assert status in (200, 204)

    def url_of(self, scheme: str) -> str:
        ports = (self.broker.port, self.port, self.broker.web_port, self.web_port)
        return f"{scheme}://localhost:{dict(zip(SCHEMES, ports, strict=True))[scheme]}"

    def parameters(self, login: Login) -> str:
        if login.kind != "Tls":
            return login.parameters
        certificate, key = self.certificates[login.parameters]
        return f"tlsCertFile:{certificate},tlsKeyFile:{key}"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Everything]:
    one = Everything(Path(tmp_path_factory.mktemp("logins")))
    yield one
    one.broker.close()


def python_client(scene: Everything, url: str, login: Login, timeout_s: int) -> pulsar.Client:
    made: Any = None
    if login.kind == "Token":
        made = pulsar.AuthenticationToken(login.parameters.partition(":")[2])
    elif login.kind == "Basic":
        made = pulsar.AuthenticationBasic(**json.loads(login.parameters))
    elif login.kind == "Tls":
        made = pulsar.AuthenticationTLS(*map(str, scene.certificates[login.parameters]))
    return official_client(
        url,
        authentication=made,
        tls_trust_certs_file_path=str(scene.trusted),
        tls_validate_hostname=True,
        operation_timeout_seconds=timeout_s,
    )


def go_client(scene: Everything, url: str, login: Login, timeout_s: int) -> GoClient:
    names = {"Token": "token", "Basic": "basic", "Tls": "tls"}
    return GoClient(
        url,
        tls_trust_certs_file_path=str(scene.trusted),
        tls_validate_hostname=True,
        operation_timeout_seconds=timeout_s,
        auth_plugin=names.get(login.kind, ""),
        auth_params=as_json(scene.parameters(login)) if login.kind else "",
    )


def as_json(parameters: str) -> str:
    """Parameters as the Go client wants them."""
    if parameters.startswith("{"):
        return parameters
    return json.dumps(dict(each.split(":", 1) for each in parameters.split(",")))


CLIENTS: dict[str, Callable[[Everything, str, Login, int], Any]] = {
    "python": python_client,
    "go": go_client,
}


@pytest.fixture(params=["python", "go", "java"])
def log_in(request: pytest.FixtureRequest, scene: Everything) -> Callable[..., Any]:
    """Makes a client of the kind."""
    kind = request.param
    if kind != "java":
        client = CLIENTS[kind]
        return lambda scheme, login, timeout_s=PATIENT_S: client(
            scene, scene.url_of(scheme), login, timeout_s
        )
    java: Java = request.getfixturevalue("java")

    def make(scheme: str, login: Login, timeout_s: int = PATIENT_S) -> Any:
        shown = {}
        if login.kind:
            shown = {
                "authPluginClassName": JAVA + login.kind,
                # Java's name for it.
                "authParams": scene.parameters(login).replace('"username"', '"userId"'),
            }
        return java.client(
            scene.url_of(scheme),
            tlsTrustCertsFilePath=str(scene.trusted),
            tlsHostnameVerificationEnable=True,
            operationTimeoutMs=timeout_s * 1000,
            lookupTimeoutMs=timeout_s * 1000,
            **shown,
        )

    return make


def received(consumer: Any) -> bytes:
    message = consumer.receive(10_000)
    value: bytes = message.data() if callable(message.data) else message.data
    return value


@pytest.mark.parametrize("login", GOOD.values(), ids=GOOD)
def test_each_client_comes_in_by_each_port(
    log_in: Callable[..., Any], topic: str, login: Login
) -> None:
    topic = topic if login.kind else topic.replace("public/default", "public/open")
    # The first one gives the topic an owner: Python's client shows no credentials where HTTP
    # redirects it to.
    for number, scheme in enumerate(
        sorted(login.schemes, key=lambda each: each.startswith("http"))
    ):
        client = log_in(scheme, login)
        consumer = client.subscribe(topic, f"s-{number}")
        client.create_producer(topic).send(scheme.encode())
        while received(consumer) != scheme.encode():
            pass  # Java's consumer begins with the messages before
        client.close()


@pytest.mark.parametrize("login", WRONG.values(), ids=WRONG)
def test_who_shows_something_wrong_stays_out(
    log_in: Callable[..., Any], topic: str, login: Login
) -> None:
    for scheme in set(login.schemes) & {"pulsar+ssl", "http"}:
        client = log_in(scheme, login, IMPATIENT_S)
        with pytest.raises(REFUSALS):
            client.create_producer(topic)
        client.close()


def test_who_shows_nothing_has_what_nobody_has(log_in: Callable[..., Any], topic: str) -> None:
    for scheme in ("pulsar", "https"):
        client = log_in(scheme, Login(""), IMPATIENT_S)
        with pytest.raises(REFUSALS):
            client.create_producer(topic)
        client.close()


# --- what each is told ------------------------------------------------------------------------

REFUSED = (3, "Failed to authenticate")
MAY, MAY_NOT = "may", "may not"
# By the namespaces: ann's, and that of who shows nothing.
ANN, BEN, ANYBODY = (MAY, MAY_NOT), (MAY_NOT, MAY_NOT), (MAY_NOT, MAY)
STATUSES = {MAY: 200, MAY_NOT: 403}
OUT = (401, 401)


class Shown(NamedTuple):
    """What is shown, and what comes of it: by the protocol, by REST where the request does not say
    by which method, and where it does.
    """

    method: str
    data: str
    by_protocol: tuple[Any, ...]
    by_rest: tuple[str, str]
    by_named: tuple[Any, Any]
    certificate: str = ""


TOLD = {
    "token": Shown("token", token("ann"), ANN, ANN, ANN),
    "token of a role without a right": Shown("token", token("ben"), BEN, BEN, BEN),
    "token of another key": Shown("token", token("ann", SECRET[::-1]), REFUSED, ANYBODY, OUT),
    "expired token": Shown("token", token("ann", exp=-10), REFUSED, ANYBODY, OUT),
    "no token": Shown("token", "none", REFUSED, ANYBODY, OUT),
    "password": Shown("basic", "ann:secret", ANN, ANN, ANN),
    "another password": Shown("basic", "ann:Secret", REFUSED, ANYBODY, OUT),
    "another user": Shown("basic", "nobody:secret", REFUSED, ANYBODY, OUT),
    "nothing": Shown("", "", ANYBODY, ANYBODY, ANYBODY),
    "an unknown method": Shown("athenz", "ann", ANYBODY, ANYBODY, OUT),
    "certificate": Shown("tls", "", ANN, ANN, ANN, "ann"),
    "certificate of a role without a right": Shown("tls", "", BEN, BEN, BEN, "ben"),
    "no certificate": Shown("tls", "", REFUSED, ANYBODY, OUT),
    "token, and another's certificate": Shown("token", token("ann"), ANN, ANN, ANN, "ben"),
    "expired token, and a certificate": Shown(
        "token", token("b", exp=-1), REFUSED, ANN, OUT, "ann"
    ),
    "password, and another's certificate": Shown("basic", "ann:secret", ANN, ANN, ANN, "ben"),
    "nothing, and a certificate": Shown("", "", ANYBODY, ANN, ANN, "ann"),
}
NAMESPACES = ("public/default", "public/open")


def told_by_protocol(scene: Everything, shown: Shown, is_tls: bool) -> Any:
    port = scene.port if is_tls else scene.broker.port
    with RawConnection(port, handshake=False, timeout_s=30) as raw:
        if is_tls:
            raw.socket = context_of(scene, shown).wrap_socket(
                raw.socket, server_hostname="localhost"
            )
        fields = {3: shown.data.encode(), 5: shown.method} if shown.method else {}
        raw.command(wire.CONNECT, {1: "raw", 4: 21} | fields)
        answer = raw.receive()
        if answer.type == wire.ERROR:
            return answer.number(2), answer.data(3).decode()
        assert answer.type == wire.CONNECTED
        return tuple(looked_up(raw, namespace) for namespace in NAMESPACES)


def looked_up(raw: RawConnection, namespace: str) -> str:
    raw.command(wire.LOOKUP, {1: f"persistent://{namespace}/a", 2: raw.request_id()})
    answer = raw.expect(wire.LOOKUP_RESPONSE)
    if answer.number(3) != LOOKUP_FAILED:
        return MAY
    assert answer.number(6) == AUTHORIZATION_ERROR
    assert answer.data(7).decode() == "Client is not authorized to Lookup"
    return MAY_NOT


def told_by_rest(scene: Everything, shown: Shown, is_tls: bool, is_named: bool) -> tuple[int, int]:
    headers = {}
    if shown.method == "basic":
        headers["Authorization"] = "Basic " + base64.b64encode(shown.data.encode()).decode()
    elif shown.data:
        headers["Authorization"] = f"Bearer {shown.data}"
    if is_named and shown.method:
        headers["X-Pulsar-Auth-Method-Name"] = shown.method
    return asked(scene, shown, is_tls, headers, 0), asked(scene, shown, is_tls, headers, 1)


def asked(
    scene: Everything, shown: Shown, is_tls: bool, headers: dict[str, str], number: int
) -> int:
    """The status of a list of topics."""
    if is_tls:
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "localhost", scene.web_port, timeout=30, context=context_of(scene, shown)
        )
    else:
        connection = http.client.HTTPConnection("localhost", scene.broker.web_port, timeout=30)
    with contextlib.closing(connection):
        path = f"/admin/v2/persistent/{NAMESPACES[number]}"
        connection.request("GET", path, headers=headers)
        return connection.getresponse().status


def context_of(scene: Everything, shown: Shown) -> ssl.SSLContext:
    return scene.context(scene.certificates.get(shown.certificate))


@pytest.mark.parametrize("shown", TOLD.values(), ids=TOLD)
def test_what_each_is_told(scene: Everything, shown: Shown) -> None:
    for is_tls in (True,) if shown.certificate else (True, False):
        assert told_by_protocol(scene, shown, is_tls) == shown.by_protocol
        statuses = tuple(STATUSES[each] for each in shown.by_rest)
        assert told_by_rest(scene, shown, is_tls, is_named=False) == statuses
        statuses = tuple(STATUSES.get(each, each) for each in shown.by_named)
        assert told_by_rest(scene, shown, is_tls, is_named=True) == statuses

"""TLS and logins of the Spark connector, against a broker that lets nobody else in.

What Spark itself adds is the same for all of them: one test has a session, the others ask the
source and the sink as its workers do.
"""

from __future__ import annotations

import base64
import json
import pickle
import threading
import time
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import bcrypt
import pytest
import trustme
from harness.tokens import BASIC, SECRET, TOKENS, data_url, token

from compat_tests.spark_rows import error_of, rows_with
from compat_tests.test_tls import Scene
from pyxbroker.spark.errors import PulsarSparkError, Refused, WrongOption
from pyxbroker.spark.exactly_once import ExactlyOnce
from pyxbroker.spark.options import BATCH, SINK, Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.plan import cluster_of, ends_of, ranges_of, starts_of, stops_of
from pyxbroker.spark.positions import BEGINNING
from pyxbroker.spark.producers import AtLeastOnce
from pyxbroker.spark.range_reader import RangeReader
from pyxbroker.spark.security import Security
from pyxbroker.spark.sequence import Part

pytestmark = [pytest.mark.spark, pytest.mark.pyxbroker]

JAVA = "org.apache.pulsar.client.impl.auth."
PLUGIN, PARAMS = "pulsar.client.authPluginClassName", "pulsar.client.authParams"
TRUSTED = "pulsar.client.tlsTrustCertsFilePath"
PASSWORD = "s3cret-of-ann"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4))
    package = "org.apache.pulsar.broker.authentication."
    one = Scene(
        tmp_path_factory.mktemp("secure"),
        authenticationEnabled="true",
        authenticationProviders=f"{TOKENS},{BASIC},{package}AuthenticationProviderTls",
        authenticationRefreshCheckSeconds="1",
        tokenSecretKey=data_url(SECRET),
        basicAuthConf=data_url(b"ann:" + hashed),
        authorizationEnabled="true",
        superUserRoles="me,ann,certified",
    )
    yield one
    one.broker.close()


def by_token(value: str) -> dict[str, str]:
    return {PLUGIN: f"{JAVA}AuthenticationToken", PARAMS: value}


def given(scene: Scene, topic: str, **more: str) -> dict[str, str]:
    return {
        "service.url": scene.url,
        "topic": topic,
        TRUSTED: str(scene.trusted),
        "pulsar.client.operationTimeoutMs": "5000",
    } | {name.replace("_", "."): value for name, value in more.items()}


def copy(options: dict[str, str]) -> None:
    """Writes three messages by each of both sinks, and reads them."""
    part = Part("query", 0, int(time.time() * 1000))
    for sender in (
        AtLeastOnce(Options(SINK, options), None),
        ExactlyOnce(Options(SINK, options), None, part),
    ):
        try:
            for number in range(3):
                sender.send(Outgoing(options["topic"], "k", b"%d" % number, {}))
            sender.finish()
        finally:
            sender.close()
    assert [row["value"] for row in rows_with(options)] == [b"0", b"1", b"2"] * 2


def test_tokens_passwords_and_certificates_by_the_names_of_java(
    scene: Scene, topic: str, tmp_path: Path
) -> None:
    certificate, key = scene.issue("certified", "localhost", common_name="certified")
    file = tmp_path / "token"
    file.write_text(token("me") + "\n")
    ways = {
        "token": by_token(f"token:{token('me')}"),
        "bare": by_token(token("me")),
        "json": by_token(json.dumps({"token": token("me")})),
        "file": by_token(f"file://{file}"),
        "basic": {
            PLUGIN: f"{JAVA}AuthenticationBasic",
            PARAMS: json.dumps({"userId": "ann", "password": PASSWORD}),
        },
        "pair": {PLUGIN: "basic", PARAMS: f"ann:{PASSWORD}"},
        "tls": {
            PLUGIN: f"{JAVA}AuthenticationTls",
            PARAMS: f"tlsCertFile:{certificate},tlsKeyFile:{key}",
        },
    }
    for name, way in ways.items():
        copy(given(scene, f"{topic}-{name}") | way)


def test_rest_is_asked_with_tls_and_the_same_login_or_one_of_its_own(
    scene: Scene, topic: str
) -> None:
    admin = {"admin.url": f"https://localhost:{scene.web_port}", "bytesPerTask": "1k"}
    copy(given(scene, topic) | by_token(token("me")) | {"topic": topic})
    options = given(scene, topic) | by_token(token("me")) | admin
    assert len(rows_with(options)) == 6
    own = {"pulsar.admin.authPluginClassName": "token", "pulsar.admin.authParams": "token:wrong"}
    text = error_of(lambda: rows_with(options | own))
    assert "401" in text and "pulsar.admin.authParams" in text and "wrong" not in text
    own["pulsar.admin.authParams"] = f"token:{token('me')}"
    assert len(rows_with(options | own)) == 6


def test_who_a_broker_is_has_to_be_known(scene: Scene, topic: str, tmp_path: Path) -> None:
    other = tmp_path / "other.pem"
    trustme.CA().cert_pem.write_to_path(other)
    options = given(scene, topic) | by_token(token("me"))
    copy(options)
    text = error_of(lambda: rows_with(options | {TRUSTED: str(other)}))
    assert "is not trusted" in text and TRUSTED in text
    insecure = {TRUSTED: str(other), "pulsar.client.tlsAllowInsecureConnection": "true"}
    assert len(rows_with(options | insecure)) == 6
    # No certificate names this address.
    elsewhere = {"service.url": f"pulsar+ssl://127.0.0.2:{scene.port}"}
    assert "is not trusted" in error_of(lambda: rows_with(options | elsewhere))
    unchecked = {"pulsar.client.enableTlsHostnameVerification": "false"}
    assert len(rows_with(options | elsewhere | unchecked)) == 6
    plain = {"service.url": scene.url.replace("+ssl", ""), "pulsar.client.useTls": "true"}
    assert len(rows_with(options | plain)) == 6
    text = error_of(lambda: Security(Options(BATCH, options | {TRUSTED: "/nowhere"})).context())
    assert f"{TRUSTED}: /nowhere cannot be used: No such file" in text


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ({}, "AuthenticationError"),
        (by_token(token("me", exp=-10)), "a token may have expired"),
        (by_token(token("me", SECRET[::-1])), "AuthenticationError"),
        ({PLUGIN: "basic", PARAMS: "ann:guess-of-somebody"}, "AuthenticationError"),
        (by_token(token("nobody")), "AuthorizationError"),
    ],
    ids=["nobody", "expired", "another key", "password", "no right"],
)
def test_who_may_not_is_told_in_a_sentence_without_secrets(
    scene: Scene, topic: str, way: dict[str, str], sentence: str
) -> None:
    copy(given(scene, topic) | by_token(token("me")))
    begin = time.monotonic()
    text = error_of(lambda: rows_with(given(scene, topic) | way))
    assert sentence in text
    assert way.get(PARAMS, "nothing") not in text and "guess" not in text
    sender = AtLeastOnce(Options(SINK, given(scene, topic) | way), None)
    try:
        with pytest.raises(PulsarSparkError, match="cannot be written") as caught:
            sender.send(Outgoing(topic, None, b"", {}))
        assert way.get(PARAMS, "nothing") not in str(caught.value)
    finally:
        sender.close()
    assert time.monotonic() - begin < 20


def test_a_token_that_expires_in_mid_stream_is_read_again(
    scene: Scene, topic: str, tmp_path: Path
) -> None:
    copy(given(scene, topic) | by_token(token("me")))
    file = tmp_path / "token"
    file.write_text(token("me", exp=3))
    options = Options(BATCH, given(scene, topic) | by_token(f"file:{file}"))
    with cluster_of(options) as cluster:
        connection = cluster.reader(topic, BEGINNING)
        file.write_text(token("me", exp=60))
        until = time.monotonic() + 6
        while time.monotonic() < until:
            assert connection.partitions(topic) == 0
            time.sleep(0.3)
        connection.close()
        # A connection that nobody reads cannot answer; it is made anew when it is needed.
        assert cluster.schema(topic) is None


def test_a_token_that_expires_for_good_ends_a_task(
    scene: Scene, topic: str, tmp_path: Path
) -> None:
    copy(given(scene, topic) | by_token(token("me")))
    options = Options(BATCH, given(scene, topic) | by_token(token("me", exp=2)))
    ends = ends_of(options)
    (wanted,) = ranges_of(options, starts_of(options, ends), stops_of(options, ends))
    time.sleep(4)
    reader = RangeReader(options, wanted)
    begin = time.monotonic()
    with pytest.raises(Refused, match="a token may have expired"):
        list(reader)
    assert time.monotonic() - begin < 10
    reader.close()


# --- OAuth2 ---------------------------------------------------------------------------------------


class OAuth2Server(ThreadingHTTPServer):
    """Gives tokens to one client."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _OAuth2)
        self.asked: list[dict[str, list[str]]] = []
        self.life_s = 3600
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _OAuth2(BaseHTTPRequestHandler):
    server: OAuth2Server

    def do_GET(self) -> None:
        self._answer(200, {"token_endpoint": f"{self.server.url}/token"})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        form = urllib.parse.parse_qs(body)
        self.server.asked.append(form)
        if form["client_secret"] != ["secret-of-the-client"]:
            return self._answer(401, {"error": "invalid_client"})
        life_s = self.server.life_s
        self._answer(200, {"access_token": token("me", exp=life_s), "expires_in": life_s})

    def _answer(self, status: int, body: Any) -> None:
        self.send_response(status)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def oauth2() -> Iterator[OAuth2Server]:
    server = OAuth2Server()
    yield server
    server.shutdown()
    server.server_close()


def by_oauth2(server: OAuth2Server, secret: str = "secret-of-the-client") -> dict[str, str]:
    key = json.dumps({"client_id": "spark", "client_secret": secret}).encode()
    params = {
        "issuerUrl": server.url,
        "privateKey": "data:application/json;base64," + base64.b64encode(key).decode(),
        "audience": "urn:pulsar",
    }
    return {PLUGIN: f"{JAVA}oauth2.AuthenticationOAuth2", PARAMS: json.dumps(params)}


def test_a_token_of_an_oauth2_server(scene: Scene, topic: str, oauth2: OAuth2Server) -> None:
    copy(given(scene, topic) | by_oauth2(oauth2))
    assert len(oauth2.asked) == 1, "one token is for all of a process"
    assert oauth2.asked[0] == {
        "grant_type": ["client_credentials"],
        "client_id": ["spark"],
        "client_secret": ["secret-of-the-client"],
        "audience": ["urn:pulsar"],
    }
    wrong = given(scene, topic) | by_oauth2(oauth2, "another-secret")
    text = error_of(lambda: rows_with(wrong))
    assert "the OAuth2 server refuses" in text and "another-secret" not in text


# --- secrets --------------------------------------------------------------------------------------


def test_no_representation_has_a_secret(scene: Scene, topic: str) -> None:
    for way in (by_token("token:hidden-one"), {PLUGIN: "basic", PARAMS: "ann:hidden-one"}):
        options = Options(BATCH, given(scene, topic) | way)
        security = Security(options)
        shown = [options, options[PARAMS], security, security.authentication, vars(options)]
        assert not [each for each in shown if "hidden-one" in repr(each)]
        assert Security(pickle.loads(pickle.dumps(options))).credentials()


@pytest.mark.parametrize(
    ("way", "sentence"),
    [
        ({PLUGIN: "AuthenticationSasl", PARAMS: "hidden"}, "supported are AuthenticationToken"),
        ({PLUGIN: "token"}, f"{PLUGIN} is given, and {PARAMS} is not"),
        ({PARAMS: "hidden"}, f"{PARAMS} is given, and {PLUGIN} is not"),
        ({PLUGIN: "basic", PARAMS: "hidden"}, '{"userId": "...", "password": "..."}'),
        ({PLUGIN: "basic", PARAMS: "{hidden"}, "has to be a JSON object"),
        ({PLUGIN: "tls", PARAMS: "hidden"}, "tlsCertFile:/path,tlsKeyFile:/path"),
        ({PLUGIN: "oauth2", PARAMS: '{"hidden": 1}'}, "issuerUrl, privateKey"),
        ({"pulsar.client.tlsKeyFilePath": "/x"}, "have to be given together"),
    ],
)
def test_what_cannot_be_a_login_is_told_without_it(way: dict[str, str], sentence: str) -> None:
    with pytest.raises(WrongOption) as caught:
        Security(Options(BATCH, {"service.url": "pulsar://a", "topic": "a"} | way))
    assert sentence in str(caught.value) and "hidden" not in str(caught.value)


# --- Spark ----------------------------------------------------------------------------------------


def test_spark_reads_and_writes_with_tls_and_a_token(
    spark: Any, scene: Scene, topic: str, tmp_path: Path
) -> None:
    file = tmp_path / "token"
    file.write_text(token("me"))
    options = given(scene, topic) | by_token(f"file:{file}")
    frame = spark.createDataFrame([("k", "one")], "__key string, value string")
    frame.write.format("pulsar").options(**options).mode("append").save()
    rows = spark.read.format("pulsar").options(**options)
    rows = rows.option("admin.url", f"https://localhost:{scene.web_port}").load()
    assert [bytes(row.value) for row in rows.collect()] == [b"one"]
    wrong = spark.read.format("pulsar").options(**(options | by_token("token:hidden-one")))
    text = error_of(wrong.load)
    assert "a token may have expired" in text and "hidden-one" not in text
    assert "hidden-one" not in error_of(
        frame.write.format("pulsar")
        .options(**(options | by_token("token:hidden-one")))
        .mode("append")
        .save
    )

"""Secrets that are given wrongly: in no form does the connector of Spark show a part of one."""

from __future__ import annotations

import base64
import functools
import json
import logging
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from harness.brokers import Broker
from harness.tokens import SECRET, TOKENS, data_url, token

from compat_tests.conftest import broker_kind
from compat_tests.spark_rows import error_of
from pyxbroker.spark.errors import PulsarSparkError
from pyxbroker.spark.ledgers import ledgers_of
from pyxbroker.spark.options import BATCH, SINK, Options
from pyxbroker.spark.outgoing import Outgoing
from pyxbroker.spark.plan import cluster_of
from pyxbroker.spark.producers import AtLeastOnce
from pyxbroker.spark.security import Security

pytestmark = [pytest.mark.spark, pytest.mark.pyxbroker]

PLUGIN, PARAMS = "pulsar.client.authPluginClassName", "pulsar.client.authParams"
CERTIFICATE, KEY = "pulsar.client.tlsCertificateFilePath", "pulsar.client.tlsKeyFilePath"
FIRST, SECOND = "Qx7-first-Part.of_it", "Zw9-second-Part.of_it"
"""Of each secret."""
PART = 6
"""So many of its characters may stand nowhere."""
PEM = f"-----BEGIN PRIVATE KEY-----\n{FIRST}{SECOND}\n-----END PRIVATE KEY-----\n"


def is_shown(text: str, secret: str) -> bool:
    return any(secret[at : at + PART] in text for at in range(len(secret) - PART + 1))


def coded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


class Case(NamedTuple):
    """How a secret is given; where it is in a file, a part of the options is `{file}`."""

    options: dict[str, str]
    secrets: tuple[str, ...] = (FIRST, SECOND)
    file: bytes = b""


def auth(plugin: str, params: str, *more: str, file: bytes = b"") -> Case:
    return Case({PLUGIN: plugin, PARAMS: params}, (FIRST, SECOND, *more), file)


def oauth2(key: str, *more: str, issuer: str = "http://127.0.0.1:1", file: bytes = b"") -> Case:
    params = {"issuerUrl": issuer, "privateKey": key}
    return auth("oauth2", json.dumps(params), *more, file=file)


WHOLE = json.dumps({"client_id": "spark", "client_secret": FIRST + SECOND})
HALF = f'{{"client_id": "spark", "client_secret": "{FIRST}'
CASES = {
    "token of two lines": auth("token", f"token:{FIRST}\n{SECOND}"),
    "token with a blank": auth("token", f"{FIRST} {SECOND}"),
    "token that is no ASCII": auth("token", f"{FIRST}é{SECOND}"),
    "token in JSON of another name": auth("token", json.dumps({"jwt": FIRST})),
    "token in half of a JSON object": auth("token", f'{{"token": "{FIRST}'),
    "token as the name of a file": auth("token", f"file:{FIRST}.{SECOND}"),
    "tokens as the name of a file": auth("token", f"file:///{FIRST}\n{SECOND}"),
    "long token as the name of a file": auth("token", f"file:///{(FIRST + SECOND) * 50}"),
    "token file of two lines": auth("token", "file://{file}", file=f"{FIRST}\n{SECOND}\n".encode()),
    "token file with a carriage return": auth(
        "token", "file://{file}", file=f"{FIRST}\r{SECOND}".encode()
    ),
    "token file that is no text": auth(
        "token", "file://{file}", file=FIRST.encode() + b"\xff\x00" + SECOND.encode()
    ),
    "token file that is large": auth(
        "token", "file://{file}", file=(FIRST + SECOND).encode() * 5_000
    ),
    "token file that is empty": auth("token", "file://{file}"),
    "password alone": auth("basic", FIRST + SECOND),
    "password of two lines": auth("basic", f"ann:{FIRST}\n{SECOND}"),
    "password in half of a JSON object": auth("basic", f'{{"userId": "ann", "password": "{FIRST}'),
    "password of another name": auth("basic", json.dumps({"userId": "ann", "pass": FIRST})),
    "password that is a list": auth("basic", json.dumps({"userId": "ann", "password": [FIRST]})),
    "credentials within the JSON": oauth2(WHOLE),
    "credentials as an object": auth(
        "oauth2", json.dumps({"issuerUrl": "http://127.0.0.1:1", "privateKey": json.loads(WHOLE)})
    ),
    "credentials in base64": oauth2(coded(WHOLE), coded(WHOLE)),
    "credentials as the name of a file": oauth2(f"file:{WHOLE}"),
    "credentials in a data URL without a comma": oauth2(f"data:{WHOLE.replace(',', ';')}"),
    "credentials in a data URL that is cut": oauth2(
        f"data:application/json;base64,{coded(WHOLE)[:-3]}", coded(WHOLE)
    ),
    "credentials in a data URL of half": oauth2(f"data:application/json,{HALF}"),
    "credentials in a data URL without a name": oauth2(
        "data:application/json," + json.dumps({"client_id": "spark", "secret": FIRST})
    ),
    "credentials in a file of half": oauth2("file://{file}", file=HALF.encode()),
    "credentials in a file that is no text": oauth2("file://{file}", file=b"\xff" + WHOLE.encode()),
    "credentials in a file for nobody": oauth2("file://{file}", file=WHOLE.encode()),
    "credentials in the issuer": oauth2(
        "file://{file}", issuer=f"https://spark:{FIRST}{SECOND}@127.0.0.1:1", file=WHOLE.encode()
    ),
    "credentials as the issuer": oauth2(
        "file://{file}", issuer=f"{FIRST}\n{SECOND}", file=WHOLE.encode()
    ),
    "key within the parameters": auth("tls", f"tlsCertFile:/nowhere,tlsKeyFile:{PEM}"),
    "key in JSON": auth("tls", json.dumps({"tlsCertFile": "/nowhere", "tlsKeyFile": PEM})),
    "key without its name": auth("tls", PEM),
    "passphrase beside the key": auth(
        "tls", f"tlsCertFile:/nowhere,tlsKeyFile:/nowhere,tlsKeyPassword:{FIRST}{SECOND}"
    ),
    "key instead of its file": Case({CERTIFICATE: "/nowhere", KEY: PEM}),
    "key on one line instead of its file": Case({CERTIFICATE: "/nowhere", KEY: FIRST + SECOND}),
    "key file that is none": Case({CERTIFICATE: "{file}", KEY: "{file}"}, file=PEM.encode()),
    "passphrase as an option": Case({"pulsar.client.tlsKeyPassphrase": FIRST + SECOND}),
    "map of parameters": Case({"pulsar.client.authParamMap": json.dumps({"token": FIRST})}),
    "parameters without a class": Case({PARAMS: FIRST + SECOND}),
    "password in the URL": Case({"service.url": f"pulsar://ann:{FIRST}/{SECOND}@127.0.0.1:1"}),
}
SINK_CASES = {
    "key of encryption itself": Case(
        {
            "pulsar.producer.encryptionKeys": "mine",
            "pulsar.producer.defaultCryptoKeyReader": f"data:application/x-pem-file,{PEM}",
        }
    ),
    "long key of encryption itself": Case(
        {
            "pulsar.producer.encryptionKeys": "mine",
            "pulsar.producer.defaultCryptoKeyReader": (FIRST + SECOND) * 50,
        }
    ),
    "key of encryption that is none": Case(
        {
            "pulsar.producer.encryptionKeys": "mine",
            "pulsar.producer.defaultCryptoKeyReader": "{file}",
        },
        file=PEM.encode(),
    ),
}
SOURCE_CASES = {
    "key of decryption itself": Case({"pulsar.reader.defaultCryptoKeyReader": f"data:,{PEM}"}),
    "admin's token of two lines": Case(
        {
            "pulsar.admin.authPluginClassName": "token",
            "pulsar.admin.authParams": f"token:{FIRST}\n{SECOND}",
        }
    ),
    "password in admin's URL": Case({"admin.url": f"http://ann:{FIRST}/{SECOND}@127.0.0.1:1"}),
}


def given(case: Case, broker: Broker, topic: str, tmp_path: Path) -> dict[str, str]:
    file = tmp_path / "given"
    file.write_bytes(case.file)
    named = {name: value.replace("{file}", str(file)) for name, value in case.options.items()}
    basis = {"service.url": broker.url, "topic": topic, "pulsar.client.operationTimeoutMs": "1000"}
    return basis | named


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that lets in who has a token."""
    settings = {
        "authenticationEnabled": "true",
        "authenticationProviders": TOKENS,
        "tokenSecretKey": data_url(SECRET),
    }
    one = Broker(broker_kind(), tmp_path_factory.mktemp("guarded"), settings=settings)
    try:
        one.start()
        yield one
    finally:
        one.close()


def send(options: Options, topic: str) -> None:
    sender = AtLeastOnce(options, None)
    try:
        sender.send(Outgoing(topic, "k", b"", {}))
        sender.finish()
    finally:
        sender.close()


def ask(options: Options) -> None:
    with cluster_of(options) as cluster:
        cluster.any_broker()


def uses(role: str, options: dict[str, str], topic: str) -> Iterator[Callable[[], Any]]:
    """What shows a secret to somebody; each by itself, as a task may be who finds it is wrong."""
    yield lambda: Options(role, options)
    read = Options(role, options)
    yield lambda: Security(read)
    for of_rest in (False, True):
        security = Security(read, of_rest)
        yield security.credentials
        yield security.header
        yield security.context
        rest = "http://127.0.0.1:1"
        yield functools.partial(ledgers_of, rest, topic, 1.0, security)
        yield functools.partial(repr, (read, security, security.authentication))
    yield lambda: ask(read)
    if role == SINK:
        yield lambda: send(read, topic)


def told(role: str, options: dict[str, str], topic: str) -> Iterator[str]:
    """All that is said."""
    try:
        for use in uses(role, options, topic):
            try:
                found = use()
            except PulsarSparkError:
                yield traceback.format_exc()
            else:
                yield found if isinstance(found, str) and found.startswith("(<") else ""
    except PulsarSparkError:
        yield traceback.format_exc()


ALL = [
    *(
        pytest.param(case, role, id=f"{name}, {role}")
        for role in (BATCH, SINK)
        for name, case in CASES.items()
    ),
    *(pytest.param(case, SINK, id=name) for name, case in SINK_CASES.items()),
    *(pytest.param(case, BATCH, id=name) for name, case in SOURCE_CASES.items()),
]


@pytest.mark.parametrize(("case", "role"), ALL)
def test_a_secret_that_is_given_wrongly_is_told_without_it(
    guarded: Broker,
    topic: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    case: Case,
    role: str,
) -> None:
    """Anything but a PulsarSparkError fails the test, too."""
    caplog.set_level(logging.DEBUG)
    texts = list(told(role, given(case, guarded, topic, tmp_path), topic))
    assert any("Traceback" in each for each in texts), "nothing is wrong with it"
    text = "\n".join([*texts, caplog.text, *capfd.readouterr()])
    assert not [each for each in case.secrets if is_shown(text, each)], text


def test_the_passphrase_of_a_key_is_not_asked_for(
    guarded: Broker, topic: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """OpenSSL would ask on the terminal."""
    issued = trustme.CA().issue_cert("localhost")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    read = serialization.load_pem_private_key(issued.private_key_pem.bytes(), None)
    key.write_bytes(
        read.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption((FIRST + SECOND).encode()),
        )
    )
    options = {"service.url": guarded.url, "topic": topic, CERTIFICATE: str(certificate)}
    security = Security(Options(BATCH, options | {KEY: str(key)}))
    text = error_of(security.context)
    assert "the key is encrypted" in text and CERTIFICATE in text
    assert not is_shown(text + "".join(capfd.readouterr()), key.read_text().splitlines()[2])


# --- Spark ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        *("token file of two lines", "credentials within the JSON", "password of two lines"),
        *("key instead of its file", "password in the URL"),
    ],
)
def test_spark_shows_no_secret_on_its_driver(
    spark: Any, guarded: Broker, topic: str, tmp_path: Path, name: str
) -> None:
    case = CASES[name]
    options = given(case, guarded, topic, tmp_path)
    frame = spark.createDataFrame([("k", "one")], "__key string, value string")
    write = frame.write.format("pulsar").options(**options).mode("append")
    for do in (write.save, spark.read.format("pulsar").options(**options).load):
        text = error_of(do)
        assert not [each for each in case.secrets if is_shown(text, each)], text


@pytest.mark.parametrize("key", ["string", "binary"])
@pytest.mark.parametrize("content", [f"{FIRST}\n{SECOND}", f"{FIRST}é{SECOND}", ""])
def test_spark_shows_no_secret_of_a_task(
    spark: Any, guarded: Broker, topic: str, tmp_path: Path, key: str, content: str
) -> None:
    """A file with a good token, which is another one when a task reads it; keys that are bytes go
    by the connector's own producer.
    """
    file = tmp_path / "token"
    file.write_text(token("me"))
    path = str(file)

    def rows(_: Any) -> Iterator[Any]:
        Path(path).write_text(content)
        yield ("k" if key == "string" else b"\xff"), "one"

    numbers = spark.sparkContext.parallelize([0], 1)
    frame = spark.createDataFrame(numbers.mapPartitions(rows), f"__key {key}, value string")
    options = given(Case({PLUGIN: "token", PARAMS: f"file://{path}"}), guarded, topic, tmp_path)
    text = error_of(frame.write.format("pulsar").options(**options).mode("append").save)
    assert not is_shown(text, FIRST) and not is_shown(text, SECOND), text
    assert file.read_text() == content
    assert "a token is one line of ASCII characters without blanks" in text

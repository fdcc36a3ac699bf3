"""The options of commands that connect: what they and client.conf say, and sentences of errors."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pyxbroker.cli import Parser, connecting, contexts, login_options
from pyxbroker.client.authentication import BasicAuthentication, TokenAuthentication
from pyxbroker.client.errors import (
    AnswerTimeout,
    BrokerRefused,
    ClientError,
    ConnectFailed,
    ProtocolFault,
    TlsFailed,
    UntrustedCertificate,
)
from pyxbroker.client.settings import ClientSettings

CONF = """
authPlugin=org.apache.pulsar.client.impl.auth.AuthenticationBasic
authParams={"userId": "ann", "password": "x"}
tlsTrustCertsFilePath=/ca.pem
tlsAllowInsecureConnection=true
tlsEnableHostnameVerification=false
tlsCertificateFilePath=/own.pem
tlsKeyFilePath=/own.key
useKeyStoreTls=
"""


def settings(*arguments: str, url: str = "pulsar://a:1,b:2") -> ClientSettings:
    parser = Parser("x", "x")
    login_options.add_service_url(parser, "--url")
    login_options.add_login_options(parser)
    options = parser.parse(("--url", url, *arguments))
    login_options.complete(options)
    connecting.check_service_url(options.service_url, "--url")
    return connecting.client_settings(options, options.service_url)


@pytest.fixture(autouse=True)
def no_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(contexts.CLIENT_CONF, raising=False)


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "client.conf").write_text(CONF)
    monkeypatch.setenv(contexts.CLIENT_CONF, str(tmp_path / "client.conf"))


def test_what_the_command_line_lacks_is_in_client_conf(conf: None) -> None:
    found = settings()
    assert isinstance(found.authentication, BasicAuthentication)
    assert found.tls.trusted == "/ca.pem" and found.tls.accept_untrusted
    assert not found.tls.verify_host
    assert found.tls.own is not None
    assert (found.tls.own.certificate, found.tls.own.key) == ("/own.pem", "/own.key")
    found = settings("--token", "t", "--tlsTrustCertsFilePath", "/other.pem")
    assert isinstance(found.authentication, TokenAuthentication)
    assert found.tls.trusted == "/other.pem"
    found = settings("--auth-plugin", "token", "--auth-params", "token:t")
    assert isinstance(found.authentication, TokenAuthentication)


def test_certificates_are_verified_unless_told_otherwise() -> None:
    found = settings().tls
    assert (found.trusted, found.accept_untrusted, found.verify_host) == (None, False, True)
    assert settings("--tls-allow-insecure").tls.accept_untrusted


@pytest.mark.parametrize(
    ("arguments", "url", "sentence"),
    [
        ((), "http://a", "--url is 'http://a'; expected pulsar://HOST:PORT or"),
        ((), "pulsar://a:x", "a port is a number"),
        (("--auth-plugin", "x"), "pulsar://a", "expected token, basic, tls, oauth2"),
        (("--auth-params", "x:y"), "pulsar://a", "--auth-params needs --auth-plugin"),
        (("--auth-plugin", "basic", "--auth-params", "x"), "pulsar://a", "--auth-params has to be"),
    ],
)
def test_wrong_usage_is_a_sentence_and_status_2(
    arguments: tuple[str, ...],
    url: str,
    sentence: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        settings(*arguments, url=url)
    assert ended.value.code == 2
    assert sentence in capsys.readouterr().err


def test_a_client_conf_that_cannot_be_read_ends_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(contexts.CLIENT_CONF, "/does/not/exist")
    with pytest.raises(SystemExit) as ended:
        settings()
    assert ended.value.code == 1
    assert "the file that PULSAR_CLIENT_CONF names" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("url", "error", "words"),
    [
        ("pulsar://a:1", ConnectFailed("pulsar://a:1", "refused"), ("No broker answers",)),
        ("pulsar://a:1", TlsFailed("pulsar://a:1", "x"), ("pulsar+ssl://", "brokerServicePortTls")),
        ("pulsar://a:1", ProtocolFault("pulsar://a:1", "x"), ("brokerServicePort",)),
        ("pulsar://a:1", AnswerTimeout("pulsar://a:1"), ("does not answer",)),
        ("pulsar://a:1", BrokerRefused("AuthenticationError", "x"), ("--token",)),
        ("pulsar://a:1", BrokerRefused("TopicNotFound", "x"), ("TopicNotFound",)),
        ("pulsar://a", UntrustedCertificate("pulsar://a", "x"), ("--tls-trust-cert-path",)),
    ],
)
def test_errors_say_what_to_do(url: str, error: ClientError, words: tuple[str, ...]) -> None:
    sentence = connecting.failure(ClientSettings(url), error)
    assert all(word in sentence for word in words), sentence


def test_sending_one_message_imports_little() -> None:
    """The start of the process is most of the time that one message takes."""
    program = "import sys, pyxbroker.cli.client.produce; print(*sys.modules)"
    modules = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "pyxbroker.client.producer" in modules
    late = {"urllib.request", "http.client", "email", "fastavro", "pyxbroker.client.oauth2"}
    assert not late & set(modules)

"""Credentials of the client: how they are given, read again, and never shown in errors."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from harness.issuer import DISCOVERY, TOKENS, Issuer
from harness.issuer import SECRET as ISSUED_SECRET

from pyxbroker.client import oauth2
from pyxbroker.client.authentication import (
    METHODS,
    Authentication,
    TlsAuthentication,
    TokenAuthentication,
    method_named,
)
from pyxbroker.client.errors import BadSetting, ClientError, CredentialsError, IssuerUnreachable
from pyxbroker.client.settings import ClientSettings
from pyxbroker.client.tls import CertificateFiles, TlsSettings

SECRET = "S3CRETIVE"


def made(method: str, params: str) -> Authentication:
    return METHODS[method]("authParams", params)


@pytest.mark.parametrize(
    ("method", "params", "credentials", "header"),
    [
        ("token", "token:a.b", b"a.b", "Bearer a.b"),
        ("token", "a.b", b"a.b", "Bearer a.b"),
        ("token", '{"token": "a.b"}', b"a.b", "Bearer a.b"),
        ("basic", "ann:x:y", b"ann:x:y", "Basic " + base64.b64encode(b"ann:x:y").decode()),
        ("basic", '{"userId": "a", "password": "b"}', b"a:b", "Basic YTpi"),
    ],
)
def test_credentials(method: str, params: str, credentials: bytes, header: str) -> None:
    login = made(method, params)
    assert (login.credentials(), login.header()) == (credentials, header)


def test_methods_have_the_names_of_javas_classes() -> None:
    for name in ("token", "AuthenticationToken", "org.apache.x.auth.AuthenticationToken"):
        assert method_named(name) is TokenAuthentication
    assert method_named("AuthenticationSasl") is None


def test_a_token_file_is_read_each_time(tmp_path: Path) -> None:
    file = tmp_path / "token"
    login = made("token", f"file://{file}")
    for text in ("one", "two\n"):
        file.write_text(text)
        assert asyncio.run(login.current_credentials()) == text.strip().encode()


def test_a_certificate_is_given_by_its_files() -> None:
    login = TlsAuthentication("p", "tlsCertFile:/a,tlsKeyFile:/b")
    found = login.certificate()
    assert found is not None and (found.certificate, found.key) == ("/a", "/b")
    assert login.header() == ""


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("token", f"token:{SECRET} {SECRET}"),
        ("token", f"file:///{SECRET}"),
        ("token", '{"token": 1, "x": "' + SECRET + '"}'),
        ("token", "{" + SECRET),
        ("basic", SECRET),
        ("basic", '{"userId": "", "password": "' + SECRET + '"}'),
        ("tls", f"tlsCertFile:-----BEGIN {SECRET},tlsKeyFile:/x"),
        ("oauth2", f'{{"issuerUrl": "https://a:{SECRET}@b", "privateKey": "data:,x"}}'),
        ("oauth2", f'{{"issuerUrl": "https://a", "privateKey": "data:,{SECRET}"}}'),
        ("oauth2", f'{{"issuerUrl": "https://a", "privateKey": "file:///{SECRET}"}}'),
    ],
)
def test_no_error_and_no_representation_has_a_secret(method: str, params: str) -> None:
    try:
        login = made(method, params)
    except BadSetting as error:
        text = str(error)
    else:
        shown = repr(login) + repr(ClientSettings("pulsar://a", authentication=login))
        with pytest.raises(ClientError) as caught:
            login.credentials()
        text = shown + str(caught.value)
    assert SECRET not in text


def test_files_of_tls_that_cannot_be_used_are_named_by_their_setting(tmp_path: Path) -> None:
    with pytest.raises(BadSetting, match="trustCerts: /nowhere cannot be used: No such file"):
        TlsSettings("/nowhere", "trustCerts").context()
    broken = tmp_path / "x.pem"
    broken.write_text("x")
    own = CertificateFiles(str(broken), str(broken), "the client's certificate")
    with pytest.raises(BadSetting, match="the client's certificate cannot be used"):
        TlsSettings(own=own).context()


# --- OAuth2 ---------------------------------------------------------------------------------------


@pytest.fixture
def issuer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Issuer]:
    monkeypatch.setattr(oauth2, "_tokens", {})
    one = Issuer(None)
    yield one
    one.close()


def of_issuer(issuer: Issuer, secret: str) -> Authentication:
    key = json.dumps({"client_id": "me", "client_secret": secret}).encode()
    url = "data:;base64," + base64.b64encode(key).decode()
    params: dict[str, Any] = {"issuerUrl": issuer.url, "privateKey": url, "audience": "urn:broker"}
    return made("oauth2", json.dumps(params))


def test_a_token_of_an_oauth2_server_serves_until_shortly_before_its_end(
    issuer: Issuer, monkeypatch: pytest.MonkeyPatch
) -> None:
    login = of_issuer(issuer, ISSUED_SECRET)
    first = asyncio.run(login.current_credentials())
    assert login.credentials() == first and login.header() == f"Bearer {first.decode()}"
    assert issuer.asked[TOKENS] == 1
    monkeypatch.setattr(oauth2, "EARLY_S", 1e9)
    monkeypatch.setattr(oauth2, "_tokens", {})
    login.credentials()
    assert issuer.asked[TOKENS] == 2


def test_an_oauth2_server_that_refuses_or_is_away_is_told_without_the_secret(
    issuer: Issuer,
) -> None:
    with pytest.raises(CredentialsError, match="refuses") as caught:
        of_issuer(issuer, SECRET).credentials()
    assert SECRET not in str(caught.value)
    issuer.bodies[DISCOVERY] = b"[]"
    with pytest.raises(CredentialsError, match="no JSON object"):
        of_issuer(issuer, SECRET).credentials()
    key = 'data:,{"client_id": 1, "client_secret": 2}'
    params = {"issuerUrl": "http://127.0.0.1:1", "privateKey": key}
    with pytest.raises(IssuerUnreachable):
        made("oauth2", json.dumps(params)).credentials()

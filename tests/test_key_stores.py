"""Java's key stores: files of keytool's, files made here, and files that are damaged."""

from __future__ import annotations

import hashlib
import os
import ssl
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate
from harness.key_stores import key_stores

from certificates import authority, client_context
from pyxbroker.base.key_stores import (
    KEY_BYTES_MAX,
    STORE_BYTES_MAX,
    SUNS_CIPHER,
    KeyStoreError,
    parse_key_store,
    read_key_store,
)
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.tls import TlsContexts, TlsSettings, make_context
from pyxbroker.settings.config import Config
from test_tls import client_with, shake_hands

FILES = key_stores()
WORDS = "s3cret words"
TRUST_WORDS = "changeit"


# --- stores of the tests' own -----------------------------------------------------------------


def der(tag: int, data: bytes) -> bytes:
    length = len(data)
    head = bytes([length]) if length < 128 else b"\x84" + struct.pack(">I", length)
    return bytes([tag]) + head + data


def protect(key: bytes, password: str) -> bytes:
    """As Java's key stores do."""
    words, salt = password.encode("utf-16-be"), os.urandom(20)
    block, stream = salt, b""
    while len(stream) < len(key):
        block = hashlib.sha1(words + block).digest()
        stream += block
    hidden = bytes(a ^ b for a, b in zip(key, stream, strict=False))
    data = salt + hidden + hashlib.sha1(words + key).digest()
    return der(0x30, SUNS_CIPHER + der(0x04, data))


def text(value: str) -> bytes:
    return struct.pack(">H", len(value.encode())) + value.encode()


def sealed(body: bytes, password: str) -> bytes:
    words = password.encode("utf-16-be") + b"Mighty Aphrodite"
    return body + hashlib.sha1(words + body).digest()


def jks(
    password: str,
    keys: list[tuple[bytes, list[bytes]]],
    trusted: list[bytes],
    version: int = 2,
    key_password: str | None = None,
) -> bytes:
    def certificate(data: bytes) -> bytes:
        kind = text("X.509") if version == 2 else b""
        return kind + struct.pack(">I", len(data)) + data

    body = b"\xfe\xed\xfe\xed" + struct.pack(">II", version, len(keys) + len(trusted))
    for key, chain in keys:
        protected = protect(key, password if key_password is None else key_password)
        body += struct.pack(">I", 1) + text("ä key") + bytes(8)
        body += struct.pack(">I", len(protected)) + protected
        body += struct.pack(">I", len(chain)) + b"".join(map(certificate, chain))
    for each in trusted:
        body += struct.pack(">I", 2) + text("a") + bytes(8) + certificate(each)
    return sealed(body, password)


class Issued:
    """A key and its certificate of an authority, DER."""

    def __init__(self, ca: trustme.CA, *names: str) -> None:
        issued = ca.issue_cert(*(names or ("localhost",)))
        self.certificate = load_pem_x509_certificate(issued.cert_chain_pems[0].bytes())
        self.private: Any = load_pem_private_key(issued.private_key_pem.bytes(), None)
        self.key = self.private.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        self.chain = [self.certificate.public_bytes(Encoding.DER), der_of(ca)]

    def write(self, path: Path, kind: str, password: str) -> None:
        if kind == "JKS":
            path.write_bytes(jks(password, [(self.key, self.chain)], []))
            return
        encryption = BestAvailableEncryption(password.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"a", self.private, self.certificate, None, encryption
            )
        )


def der_of(ca: trustme.CA) -> bytes:
    return load_pem_x509_certificate(ca.cert_pem.bytes()).public_bytes(Encoding.DER)


def settings_of(path: Path, password: str = WORDS, **more: Any) -> TlsSettings:
    return TlsSettings(
        Config(
            tlsEnabledWithKeyStore=True,
            tlsKeyStore=str(path),
            tlsKeyStorePassword=password,
            **more,
        )
    )


# --- keytool's files --------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["jks", "p12"])
def test_stores_of_keytool_serve_and_are_believed(kind: str) -> None:
    trust = FILES / f"trust.{kind}"
    # Without a password a JKS file is read, and not checked.
    for password in (TRUST_WORDS, "") if kind == "jks" else (TRUST_WORDS,):
        context = make_context(
            settings_of(
                FILES / f"server.{kind}",
                tlsTrustStore=str(trust),
                tlsTrustStorePassword=password,
                tlsRequireTrustedClientCertOnConnect=True,
            )
        )
        client = ssl.create_default_context(cafile=str(FILES / f"{kind}.pem"))
        pem = read_key_store(str(FILES / "server.jks"), WORDS).pem_of_key()
        load(client, pem)
        assert shake_hands(context, client)[0] is not None
        stranger = ssl.create_default_context(cafile=str(FILES / f"{kind}.pem"))
        trustme.CA().issue_cert("a@b.c").configure_cert(stranger)
        with pytest.raises(ssl.SSLError):
            shake_hands(context, stranger)


def load(context: ssl.SSLContext, pem: bytes) -> None:
    with trustme.Blob(pem).tempfile() as path:
        context.load_cert_chain(path)


@pytest.mark.parametrize(
    ("name", "password", "keys", "trusted"),
    [
        ("server.jks", WORDS, 1, 0),
        ("server.p12", WORDS, 1, 0),
        ("legacy.p12", WORDS, 1, 0),
        ("trust.jks", TRUST_WORDS, 0, 2),
        ("trust.jks", "", 0, 2),
        ("trust.p12", TRUST_WORDS, 0, 2),
        ("open.p12", "", 0, 1),
        ("open.p12", TRUST_WORDS, 0, 1),
    ],
)
def test_what_keytool_has_put_in_is_found(
    name: str, password: str, keys: int, trusted: int
) -> None:
    store = read_key_store(str(FILES / name), password)
    assert (len(store.keys), len(store.trusted)) == (keys, trusted)
    for key, chain in store.keys:
        assert len(chain) == 1 and key.hex() not in repr(vars(store)["trusted"]) + repr(store)


# --- what is wrong ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "password", "sentence"),
    [
        ("server.jks", "mistyped", "server.jks is damaged, or its password is wrong"),
        ("server.p12", "mistyped", "or its password is wrong"),
        ("trust.jks", TRUST_WORDS, "has no private keys, and exactly one is needed"),
        ("trust.p12", TRUST_WORDS, "has no private keys, and exactly one is needed"),
        ("jks.pem", WORDS, "is neither JKS nor PKCS12"),
        ("nowhere", WORDS, "nowhere cannot be used: No such file"),
    ],
)
def test_a_store_that_cannot_serve_is_told_without_its_password(
    name: str, password: str, sentence: str
) -> None:
    with pytest.raises(ConfigError, match=sentence) as raised:
        make_context(settings_of(FILES / name, password))
    assert str(raised.value).startswith("tlsKeyStore (JKS): ")
    assert password not in str(raised.value)


def test_settings_that_are_missing_are_named() -> None:
    with pytest.raises(ConfigError, match="tlsKeyStore is empty"):
        TlsSettings(Config(tlsEnabledWithKeyStore=True))
    with pytest.raises(ConfigError, match="tlsKeyStorePassword is empty"):
        settings_of(FILES / "server.jks", "")
    assert WORDS not in repr(vars(settings_of(FILES / "server.jks")))


def test_a_pem_file_of_authorities_is_not_passed_over_in_silence() -> None:
    with pytest.raises(ConfigError, match="tlsTrustCertsFilePath is not read"):
        settings_of(FILES / "server.jks", tlsTrustCertsFilePath="/clients.pem")


@pytest.mark.parametrize(
    ("name", "password", "sentence"),
    [
        ("trust.jks", "wrong", "tlsTrustStore .* its password is wrong"),
        ("trust.p12", "", "tlsTrustStore .* its password is wrong"),
        ("server.p12", WORDS, "has a private key, and a trust store"),
        ("server.jks", WORDS, "has a private key, and a trust store"),
        ("nowhere", "", "cannot be used: No such file"),
    ],
)
def test_a_trust_store_that_cannot_be_used_is_told(name: str, password: str, sentence: str) -> None:
    more = {"tlsTrustStore": str(FILES / name), "tlsTrustStorePassword": password}
    with pytest.raises(ConfigError, match=sentence):
        make_context(settings_of(FILES / "server.jks", **more))


def test_a_store_with_several_keys_or_none_or_no_certificate_is_refused() -> None:
    one, two = Issued(authority()), Issued(authority())
    cases: list[tuple[list[tuple[bytes, list[bytes]]], list[bytes], str]] = [
        ([(one.key, one.chain), (two.key, two.chain)], [], "has 2 private keys"),
        ([], [der_of(authority())], "has no private keys"),
        ([(one.key, [])], [], "without a certificate"),
    ]
    for keys, trusted, sentence in cases:
        store = parse_key_store(jks(WORDS, keys, trusted), WORDS)
        with pytest.raises(KeyStoreError, match=sentence):
            store.pem_of_key()
    with pytest.raises(KeyStoreError, match="has no trusted certificates"):
        parse_key_store(jks(WORDS, [(one.key, one.chain)], []), "").pem_of_trusted()


@pytest.mark.parametrize("version", [1, 2])
def test_both_versions_of_jks_and_any_password_are_read(version: int) -> None:
    one = Issued(authority())
    data = jks("pässwörd €", [(one.key, one.chain)], [der_of(authority())], version)
    store = parse_key_store(data, "pässwörd €")
    assert store.keys == [(one.key, one.chain)] and store.trusted == [der_of(authority())]


def test_a_certificate_of_no_version_that_is_known_is_told(tmp_path: Path) -> None:
    issued, pem, store = authority().issue_cert("localhost"), tmp_path / "pem", tmp_path / "store"
    issued.private_key_and_cert_chain_pem.write_to_path(pem)
    command = ["openssl", "pkcs12", "-export", "-in", str(pem), "-out", str(store)]
    unprotected = ("-passout", "pass:", "-nomac", "-keypbe", "NONE", "-certpbe", "NONE")
    subprocess.run([*command, *unprotected], check=True)
    data = store.read_bytes()
    assert parse_key_store(data, "").keys
    version = b"\xa0\x03\x02\x01\x02"
    assert version in data
    with pytest.raises(KeyStoreError, match="a certificate of an unsupported version"):
        parse_key_store(data.replace(version, b"\xa0\x03\x02\x01\x7f"), "")


def test_a_key_of_another_password_than_its_store_is_told() -> None:
    one = Issued(authority())
    data = jks(WORDS, [(one.key, one.chain)], [], key_password="other")
    with pytest.raises(KeyStoreError, match="whose password differs from that of the store"):
        parse_key_store(data, WORDS)


def test_a_damaged_jks_is_refused_whatever_is_changed() -> None:
    """Also by somebody who knows the password, so that the digest is right."""
    one = Issued(authority())
    body = jks(WORDS, [(one.key, one.chain)], [der_of(authority())])[:-20]
    whole = parse_key_store(sealed(body, WORDS), WORDS)
    for at in range(len(body)):
        for changed in (body[:at], body[:at] + b"\xff" * 4 + body[at + 4 :], body + body[at:]):
            try:
                found = parse_key_store(sealed(changed, WORDS), WORDS)
            except KeyStoreError:
                continue
            # A name, a time, or bytes of a certificate: OpenSSL judges those.
            assert len(found.keys) == 1 and found.keys[0][0] == whole.keys[0][0]


def test_what_claims_to_be_long_costs_nothing() -> None:
    head = b"\xfe\xed\xfe\xed" + struct.pack(">II", 2, 2**32 - 1)
    huge = struct.pack(">I", 1) + text("a") + bytes(8) + struct.pack(">I", 2**32 - 1)
    began = time.process_time()
    for body in (head, head + huge, head + huge * 1000):
        with pytest.raises(KeyStoreError):
            parse_key_store(sealed(body, WORDS), WORDS)
    with pytest.raises(KeyStoreError, match="more than 65536 bytes"):
        parse_key_store(jks(WORDS, [(bytes(KEY_BYTES_MAX), [])], []), WORDS)
    assert time.process_time() - began < 1


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with path.open("wb") as file:
        file.truncate(STORE_BYTES_MAX + 1)
    with pytest.raises(KeyStoreError, match="more than 4194304 bytes"):
        read_key_store(str(path), WORDS)


# --- in use -----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_a_store_that_changes_is_read_again_beside_the_loop(tmp_path: Path, kind: str) -> None:
    now = 0.0
    path = tmp_path / "store"
    Issued(authority()).write(path, kind, WORDS)
    contexts = TlsContexts(settings_of(path), lambda: now)
    first = contexts.current()
    shake_hands(first, client_context())
    path.write_bytes(b"half")
    now = 301.0
    assert contexts.current() is first
    wait(contexts)
    other = trustme.CA()
    Issued(other).write(path, kind, WORDS)
    now = 602.0
    assert contexts.current() is first, "nobody waits for it"
    wait(contexts)
    second = contexts.current()
    assert second is not first
    with pytest.raises(ssl.SSLError):
        shake_hands(second, client_context())
    client = ssl.create_default_context()
    other.configure_trust(client)
    shake_hands(second, client)


def test_a_store_that_cannot_be_used_is_opened_once_a_second_however_many_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, opened = 0.0, list[float]()
    path = tmp_path / "store"
    Issued(authority()).write(path, "PKCS12", WORDS)
    contexts = TlsContexts(settings_of(path, tlsCertRefreshCheckDurationSec=0), lambda: now)
    path.write_bytes(b"half")

    def counted(settings: TlsSettings) -> ssl.SSLContext:
        opened.append(now)
        return make_context(settings)

    monkeypatch.setattr("pyxbroker.base.tls.make_context", counted)
    for tick in range(30):
        now = 10 + tick / 10
        contexts.current()
        wait(contexts)
    assert len(opened) == 3


def wait(contexts: TlsContexts) -> None:
    renewing = contexts._renewing
    assert isinstance(renewing, threading.Thread)
    renewing.join(10)


def test_no_file_has_the_key_in_plain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does another process of another user: a file in memory that nothing names."""
    path = tmp_path / "store"
    Issued(authority()).write(path, "JKS", WORDS)
    opened: list[str] = []
    given = ssl.SSLContext.load_cert_chain

    def watched(context: ssl.SSLContext, place: str, *more: Any) -> None:
        opened.append(str(Path(place).readlink()))
        given(context, place, *more)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", watched)
    before = sorted(Path("/proc/self/fd").iterdir())
    make_context(settings_of(path))
    assert opened == ["/memfd:tls (deleted)"]
    assert sorted(Path("/proc/self/fd").iterdir()) == before
    assert [each.name for each in tmp_path.iterdir()] == ["store"]


def test_a_client_is_known_by_a_trust_store(tmp_path: Path) -> None:
    path, trust = tmp_path / "store", tmp_path / "trust"
    Issued(authority()).write(path, "PKCS12", WORDS)
    trust.write_bytes(jks("t", [], [der_of(authority())]))
    more: dict[str, Any] = {
        "tlsTrustStore": str(trust),
        "tlsTrustStorePassword": "t",
        "tlsKeyStoreType": "PKCS12",
        "tlsRequireTrustedClientCertOnConnect": True,
    }
    context = make_context(settings_of(path, **more))
    assert shake_hands(context, client_with(authority()))[0] is not None
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(context, client_with(trustme.CA()))

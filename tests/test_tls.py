"""TLS of the ports: contexts made of files, and what a connection makes of a peer's records."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
import subprocess
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import trustme

from certificates import Files, authority, client_context, write_files
from pyxbroker.base.properties import ConfigError
from pyxbroker.base.tls import TlsContexts, TlsSettings, make_context
from pyxbroker.settings.config import Config
from served import Served, ping, section, send, turns

CLIENT = "somebody"


def settings_of(files: Files, **others: str | bool | int) -> TlsSettings:
    return TlsSettings(
        Config(
            tlsCertificateFilePath=str(files.certificate),
            tlsKeyFilePath=str(files.key),
            tlsTrustCertsFilePath=str(files.trusted),
            **others,
        )
    )


def shake_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> tuple[bytes | None, str | None]:
    """The certificate that the server saw, and the version; raises SSLError of either side."""
    there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        server.wrap_bio(there, here, server_side=True),
        client.wrap_bio(here, there, server_hostname="localhost"),
    )
    for _ in range(4):
        for end in reversed(ends):
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    return ends[0].getpeercert(binary_form=True), ends[0].version()


def client_context_of(version: ssl.TLSVersion) -> ssl.SSLContext:
    context = ssl.create_default_context()
    authority().configure_trust(context)
    context.minimum_version = context.maximum_version = version
    return context


def client_with(ca: trustme.CA, name: str = CLIENT) -> ssl.SSLContext:
    """A client that shows a certificate of an authority, and trusts that of the tests."""
    context = ssl.create_default_context()
    authority().configure_trust(context)
    ca.issue_cert(common_name=name).configure_cert(context)
    return context


# --- contexts -------------------------------------------------------------------------------------


def test_a_client_without_a_certificate_is_served_unless_one_is_required(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    seen, _ = shake_hands(make_context(settings_of(files)), client_context())
    assert seen is None
    required = settings_of(files, tlsRequireTrustedClientCertOnConnect=True)
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shake_hands(make_context(required), client_context())
    seen, _ = shake_hands(make_context(required), client_with(authority()))
    assert seen is not None


def test_a_certificate_that_is_not_trusted_is_refused_or_passes_for_none(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    stranger = client_with(trustme.CA())
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(make_context(settings_of(files)), stranger)
    insecure = settings_of(files, tlsAllowInsecureConnection=True)
    assert shake_hands(make_context(insecure), stranger)[0] is None


def test_a_client_cannot_have_the_handshake_begin_anew(tmp_path: Path) -> None:
    """Python's client cannot ask for it, so it is OpenSSL's option that is looked at."""
    options = make_context(settings_of(write_files(tmp_path))).options
    assert ssl.OP_NO_RENEGOTIATION in options and ssl.OP_NO_COMPRESSION in options


def test_versions_and_ciphers_are_those_of_the_settings(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    assert shake_hands(make_context(settings_of(files)), client_context())[1] == "TLSv1.3"
    cipher = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
    older = make_context(settings_of(files, tlsProtocols="TLSv1.2", tlsCiphers=cipher))
    assert shake_hands(older, client_context())[1] == "TLSv1.2"
    names = {each["name"] for each in older.get_ciphers() if each["protocol"] == "TLSv1.2"}
    assert names == {"ECDHE-ECDSA-AES256-GCM-SHA384", "ECDHE-RSA-AES256-GCM-SHA384"}
    chacha = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256"
    names = {
        each["name"]
        for each in make_context(settings_of(files, tlsCiphers=chacha)).get_ciphers()
        if each["protocol"] == "TLSv1.2"
    }
    assert names == {"ECDHE-RSA-CHACHA20-POLY1305"}


def older_ciphers(tmp_path: Path, words: str) -> set[str]:
    context = make_context(settings_of(write_files(tmp_path), tlsCiphers=words))
    return {each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"}


@pytest.mark.parametrize("sign", ["!", "-"])
def test_a_cipher_is_taken_away_by_either_name(tmp_path: Path, sign: str) -> None:
    assert "ECDHE-RSA-AES128-GCM-SHA256" in older_ciphers(tmp_path, "DEFAULT")
    for name in ("ECDHE-RSA-AES128-GCM-SHA256", "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256"):
        left = older_ciphers(tmp_path, f"DEFAULT,{sign}{name}")
        assert "ECDHE-RSA-AES256-GCM-SHA384" in left
        assert "ECDHE-RSA-AES128-GCM-SHA256" not in left


@pytest.mark.parametrize(
    "words",
    [
        "HIGH:!aNULL:!MD5:!RC4:!EXP:!SSLv2:!kEDH",
        "ECDHE+AESGCM; ECDHE+CHACHA20, DHE+AESGCM",
        "DEFAULT@SECLEVEL=1:@STRENGTH",
        "ALL,-SHA1,+ECDSA",
        "SUITEB128",
        "TLS_AES_256_GCM_SHA384,ECDHE-RSA-AES128-GCM-SHA256",
    ],
)
def test_lists_of_openssl_are_taken(tmp_path: Path, words: str) -> None:
    assert older_ciphers(tmp_path, words)


def test_names_of_the_standard_are_those_of_openssl(tmp_path: Path) -> None:
    command = ["openssl", "ciphers", "-stdname", "ALL:@SECLEVEL=0"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split() for line in listed.splitlines()]
    names = {row[0]: row[2] for row in rows}
    here = older_ciphers(tmp_path, "ALL:@SECLEVEL=0")  # Python's may be another build
    exchanges = "TLS_((ECDHE_)?(ECDSA|RSA)|DHE_RSA)_WITH_"
    known = [each for each in names if re.match(exchanges, each) and names[each] in here]
    assert len(known) > 30
    for each in known:
        assert older_ciphers(tmp_path, f"{each}:@SECLEVEL=0") == {names[each]}


def test_ciphers_of_tls_1_3_alone_mean_that_version_alone(tmp_path: Path) -> None:
    alone = make_context(settings_of(write_files(tmp_path), tlsCiphers="TLS_AES_256_GCM_SHA384"))
    older = client_context_of(ssl.TLSVersion.TLSv1_2)
    with pytest.raises(ssl.SSLError, match="UNSUPPORTED_PROTOCOL"):
        shake_hands(alone, older)
    assert shake_hands(alone, client_context())[1] == "TLSv1.3"


@pytest.mark.parametrize(
    ("ciphers", "protocols", "is_told"),
    [
        ("", "", False),
        ("TLS_AES_256_GCM_SHA384", "", True),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "", True),
        ("ECDHE-ECDSA-AES256-GCM-SHA384", "TLSv1.2", False),
        (
            "TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,TLS_AES_128_GCM_SHA256",
            "TLSv1.3",
            False,
        ),
    ],
)
def test_a_choice_among_ciphers_that_cannot_be_made_is_told(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    ciphers: str,
    protocols: str,
    is_told: bool,
) -> None:
    lines: list[str] = []
    log = SimpleNamespace(warning=lambda line, **_: lines.append(line))
    monkeypatch.setattr("pyxbroker.base.tls.log", log)
    settings_of(write_files(tmp_path), tlsCiphers=ciphers, tlsProtocols=protocols)
    assert [line.partition(" ")[0] for line in lines] == ["tlsCiphers"] * is_told


@pytest.mark.parametrize(
    ("others", "sentence"),
    [
        ({"tlsProtocols": "SSLv3"}, "tlsProtocols names 'SSLv3'"),
        ({"tlsCiphers": "NOTHING"}, "tlsCiphers names a cipher unknown"),
        ({"tlsCiphers": "TLS_AES_1"}, "tlsCiphers names a cipher unknown"),
        (
            {"tlsCiphers": "ECDHE-RSA-AES128-GCM-SHA256,ECDHE-RSA-AES256-GCM-SHA385"},
            "'ECDHE-RSA-AES256-GCM-SHA385'; did you mean ECDHE-RSA-AES256-GCM-SHA384",
        ),
        (
            {"tlsCiphers": "DEFAULT,!TLS_ECDHE_RSA_WITH_AES_128_GCM"},
            "'TLS_ECDHE_RSA_WITH_AES_128_GCM'.",
        ),
        ({"tlsCiphers": "TLS_RSA_WITH_3DES_EDE_CBC_SHA,DEFAULT"}, "a cipher unknown to OpenSSL"),
        ({"tlsCiphers": "DEFAULT:!NOTHING"}, "a cipher unknown to OpenSSL: 'NOTHING'"),
        ({"tlsCiphers": "ECDHE+AESGCM,ECDHE+AESGCN"}, "a cipher unknown to OpenSSL: 'AESGCN'"),
        ({"tlsCiphers": "RC4,ECDHE"}, "a cipher unknown to OpenSSL: 'RC4'"),
        ({"tlsCiphers": "DEFAULT,@STRONG"}, "a cipher unknown to OpenSSL: '@STRONG'"),
        ({"tlsCiphers": "AESGCM,DEFAULT"}, "DEFAULT after other words"),
        ({"tlsCiphers": "AESGCM,!DEFAULT"}, "a cipher unknown to OpenSSL: 'DEFAULT'"),
        ({"tlsCiphers": "!aNULL"}, "selects no cipher"),
        ({"tlsCiphers": "DEFAULT,!TLS_AES_128_GCM_SHA256"}, "'!TLS_AES_128_GCM_SHA256', but the"),
        ({"tlsCiphers": "+TLS_AES_128_GCM_SHA256"}, "cannot be selected; tlsProtocols=TLSv1.2"),
        (
            {"tlsCiphers": "TLS_AES_256_GCM_SHA384", "tlsProtocols": "TLSv1.2"},
            "and tlsProtocols excludes it",
        ),
        ({"tlsCertificateFilePath": ""}, "tlsCertificateFilePath is empty"),
        ({"tlsKeyFilePath": "/nowhere"}, "tlsKeyFilePath: /nowhere cannot be read"),
        ({"tlsTrustCertsFilePath": "/nowhere"}, "tlsTrustCertsFilePath: /nowhere cannot be used"),
        (
            {"tlsRequireTrustedClientCertOnConnect": True, "tlsAllowInsecureConnection": True},
            "contradict",
        ),
    ],
)
def test_what_cannot_be_is_said(
    tmp_path: Path, others: dict[str, str | bool], sentence: str
) -> None:
    files = write_files(tmp_path)
    values: dict[str, str | bool | int | float | None] = {
        "tlsCertificateFilePath": str(files.certificate),
        "tlsKeyFilePath": str(files.key),
        "tlsTrustCertsFilePath": str(files.trusted),
    }
    with pytest.raises(ConfigError, match=sentence):
        make_context(TlsSettings(Config(**(values | others))))


def test_a_key_that_is_encrypted_or_another_ones_is_said(tmp_path: Path) -> None:
    files = write_files(tmp_path)
    other = write_files(tmp_path / "other")
    with pytest.raises(ConfigError, match="is not the key of the certificate"):
        make_context(settings_of(files._replace(key=other.key)))
    files.key.write_text("-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n")
    with pytest.raises(ConfigError, match="cannot be used"):
        make_context(settings_of(files))


def test_new_connections_go_by_files_that_have_changed(tmp_path: Path) -> None:
    now = 0.0
    files = write_files(tmp_path)
    settings = settings_of(files, tlsRequireTrustedClientCertOnConnect=True)
    contexts = TlsContexts(settings, lambda: now)
    first = contexts.current()
    shake_hands(first, client_with(authority()))
    # The authority of clients is another one from now on, and the server's certificate too.
    ca = trustme.CA()
    write_files(tmp_path)
    ca.cert_pem.write_to_path(files.trusted)
    os.utime(files.trusted, (1, 1))
    assert contexts.current() is first
    now = 301.0
    second = contexts.current()
    assert second is not first
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_VERIFY_FAILED"):
        shake_hands(second, client_with(authority()))
    assert shake_hands(second, client_with(ca))[0] is not None


def test_files_that_cannot_be_used_leave_what_was_there(tmp_path: Path) -> None:
    now = 0.0
    files = write_files(tmp_path)
    contexts = TlsContexts(settings_of(files, tlsCertRefreshCheckDurationSec=0), lambda: now)
    first = contexts.current()
    whole = files.certificate.read_bytes()
    files.certificate.write_bytes(whole[:100])
    assert contexts.current() is first
    files.certificate.unlink()
    assert contexts.current() is first
    files.certificate.write_bytes(whole)
    assert contexts.current() is not first


def test_files_that_cannot_be_used_are_read_once_a_second_however_many_connect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, read = 0.0, list[float]()
    files = write_files(tmp_path)
    contexts = TlsContexts(settings_of(files, tlsCertRefreshCheckDurationSec=0), lambda: now)
    first = contexts.current()
    whole = files.certificate.read_bytes()
    files.certificate.write_bytes(whole[:100])

    def counted(settings: TlsSettings) -> ssl.SSLContext:
        read.append(now)
        return make_context(settings)

    monkeypatch.setattr("pyxbroker.base.tls.make_context", counted)
    for tick in range(30):
        now = 10 + tick / 10
        assert contexts.current() is first
    assert len(read) == 3
    files.certificate.write_bytes(whole)
    assert contexts.current() is not first, "what has changed is read at once"


# --- connections ----------------------------------------------------------------------------------


def served(scenario: Callable[[Served], Awaitable[None]], **limits: int) -> None:
    async def run() -> None:
        side = Served(**limits)
        try:
            await scenario(side)
        finally:
            side.close()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def over_tls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Served, "over_tls", True)


def raw(side: Served, data: bytes) -> None:
    """Bytes on the wire, past the client's TLS."""
    socket.socket.send(side.far._sock, data)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x17\x03\x03\x00\x20" + bytes(32)]
)
def test_bytes_that_are_no_record_cost_their_connection(data: bytes) -> None:
    async def scenario(side: Served) -> None:
        await side.write(ping())
        assert [each[0] for each in side.told] == ["command"]
        raw(side, data)
        await turns()
        assert [each[0] for each in side.told] == ["broken tls", "closed"]
        assert side.connection.closed
        assert side.connection.tls is not None
        assert side.connection.tls.failure

    served(scenario)


def test_what_came_before_a_broken_record_is_served() -> None:
    async def scenario(side: Served) -> None:
        side.far.send(ping())
        raw(side, bytes(100))
        await turns()
        assert [each[0] for each in side.told] == ["command", "broken tls", "closed"]

    served(scenario)


def test_a_record_that_comes_byte_by_byte_is_opened_when_it_is_whole() -> None:
    async def scenario(side: Served) -> None:
        here, there = ssl.MemoryBIO(), ssl.MemoryBIO()
        connection, far = side.connect()
        client = client_context().wrap_bio(here, there, server_hostname="localhost")
        for _ in range(4):
            with contextlib.suppress(ssl.SSLWantReadError):
                client.do_handshake()
            for byte in there.read():
                far.send(bytes([byte]))
                await turns(2)
            with contextlib.suppress(BlockingIOError):
                here.write(far.recv(1 << 16))
        assert connection.tls is not None
        assert connection.tls.established
        side.told  # noqa: B018
        client.write(ping() * 2)
        for byte in there.read():
            assert not side.told
            far.send(bytes([byte]))
            await turns(2)
        assert [each[0] for each in side.told] == ["command"] * 2
        far.close()

    served(scenario)


def test_a_peer_that_ends_with_and_without_a_farewell_is_closed() -> None:
    async def scenario(side: Served) -> None:
        other, far = side.accept()
        far.close()
        side.far.unwrap_soon()  # type: ignore[attr-defined]
        await turns()
        assert side.connection.closed
        assert other.closed
        assert [each[0] for each in side.told] == ["closed", "closed"]

    served(scenario)


def test_an_end_right_behind_frames_is_not_missed() -> None:
    """Nothing more comes then: neither a farewell nor a broken record may wait for that."""

    async def scenario(side: Served) -> None:
        side.far.send(ping())
        side.far.unwrap_soon()  # type: ignore[attr-defined]
        await turns()
        assert [each[0] for each in side.told] == ["command", "closed"]

    async def broken(side: Served) -> None:
        side.far.send(ping())
        raw(side, b"\x17\x03\x03\x00\x20" + bytes(32))
        await turns()
        assert [each[0] for each in side.told] == ["command", "broken tls", "closed"]

    served(scenario)
    served(broken)


def test_much_that_is_waiting_arrives_whole_at_a_slow_peer() -> None:
    frames = [send(n, section(os.urandom(n * 37 % 50_000))) for n in range(200)]

    async def scenario(side: Served) -> None:
        for frame in frames:
            side.connection.send_frame(frame)
        whole = b"".join(frames)
        got = b""
        while len(got) < len(whole):
            got += await side.read()
        assert got == whole
        assert side.connection.pending_bytes == 0
        assert not side.connection.writing

    served(scenario)


def test_what_came_in_is_read_on_when_a_pause_is_over() -> None:
    """The socket does not tell of it: it is empty."""
    sends = [send(n, section(bytes(9_000))) for n in range(5)]

    async def scenario(side: Served) -> None:
        side.connection.begin_throttling()  # What is read at once is short from now on.
        for each in sends:
            assert side.far.send(each) == len(each)
        await turns()
        side.connection.end_throttling()
        await turns()
        stream = side.connection.tls
        assert stream is not None
        assert stream.has_more
        while side.producer.pending_sends:
            assert side.connection.is_paused
            side.producer.settle(side.producer.runs[-1])
            await turns()
        entries = [entry for what, *rest in side.told if what == "run" for entry in rest[1]]
        assert len(entries) == len(sends)

    served(scenario, sends_max=1)

"""A client's end of TLS that makes records which no library lets it make."""

from __future__ import annotations

import hashlib
import hmac
import ssl
from pathlib import Path

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from certificates import authority

HANDSHAKE, DATA = 22, 23
CLIENT_HELLO = b"\x01\0\0\0"
KEY_UPDATE = b"\x18\0\0\x01"


class HostileClient:
    """Shakes hands by ssl, over `incoming` and `outgoing`; `tls` is for nothing else afterwards."""

    def __init__(self, directory: Path, version: ssl.TLSVersion) -> None:
        self.keys = directory / "keys"
        self.keys.write_bytes(b"")
        context = ssl.create_default_context()
        authority().configure_trust(context)
        context.minimum_version = context.maximum_version = version
        context.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256")
        context.keylog_filename = str(self.keys)
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")
        self._server_hello = b""

    def shake_hands(self, received: bytes) -> bytes:
        """What is to be sent next."""
        self._server_hello = self._server_hello or received
        self.incoming.write(received)
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            pass
        else:
            self._take_keys()
        return self.outgoing.read()

    def _take_keys(self) -> None:
        text = self.keys.read_text().splitlines()
        lines = [line.split() for line in text if line[0] != "#"]
        logged = {label: (bytes.fromhex(a), bytes.fromhex(b)) for label, a, b in lines}
        if self.tls.version() == "TLSv1.3":
            self._secret = logged["CLIENT_TRAFFIC_SECRET_0"][1]
            self._go_by_secret()
        else:
            hello, master = logged["CLIENT_RANDOM"]
            server = self._server_hello[11:43]
            block = _prf(master, b"key expansion" + server + hello, 40)
            self._cipher, self._iv, self._number = AESGCM(block[:16]), block[32:36], 1

    def _go_by_secret(self) -> None:
        cipher = self.tls.cipher()
        assert cipher is not None
        assert cipher[0] == "TLS_AES_256_GCM_SHA384"
        self._cipher = AESGCM(_expand(self._secret, b"key", 32))
        self._iv = _expand(self._secret, b"iv", 12)
        self._number = 0

    def key_update(self) -> bytes:
        """A record of TLS 1.3 that wants to be answered."""
        made = self._sealed(HANDSHAKE, KEY_UPDATE + b"\x01")
        self._secret = _expand(self._secret, b"traffic upd", 48)
        self._go_by_secret()
        return made

    def renegotiation(self) -> bytes:
        """A record of TLS 1.2 that asks for another handshake."""
        number = self._number.to_bytes(8, "big")
        head = bytes([HANDSHAKE, 3, 3])
        self._number += 1
        size = len(CLIENT_HELLO)
        sealed = self._cipher.encrypt(
            self._iv + number, CLIENT_HELLO, number + head + size.to_bytes(2, "big")
        )
        return head + (size + 24).to_bytes(2, "big") + number + sealed

    def data(self, plain: bytes) -> bytes:
        """A record of TLS 1.3 with plain text."""
        return self._sealed(DATA, plain)

    def _sealed(self, kind: int, plain: bytes) -> bytes:
        number = self._number.to_bytes(12, "big")
        self._number += 1
        nonce = bytes(a ^ b for a, b in zip(self._iv, number, strict=True))
        head = bytes([DATA, 3, 3]) + (len(plain) + 17).to_bytes(2, "big")
        return head + self._cipher.encrypt(nonce, plain + bytes([kind]), head)


def _expand(secret: bytes, label: bytes, size: int) -> bytes:
    """HKDF-Expand-Label of SHA-384, up to one block (RFC 8446)."""
    name = b"tls13 " + label
    info = size.to_bytes(2, "big") + bytes([len(name)]) + name + b"\0"
    return hmac.new(secret, info + b"\x01", hashlib.sha384).digest()[:size]


def _prf(secret: bytes, seed: bytes, size: int) -> bytes:
    """That of TLS 1.2 with SHA-256 (RFC 5246)."""
    made, at = b"", seed
    while len(made) < size:
        at = hmac.new(secret, at, hashlib.sha256).digest()
        made += hmac.new(secret, at + seed, hashlib.sha256).digest()
    return made[:size]

"""Java key stores, JKS and PKCS12: a private key with its certificates, and trusted certificates.

The first bytes of a file tell its format, as in Java.

JKS, as sun.security.provider.JavaKeyStore writes it; numbers are big endian:

    0   magic        FE ED FE ED
    4   version      1 or 2
    8   count        of entries
    12  entries      tag (1 a key, 2 a certificate), alias (UTF), time (8 bytes); then
                     1: length and bytes of an EncryptedPrivateKeyInfo; count of certificates
                     2: a certificate
    end digest       20 bytes: SHA-1 of the password, "Mighty Aphrodite", and all bytes before

A certificate is its type (UTF, in version 2 only), its length, and DER. UTF is a length of two
bytes and text; a password is UTF-16, big endian. Sun's own cipher protects keys: 20 bytes of salt,
the key xor a chain of SHA-1 (of the password and the previous block, which is the salt at first),
and SHA-1 of the password and the key. It is weak, so protect a JKS file like a PEM key.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from pyxbroker.base.extras import require

STORE_BYTES_MAX = 4 << 20
KEY_BYTES_MAX = 64 << 10  # of a protected key in JKS
MAGIC = b"\xfe\xed\xfe\xed"
DIGEST_BYTES = 20
DIGEST_WORDS = b"Mighty Aphrodite"
KEY_TAG, CERTIFICATE_TAG = 1, 2
SEQUENCE, OCTETS = 0x30, 0x04
# AlgorithmIdentifier of Sun's cipher: 1.3.6.1.4.1.42.2.17.1.1 and NULL.
SUNS_CIPHER = bytes.fromhex("300e060a2b060104012a021101010500")


class KeyStoreError(Exception):
    """A key store cannot be used. The message continues a sentence after the store's name.

    It holds no secrets.
    """


class KeyStore:
    """The contents of a key store. Its repr shows no key."""

    def __init__(self) -> None:
        self.keys: list[tuple[bytes, list[bytes]]] = []  # PKCS#8 and its certificates, DER
        self.trusted: list[bytes] = []  # DER

    def pem_of_key(self) -> bytes:
        """Return the private key and its certificates as PEM, unencrypted. Raises KeyStoreError."""
        if len(self.keys) != 1:
            count = len(self.keys) or "no"
            raise KeyStoreError(f"has {count} private keys, and exactly one is needed")
        key, chain = self.keys[0]
        if not chain:
            raise KeyStoreError("has a private key without a certificate")
        parts = [_pem("PRIVATE KEY", key), *(_pem("CERTIFICATE", each) for each in chain)]
        return b"".join(parts)

    def pem_of_trusted(self) -> str:
        """Return the trusted certificates as PEM. Raises KeyStoreError."""
        if not self.trusted:
            raise KeyStoreError("has no trusted certificates")
        return b"".join(_pem("CERTIFICATE", each) for each in self.trusted).decode()


def read_key_store(path: str, password: str) -> KeyStore:
    """Read a key store file. Raises KeyStoreError and OSError.

    With an empty password, the integrity of a JKS file is not checked, as in Java, and its keys
    are not read.
    """
    with Path(path).open("rb") as file:
        data = file.read(STORE_BYTES_MAX + 1)
    if len(data) > STORE_BYTES_MAX:
        raise KeyStoreError(f"has more than {STORE_BYTES_MAX} bytes")
    return parse_key_store(data, password)


def parse_key_store(data: bytes, password: str) -> KeyStore:
    """Parse the bytes of a key store. Raises KeyStoreError."""
    return _parse_jks(data, password) if data.startswith(MAGIC) else _parse_pkcs12(data, password)


def _pem(what: str, der: bytes) -> bytes:
    text = base64.encodebytes(der).decode()
    return f"-----BEGIN {what}-----\n{text}-----END {what}-----\n".encode()


# --- PKCS12 -----------------------------------------------------------------------------------


def _parse_pkcs12(data: bytes, password: str) -> KeyStore:
    require("is in PKCS12, which", "cryptography", error=KeyStoreError)
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        pkcs12,
    )
    from cryptography.x509 import InvalidVersion

    try:
        found = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except UnsupportedAlgorithm:
        raise KeyStoreError("is encrypted with an unsupported algorithm") from None
    except InvalidVersion:
        raise KeyStoreError("has a certificate of an unsupported version") from None
    except (ValueError, TypeError):
        raise KeyStoreError("is neither JKS nor PKCS12, or its password is wrong") from None
    store = KeyStore()
    others = [each.certificate.public_bytes(Encoding.DER) for each in found.additional_certs]
    own = [found.cert.certificate.public_bytes(Encoding.DER)] if found.cert else []
    if found.key is None:
        store.trusted = own + others
        return store
    # PKCS12 does not mark which additional certificates are trusted and which form the chain.
    key = found.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    store.keys.append((key, own + others if own else []))
    return store


# --- JKS --------------------------------------------------------------------------------------


class _Reader:
    """A reader of numbers and bytes that refuses to read past the end."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        if count > len(self._data) - self._at:
            raise KeyStoreError("is truncated or damaged")
        self._at += count
        return self._data[self._at - count : self._at]

    def number(self, size: int = 4) -> int:
        return int.from_bytes(self.take(size), "big")

    def skip_text(self) -> None:
        self.take(self.number(2))

    @property
    def is_over(self) -> bool:
        return self._at == len(self._data)


def _parse_jks(data: bytes, password: str) -> KeyStore:
    words = password.encode("utf-16-be")
    body, digest = data[:-DIGEST_BYTES], data[-DIGEST_BYTES:]
    # Stored data is checked here, not a client's secret: constant time is not needed.
    if password and hashlib.sha1(words + DIGEST_WORDS + body).digest() != digest:
        raise KeyStoreError("is damaged, or its password is wrong")
    reader = _Reader(body)
    reader.take(len(MAGIC))
    version = reader.number()
    if version not in (1, 2):
        raise KeyStoreError(f"is JKS of version {version}, which is not supported")
    store = KeyStore()
    for _ in range(reader.number()):
        _parse_entry(reader, version, words, store)
    if not reader.is_over:
        raise KeyStoreError("is damaged: data follows its last entry")
    return store


def _parse_entry(reader: _Reader, version: int, words: bytes, store: KeyStore) -> None:
    tag = reader.number()
    reader.skip_text()
    reader.take(8)
    if tag == CERTIFICATE_TAG:
        store.trusted.append(_parse_certificate(reader, version))
    elif tag == KEY_TAG:
        protected = reader.take(reader.number())
        chain = [_parse_certificate(reader, version) for _ in range(reader.number())]
        # A key cannot be decrypted without a password.
        if words:
            store.keys.append((_unprotect(protected, words), chain))
    else:
        raise KeyStoreError("is damaged: an entry is neither a key nor a certificate")


def _parse_certificate(reader: _Reader, version: int) -> bytes:
    if version == 2:
        reader.skip_text()
    return reader.take(reader.number())


def _unprotect(protected: bytes, words: bytes) -> bytes:
    """Return the PKCS#8 key of an EncryptedPrivateKeyInfo."""
    inner = _Reader(_of_der(_Reader(protected), SEQUENCE))
    if inner.take(len(SUNS_CIPHER)) != SUNS_CIPHER:
        raise KeyStoreError("has a key that is encrypted with an unsupported algorithm")
    if len(protected) > KEY_BYTES_MAX:
        raise KeyStoreError(f"has a key of more than {KEY_BYTES_MAX} bytes")
    data = _of_der(inner, OCTETS)
    if len(data) < 2 * DIGEST_BYTES:
        raise KeyStoreError("is truncated or damaged")
    salt, hidden, check = (
        data[:DIGEST_BYTES],
        data[DIGEST_BYTES:-DIGEST_BYTES],
        data[-DIGEST_BYTES:],
    )
    stream, block = bytearray(), salt
    while len(stream) < len(hidden):
        block = hashlib.sha1(words + block).digest()
        stream += block
    key = bytes(a ^ b for a, b in zip(hidden, stream, strict=False))
    if hashlib.sha1(words + key).digest() != check:
        raise KeyStoreError("has a key whose password differs from that of the store")
    return key


def _of_der(reader: _Reader, tag: int) -> bytes:
    """Return the contents of a DER value."""
    if reader.number(1) != tag:
        raise KeyStoreError("is damaged: it holds a key that is not DER")
    length = reader.number(1)
    if length >= 0x80:
        length = reader.number(min(length & 0x7F, 8))
    return reader.take(length)

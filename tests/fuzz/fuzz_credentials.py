"""What proves who somebody is, as a stranger or a damaged file could make it: tokens by a secret,
by a public key and of an issuer, key sets, answers by HTTP, files of passwords, key stores.

The first byte of an input chooses the reader, the rest is what it reads; some are signed or sealed
first, so that what is in them is looked at. Nothing but the documented error may be raised, a token
counts only if what is signed is what was signed with the key, and a short input must not cost what
a long one does.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import math
import re
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import driver

with driver.guided("pyxbroker.auth", "pyxbroker.base.key_stores", "jwt"):
    from pyxbroker.auth import fetching, openid, signing_keys, token
    from pyxbroker.auth.htpasswd import read_users
    from pyxbroker.auth.issuer import Key, parse_key
    from pyxbroker.auth.provider import Identity, NoCredentials
    from pyxbroker.auth.secrets import read_secret
    from pyxbroker.base.errors import AuthenticationError
    from pyxbroker.base.key_stores import KeyStoreError, parse_key_store
    from pyxbroker.base.properties import ConfigError

from harness.issuer import AUDIENCE, public_jwk
from harness.tokens import SECRET, data_url, ec_key, public, rsa_key, settings
from harness.tokens import token as token_of

from pyxbroker.settings.config import Config
from test_key_stores import FILES, TRUST_WORDS, WORDS, sealed

INPUT_BYTES_MAX = 4096
ISSUER = "https://issuer.example"
BODY_BYTES_MAX = 1000
PASSWORD = b"secret"
HASH_COST_MAX = 5  # of bcrypt, that is checked: a slow one says nothing more

LOOP = asyncio.new_event_loop()


def providers() -> list[Any]:
    """By a secret, by a key of each kind, and of an issuer whose keys are known."""
    by_key = {"tokenSecretKey": "", "tokenPublicKey": data_url(public(rsa_key()))}
    by_curve = {**by_key, "tokenPublicKey": data_url(public(ec_key())), "tokenPublicAlg": "ES256"}
    config = Config(openIDAllowedTokenIssuers=ISSUER, openIDAllowedAudiences=AUDIENCE)
    issued = openid.OpenIdProvider(config)
    issuer = issued._issuer(ISSUER)
    issuer._keys = {
        "r": Key(rsa_key().public_key(), list(signing_keys.RSA_ALGORITHMS)),
        "e": Key(ec_key().public_key(), ["ES256"]),
    }
    issuer._read_at = issuer._tried_at = math.inf  # nobody is asked
    made: list[Any] = [
        token.TokenProvider(Config(**settings(**more))) for more in ({}, by_key, by_curve)
    ]
    return [*made, issued]


PROVIDERS = providers()


def issued(kid: str, **more: Any) -> str:
    key, algorithm = (rsa_key(), "PS256") if kid == "r" else (ec_key(), "ES256")
    claims = {"iss": ISSUER, "aud": AUDIENCE, "iat": 1, "sub": "me", "exp": 2**40, **more}
    import jwt

    return jwt.encode(claims, key, algorithm, headers={"kid": kid})


KNOWN = [
    *(token_of("me", algorithm=each).encode() for each in ("HS256", "HS512")),
    token_of("me", rsa_key(), "RS256").encode(),
    token_of("me", ec_key(), "ES256").encode(),
    *(issued(kid).encode() for kid in ("r", "e")),
]
SIGNED = {each.rpartition(b".")[0] for each in KNOWN}


def unpadded(data: bytes) -> bytes:
    return base64.urlsafe_b64encode(data).rstrip(b"=")


def sign(text: bytes, name: str = "sha256") -> bytes:
    return text + b"." + unpadded(hmac.new(SECRET, text, name).digest())


# --- tokens ---------------------------------------------------------------------------------------


def look_at_token(data: bytes) -> None:
    """As it is: who gets in has what somebody has signed."""
    for provider in PROVIDERS:
        if authenticate(provider, data) is not None:
            assert data.rpartition(b".")[0].strip() in SIGNED, "nobody has signed that"
    for headers in ({"authorization": "Bearer " + data.decode("latin-1")}, {}):
        with suppress(NoCredentials):
            PROVIDERS[0].shown_by(headers, {"token": data.decode("latin-1")})


def look_at_claims(data: bytes) -> None:
    """Signed with the secret: what they claim is looked at."""
    found = authenticate(PROVIDERS[0], sign(unpadded(b'{"alg":"HS256"}') + b"." + unpadded(data)))
    if found is not None:
        assert found.role is None or isinstance(found.role, str)
        claims = json.loads(data)
        assert found.role in (None, claims.get("sub")) or found.role in claims["sub"]
        assert found.expires_at is None or found.expires_at > time.time()


def look_at_header(data: bytes) -> None:
    """Signed with the secret, and with public keys as if those were secrets."""
    text = unpadded(data) + b"." + KNOWN[0].split(b".")[1]
    algorithm = None
    with suppress(ValueError, RecursionError):
        algorithm = json.loads(data).get("alg") if data.startswith(b"{") else None
    names = {"HS256": "sha256", "HS384": "sha384", "HS512": "sha512"}
    shown = sign(text, names.get(algorithm, "sha256") if isinstance(algorithm, str) else "sha256")
    if authenticate(PROVIDERS[0], shown) is not None:
        assert algorithm in names
    for provider, key in ((PROVIDERS[1], rsa_key()), (PROVIDERS[2], ec_key())):
        forged = hmac.new(public(key), text, hashlib.sha256).digest()
        assert authenticate(provider, text + b"." + unpadded(forged)) is None


def look_at_issued(data: bytes) -> None:
    """Header and claims of somebody who has no key of the issuer."""
    header, _, claims = data.partition(b"\n")
    shown = sign(unpadded(header) + b"." + unpadded(claims))
    assert authenticate(PROVIDERS[3], shown) is None


def authenticate(provider: Any, shown: bytes) -> Identity | None:
    try:
        found: Identity = LOOP.run_until_complete(provider.authenticate(shown))
    except AuthenticationError as error:
        for part in re.findall(rb"[A-Za-z0-9_-]{24,}", shown):
            assert part.decode() not in str(error), "what was shown is in the log"
        return None
    return found


# --- what an issuer answers -----------------------------------------------------------------------


def look_at_key(data: bytes) -> None:
    try:
        described = json.loads(data)
    except (ValueError, RecursionError):
        return
    _, key = parse_key(described)
    if key is not None:
        assert key.algorithms and set(key.algorithms) <= set(signing_keys.PUBLIC_ALGORITHMS)
        assert not hasattr(key.public, "private_bytes")


def look_at_answer(data: bytes) -> None:
    async def read(pieces: list[bytes]) -> bytes | str:
        reader = asyncio.StreamReader()
        for each in pieces:
            reader.feed_data(each)
        reader.feed_eof()
        try:
            return await fetching._read(reader, BODY_BYTES_MAX)
        except fetching.FetchFailed as error:
            return str(error)

    body = LOOP.run_until_complete(read([data]))
    assert len(body) <= BODY_BYTES_MAX
    with suppress(ValueError):
        parts = fetching.split_url(data.decode("latin-1"), ("https",))
        head = fetching._request(parts)
        assert head.count(b"\r\n") == 6 and head.endswith(b"\r\n\r\n"), head


# --- files ----------------------------------------------------------------------------------------


def look_at_users(data: bytes) -> None:
    try:
        users = read_users(data)
    except ConfigError as error:
        for line in data.splitlines():
            hashed = line.partition(b":")[2].decode("latin-1").strip()
            assert len(hashed) < 12 or hashed not in str(error), "a hash is in the log"
        return
    assert users
    costs = [int(each) for each in re.findall(rb"\$2[aby]\$(\d\d)\$", data)]
    if max(costs, default=0) <= HASH_COST_MAX:
        for check in list(users.values())[:3]:
            check(PASSWORD)
            check(data[:100])


def look_at_secret(data: bytes) -> None:
    text = data.decode("latin-1")
    if "/" in text.partition(",")[0]:
        return  # a path: what is there is not ours
    with suppress(ConfigError):
        found = read_secret("a key", text)
        for look in (signing_keys.load_public_key, signing_keys.load_private_key):
            with suppress(ConfigError):
                look("a key", found)
        signing_keys.load_secret_key("a key", found)


def look_at_key_store(data: bytes) -> None:
    for password, store in ((WORDS, data), (WORDS, sealed(data, WORDS)), ("", data)):
        try:
            found = parse_key_store(store, password)
        except KeyStoreError as error:
            assert WORDS not in str(error)
            continue
        with suppress(KeyStoreError, ssl.SSLError, ValueError):
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_verify_locations(cadata=found.pem_of_trusted())
        with suppress(KeyStoreError):
            found.pem_of_key()


# --- the target -----------------------------------------------------------------------------------

LOOKS: list[Callable[[bytes], None]] = [
    look_at_token,
    look_at_claims,
    look_at_header,
    look_at_issued,
    look_at_key,
    look_at_answer,
    look_at_users,
    look_at_secret,
    look_at_key_store,
]


def seeds() -> list[bytes]:
    """What is good, of each kind."""
    claims = {"sub": ["me"], "exp": 2**40, "nbf": 1, "aud": ["a"], "iat": 1.5}
    header = {"alg": "PS256", "kid": "r", "typ": "JWT"}
    issued_claims = {"iss": ISSUER, "aud": [AUDIENCE], "sub": "me", "iat": 1, "exp": 2**40}
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
    chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n"
    users = b"ann:$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/\nben:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=\n"
    bcrypt = b"eve:$2y$04$abcdefghijklmnopqrstuuCFBBZ3EQOVqS3vNU3lg0dTCqKBIcXy6\n#\n\n"
    bcrypt += b"old:abJnggxhB/yWI\n"
    stores = [(FILES / name).read_bytes() for name in ("server.jks", "trust.jks", "open.p12")]
    found: list[tuple[int, list[bytes]]] = [
        (0, KNOWN),
        (1, [json.dumps(claims).encode(), b'{"sub":"me"}', b"[" * 900, b'{"exp":1e999}']),
        (2, [json.dumps({**header, "alg": each}).encode() for each in ("HS256", "HS512", "none")]),
        (3, [json.dumps(header).encode() + b"\n" + json.dumps(issued_claims).encode()]),
        (4, [json.dumps(public_jwk(key, "k")).encode() for key in (rsa_key(), ec_key())]),
        (5, [answer, chunks, b"HTTP/1.0 200 OK\r\n\r\n{}", b"https://h:1/p?q"]),
        (6, [users, bcrypt]),
        (7, [data_url(SECRET).encode(), data_url(public(ec_key())).encode(), b"data:,a%20b"]),
        (8, [*stores, *(each[:-20] for each in stores[:2])]),
    ]
    assert parse_key_store(stores[1], TRUST_WORDS).trusted
    return [bytes([kind]) + each for kind, many in found for each in many]


def one_input(data: bytes) -> None:
    driver.look_within_bounds(LOOKS, data)


if __name__ == "__main__":
    driver.main(seeds, one_input, INPUT_BYTES_MAX)

"""Which tokens count, and whose they are."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding
from harness.tokens import SECRET, data_url, ec_key, public, rsa_key, settings, token

from pyxbroker.auth.claims import TOKEN_BYTES_MAX
from pyxbroker.auth.provider import Identity, NoCredentials
from pyxbroker.auth.token import TokenProvider
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config


def identity(shown: str | bytes, **more: Any) -> Identity:
    provider = TokenProvider(Config(**settings(**more)))
    return asyncio.run(provider.authenticate(shown if isinstance(shown, bytes) else shown.encode()))


def refusal(shown: str | bytes, **more: Any) -> str:
    with pytest.raises(AuthenticationError) as raised:
        identity(shown, **more)
    # What was shown is nobody's business.
    text = shown if isinstance(shown, str) else shown.decode("latin-1")
    assert all(part not in str(raised.value) for part in text.split(".") if len(part) > 3)
    return str(raised.value)


def pack(part: Any) -> str:
    data = part if isinstance(part, bytes) else json.dumps(part).encode()
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def of_public(key: Any, algorithm: str) -> dict[str, Any]:
    return {
        "tokenSecretKey": "",
        "tokenPublicKey": data_url(public(key)),
        "tokenPublicAlg": algorithm,
    }


# --- which are good ---------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["HS256", "HS384", "HS512"])
def test_a_token_that_is_signed_with_the_secret_is_its_subject(algorithm: str) -> None:
    assert identity(token("me", algorithm=algorithm)) == Identity("me")


@pytest.mark.parametrize("algorithm", ["RS256", "RS512", "PS256", "PS384"])
def test_a_token_of_an_rsa_key(algorithm: str) -> None:
    shown = token("me", rsa_key(), algorithm)
    assert identity(shown, **of_public(rsa_key(), "RS256")) == Identity("me")


def test_a_token_of_an_elliptic_curve() -> None:
    assert identity(token("me", ec_key(), "ES256"), **of_public(ec_key(), "ES256")).role == "me"


def test_a_key_may_be_written_in_each_way_that_pulsar_has(tmp_path: Path) -> None:
    path = tmp_path / "a secret"
    path.write_bytes(SECRET)
    base = base64.b64encode(SECRET).decode()
    for text in (path.as_uri(), f"file:{str(path).replace(' ', '%20')}", str(path), base):
        assert identity(token("me"), tokenSecretKey=text).role == "me"
    pem = data_url(public(rsa_key(), Encoding.PEM))
    shown = token("me", rsa_key(), "RS256")
    assert identity(shown, tokenSecretKey="", tokenPublicKey=pem).role == "me"


@pytest.mark.parametrize(
    ("claims", "role"),
    [({"who": "a"}, "a"), ({"who": ["b", "c"]}, "b"), ({"who": []}, None), ({}, None)],
)
def test_the_role_may_be_in_another_claim(claims: dict[str, Any], role: str | None) -> None:
    assert identity(token(**claims), tokenAuthClaim="who").role == role


def test_a_role_that_is_no_text_is_refused() -> None:
    for role in (1, {"a": 1}, [1], True):
        assert "not text" in refusal(token(who=role), tokenAuthClaim="who")


def test_an_audience() -> None:
    asked = {"tokenAudienceClaim": "aud", "tokenAudience": "here"}
    for good in ("here", ["there", "here"]):
        assert identity(token(aud=good), **asked).role == "r"
    for bad in ("there", ["there"], [], "heres", {"here": 1}):
        assert "audience" in refusal(token(aud=bad), **asked)
    assert "audience" in refusal(token(), **asked)
    assert identity(token(aud="there")).role == "r"


# --- times ------------------------------------------------------------------------------------


def test_a_token_counts_from_one_time_to_another() -> None:
    assert identity(token()).expires_at is None
    ends = identity(token(exp=100, nbf=-100)).expires_at
    assert ends is not None and abs(ends - time.time() - 100) < 5
    assert "expired" in refusal(token(exp=-2))
    assert "not valid yet" in refusal(token(nbf=60))
    for claim in ("exp", "nbf"):
        for value in ("soon", [1], True, 1e300):
            shown = "".join(_signed({"sub": "r", claim: value}))
            assert "not a time" in refusal(shown)


def test_clocks_may_differ_by_so_much() -> None:
    skew = {"tokenAllowedClockSkewSeconds": 60}
    assert identity(token(nbf=30), **skew).role == "r"
    ends = identity(token(exp=-30), **skew).expires_at
    assert ends is not None and ends > time.time()
    assert "expired" in refusal(token(exp=-90), **skew)
    assert "not valid yet" in refusal(token(nbf=90), **skew)


def _signed(claims: Any, header: Any = None, key: bytes = SECRET) -> str:
    """By hand: what libraries refuse to make."""
    head = {"alg": "HS256", "typ": "JWT"} if header is None else header
    text = f"{pack(head)}.{pack(claims)}"
    return f"{text}.{pack(hmac.digest(key, text.encode(), hashlib.sha256))}"


# --- which are not ----------------------------------------------------------------------------


def test_a_token_without_a_signature_is_refused() -> None:
    for name in ("none", "None", "NONE", "nOnE", ""):
        unsigned = f"{pack({'alg': name})}.{pack({'sub': 'admin'})}."
        for keys in ({}, of_public(rsa_key(), "RS256")):
            refusal(unsigned, **keys)
            refusal(unsigned + "AAAA", **keys)
    head, claims, _ = token().split(".")
    for shown in (f"{head}.{claims}.", f"{head}.{claims}"):
        refusal(shown)


def test_a_public_key_is_no_secret() -> None:
    """Whoever takes the algorithm from the token would check HS256 with what all know."""
    keys = of_public(rsa_key(), "RS256")
    for encoding in (Encoding.DER, Encoding.PEM):
        shown = _signed({"sub": "admin"}, key=public(rsa_key(), encoding))
        refusal(shown, **keys)
        refusal(shown, **of_public(ec_key(), "ES256"))


def test_another_key_or_another_algorithm_than_the_key_is_for() -> None:
    refusal(token(key=SECRET[::-1]))
    refusal(token(key=rsa_key(), algorithm="RS256"))
    refusal(token(key=ec_key(), algorithm="ES256"), **of_public(rsa_key(), "RS256"))
    # A secret is as strong as it is long.
    short = {"tokenSecretKey": data_url(SECRET[:32])}
    assert identity(token(key=SECRET[:32]), **short).role == "r"
    refusal(token(key=SECRET[:32], algorithm="HS512"), **short)


def test_a_key_that_a_token_brings_along_is_not_looked_at() -> None:
    theirs = b"x" * 32
    key = {"kty": "oct", "k": pack(theirs)}
    for header in (
        {"jwk": key},
        {"jku": "http://127.0.0.1:1/"},
        {"kid": "../../x"},
        {"x5c": ["a"]},
    ):
        refusal(_signed({"sub": "admin"}, {"alg": "HS256", **header}, theirs))
    refusal(_signed({"sub": "admin"}, {"alg": "HS256", "crit": ["x"], "x": 1}))


def test_a_changed_token_is_refused() -> None:
    good = token("me")
    head, _, signature = good.split(".")
    refusal(f"{head}.{pack({'sub': 'admin'})}.{signature}")
    data = good.encode()
    for at in range(len(data)):
        changed = data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]
        try:
            assert identity(changed) == Identity("me"), at  # bits of base64 that mean nothing
            assert at == len(data) - 1
        except AuthenticationError:
            pass


@pytest.mark.parametrize(
    "shown",
    [
        b"",
        b".",
        b"..",
        b"...",
        b"\xff\xfe.\x00.\x80",
        b"[" * 9000,
        pack(b"[" * 9000).encode() + b".e30.",
        (pack(b'{"alg":' + b"[" * 9000) + ".e30.").encode(),
        (pack([1]) + "." + pack([2]) + ".").encode(),
        (pack({"alg": ["HS256"]}) + "." + pack({}) + ".").encode(),
        (pack({"alg": {"a": 1}}) + "." + pack({}) + ".AAAA").encode(),
        (pack({"alg": 256}) + "." + pack({}) + ".AAAA").encode(),
        (pack({"alg": "HS256", "b64": False}) + "." + pack({}) + ".AAAA").encode(),
    ],
)
def test_what_is_no_token_is_refused(shown: bytes) -> None:
    refusal(shown)
    refusal(shown, **of_public(rsa_key(), "RS256"))


def test_claims_that_are_no_object_are_refused() -> None:
    for claims in ([1], "x", 7, None, b"\xff", b"{", b"[" * 9000):
        refusal(_signed(claims))


def test_a_long_token_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jwt.decode", None)
    assert "longer than" in refusal(b"a" * (TOKEN_BYTES_MAX + 1))


class LongKey:
    """One of 8,193 bits, which take a minute to be found, and none to be none."""

    def public_key(self) -> Any:
        return rsa.RSAPublicNumbers(65537, (1 << 8192) + 1).public_key()


class Exponent(NamedTuple):
    """A key with another public exponent."""

    exponent: int

    def public_key(self) -> Any:
        modulus = rsa_key().public_key().public_numbers().n
        return rsa.RSAPublicNumbers(self.exponent, modulus).public_key()


LONG_KEY = LongKey()


# --- keys that cannot be ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"tokenSecretKey": ""}, "neither is set"),
        ({"tokenSecretKey": "no key!"}, "neither a file: or data: URL"),
        ({"tokenSecretKey": "file:///no/such/file"}, "cannot be read"),
        ({"tokenSecretKey": "file:///"}, "cannot be read"),
        ({"tokenSecretKey": "data:;base64"}, "without a comma"),
        ({"tokenSecretKey": "data:;base64,!!"}, "not base64"),
        ({"tokenSecretKey": data_url(SECRET[:31])}, "at least 256"),
        ({"tokenSecretKey": data_url(public(rsa_key(), Encoding.PEM))}, "not a secret"),
        ({"tokenSecretKey": "", "tokenPublicKey": data_url(SECRET)}, "no public key"),
        (of_public(ec_key(), "RS256"), "no RSA key"),
        (of_public(rsa_key(), "ES256"), "no EC key"),
        (of_public(rsa_key(1024), "RS256"), "at least 2048"),
        (of_public(LONG_KEY, "RS256"), "at most 8192"),
        (of_public(Exponent(2**32 + 1), "RS256"), "tokenPublicKey has a public exponent of 33"),
        (of_public(Exponent(2**2000 + 1), "RS256"), r"2001 bits, and at most 2\^32 is taken"),
        ({"tokenAudienceClaim": "aud"}, "belong together"),
        ({"tokenAudience": "here"}, "belong together"),
    ],
)
def test_a_key_that_cannot_be_used_is_refused_and_not_told(
    changed: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        TokenProvider(Config(**settings(**changed)))
    value = changed.get("tokenSecretKey", "")
    assert len(value) < 9 or value not in str(raised.value)


def test_an_exponent_of_32_bits_is_taken() -> None:
    TokenProvider(Config(**settings(**of_public(Exponent(2**32 - 1), "RS256"))))


# --- by HTTP ----------------------------------------------------------------------------------


def test_a_request_shows_its_token_in_a_header_or_in_the_query() -> None:
    provider = TokenProvider(Config(**settings()))
    assert provider.shown_by({"authorization": "Bearer abc"}, {"token": "q"}) == b"abc"
    assert provider.shown_by({}, {"token": "q"}) == b"q"
    for headers in ({}, {"authorization": "Bearer "}, {"authorization": "bearer abc"}):
        with pytest.raises(NoCredentials):
            provider.shown_by(headers, {})


def test_nothing_of_a_key_is_in_its_providers_representation() -> None:
    provider = TokenProvider(Config(**settings()))
    assert repr(SECRET)[2:9] not in repr(provider)

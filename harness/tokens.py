"""Tokens and keys of the tests' own, and the settings of a broker that takes them."""

from __future__ import annotations

import base64
import functools
import time
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

PACKAGE = "org.apache.pulsar.broker.authentication."
TOKENS = PACKAGE + "AuthenticationProviderToken"
BASIC = PACKAGE + "AuthenticationProviderBasic"
CLIENT = "org.apache.pulsar.client.impl.auth.AuthenticationToken"  # of Java's clients
SECRET = bytes(range(64))


def data_url(data: bytes) -> str:
    return "data:;base64," + base64.b64encode(data).decode()


def settings(**more: Any) -> dict[str, Any]:
    """Of a broker that lets in who has a token that is signed with SECRET."""
    return {
        "authenticationEnabled": True,
        "authenticationProviders": TOKENS,
        "tokenSecretKey": data_url(SECRET),
        **more,
    }


def with_rights(kind: str) -> dict[str, str]:
    """Settings of a broker that asks who clients are and what they may; `root` may all."""
    shared = {
        **settings(authenticationEnabled="true"),
        "authorizationEnabled": "true",
        "superUserRoles": "root",
    }
    if kind not in ("apache", "cluster"):
        return shared
    return shared | {  # Apache's broker asks itself; those of a cluster ask each other
        "brokerClientAuthenticationPlugin": CLIENT,
        "brokerClientAuthenticationParameters": f"token:{token('root')}",
    }


def token(role: Any = "r", key: Any = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    """A token; its times are given in seconds from now."""
    now = time.time()
    times = {name: int(now + claims[name]) for name in ("exp", "nbf") if name in claims}
    return jwt.encode({"sub": role} | claims | times, key, algorithm=algorithm)


@functools.cache
def rsa_key(bits: int = 2048) -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


@functools.cache
def ec_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def public(key: Any, encoding: Encoding = Encoding.DER) -> bytes:
    found: bytes = key.public_key().public_bytes(encoding, PublicFormat.SubjectPublicKeyInfo)
    return found

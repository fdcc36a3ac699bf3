"""Keys that sign tokens, and the algorithms that each key allows.

The algorithms follow from the key, never from the token. So unsigned tokens are refused, and tokens
signed with a public key used as a secret.
"""

from __future__ import annotations

from typing import Any

from pyxbroker.base.properties import ConfigError

SECRET_BITS_MIN = 256
RSA_BITS_MIN = 2048
RSA_BITS_MAX = 8192  # a check takes a fraction of a millisecond,
RSA_EXPONENT_MAX = 1 << 32  # unless the exponent is large: 65537 is usual
CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
RSA_ALGORITHMS = [f"{kind}{size}" for kind in ("RS", "PS") for size in (256, 384, 512)]
PUBLIC_ALGORITHMS = (*RSA_ALGORITHMS, *CURVES.values())
PEM = b"-----BEGIN "


class UnfitKey(Exception):
    """Raised for a key that must not sign tokens; the message continues after the key's name."""


def secret_algorithms(secret: bytes) -> list[str]:
    """Return the algorithms of a secret. Raises UnfitKey."""
    if secret.lstrip().startswith(PEM):
        raise UnfitKey("is a key or certificate in PEM, not a secret")
    bits = len(secret) * 8
    if bits < SECRET_BITS_MIN:
        raise UnfitKey(
            f"has {bits} bits, and at least {SECRET_BITS_MIN} are needed (a file is named as"
            " file:///path)"
        )
    return [f"HS{size}" for size in (256, 384, 512) if bits >= size]


def public_algorithms(key: Any) -> list[str]:
    """Return the algorithms of an RSA or elliptic curve key of `cryptography`. Raises UnfitKey."""
    # Imported here: few brokers have a public key.
    from cryptography.hazmat.primitives.asymmetric import ec, rsa

    if isinstance(key, ec.EllipticCurvePublicKey):
        if key.curve.name not in CURVES:
            raise UnfitKey(f"has the curve {key.curve.name}, which tokens do not support")
        return [CURVES[key.curve.name]]
    if not isinstance(key, rsa.RSAPublicKey):
        raise UnfitKey("is neither an RSA key nor one of an elliptic curve")
    if key.key_size < RSA_BITS_MIN:
        raise UnfitKey(f"has {key.key_size} bits, and at least {RSA_BITS_MIN} are needed")
    if key.key_size > RSA_BITS_MAX:
        raise UnfitKey(f"has {key.key_size} bits, and at most {RSA_BITS_MAX} are taken")
    exponent = key.public_numbers().e
    if exponent > RSA_EXPONENT_MAX:
        raise UnfitKey(
            f"has a public exponent of {exponent.bit_length()} bits, and at most 2^32 is taken;"
            " 65537 is usual"
        )
    return list(RSA_ALGORITHMS)


def load_secret_key(key: str, secret: bytes) -> list[str]:
    """Return the algorithms of a secret in a setting or an option. Raises ConfigError."""
    try:
        return secret_algorithms(secret)
    except UnfitKey as error:
        hint = "; a public key belongs to tokenPublicKey" if PEM in secret[:64] else ""
        raise ConfigError(f"{key} {error}{hint}.") from None


def load_public_key(key: str, data: bytes) -> tuple[Any, list[str]]:
    """Load a public key, DER or PEM, and its algorithms. Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        load_der_public_key,
        load_pem_public_key,
    )

    is_pem = data.lstrip().startswith(PEM)
    try:
        found = load_pem_public_key(data) if is_pem else load_der_public_key(data)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{key} is no public key (X.509 SubjectPublicKeyInfo, DER or PEM)."
        ) from None
    try:
        return found, public_algorithms(found)
    except UnfitKey as error:
        raise ConfigError(f"{key} {error}.") from None


def load_private_key(key: str, data: bytes) -> tuple[Any, list[str]]:
    """Load a private key without a password, DER or PEM, and its algorithms. Raises ConfigError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import (
        load_der_private_key,
        load_pem_private_key,
    )

    is_pem = data.lstrip().startswith(PEM)
    try:
        load = load_pem_private_key if is_pem else load_der_private_key
        found: Any = load(data, None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigError(
            f"{key} is no private key (PKCS#8, DER or PEM, without a password)."
        ) from None
    try:
        return found, public_algorithms(found.public_key())
    except UnfitKey as error:
        raise ConfigError(f"{key} {error}.") from None

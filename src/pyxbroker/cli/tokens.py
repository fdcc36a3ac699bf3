"""`pyxbroker tokens`: creates and inspects keys and tokens, with the options of `pulsar tokens`.

Keys and tokens are written to stdout, or to files that only their owner can read. They are never
part of a message. An existing file is not overwritten, because the loss of a key would invalidate
its tokens.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import json
import os
import re
import secrets
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from pyxbroker.base.directories import with_path
from pyxbroker.base.extras import require
from pyxbroker.base.properties import ConfigError
from pyxbroker.cli import Group, Parser, fail

ABOUT = """\
Create and inspect keys and tokens. The options are those of `pulsar tokens`.

A broker reads a secret key from tokenSecretKey, or a public key from
tokenPublicKey. A client with a token signed by this key has the token's role.
"""

EXAMPLES = """\
Examples:
  pyxbroker tokens create-secret-key --output secret.key
  pyxbroker tokens create --secret-key file:///etc/pyxbroker/secret.key --subject orders
  pyxbroker tokens create -sk secret.key -s orders -e 30d > orders.jwt
  pyxbroker tokens validate -sk secret.key -f orders.jwt
"""

SECRET_FILE_MODE = 0o600
PUBLIC_FILE_MODE = 0o644
TOKEN_FILE_BYTES_MAX = 64 << 10
TOKEN_VARIABLE = "TOKEN"
SECRET_BYTES = {"HS256": 32, "HS384": 48, "HS512": 64}
RSA_BITS = {"256": 2048, "384": 3072, "512": 4096}  # by the number in the algorithm, as in Pulsar
RSA_EXPONENT = 65537
SECONDS = {
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86_400,
    "w": 7 * 86_400,
    "y": 365 * 86_400,
}
SECONDS_MAX = 1000 * SECONDS["y"]
_TIME = re.compile(r"(\d{1,12})([smhdwy]?)")
KEY_HELP = "file:///path, a path, data:;base64,... or base64"


def command(arguments: Sequence[str]) -> None:
    group = Group("tokens", ABOUT, {name: about for name, (_, about) in COMMANDS.items()}, EXAMPLES)
    name, rest = group.choose(arguments)
    try:
        COMMANDS[name][0](rest)
    except ConfigError as error:
        fail(str(error))
    except FileExistsError as error:
        fail(f"{error.filename} exists and was not overwritten: delete it, or name another file")
    except OSError as error:
        what = f"{error.filename} cannot be used: " if error.filename else ""
        fail(f"{what}{error.strerror or error}")


# --- keys -------------------------------------------------------------------------------------


def create_secret_key(arguments: Sequence[str]) -> None:
    parser = _parser("create-secret-key")
    add = parser.options.add_argument
    _add_algorithm(parser, "HS256", [*SECRET_BYTES])
    add("-o", "--output", metavar="FILE", help="Write the key to a new file instead of stdout.")
    add("-b", "--base64", action="store_true", help="Encode the key in base64.")
    options = parser.parse(arguments)
    key = secrets.token_bytes(SECRET_BYTES[options.algorithm])
    if options.base64:
        key = base64.b64encode(key)
    if options.output:
        _write_new(Path(options.output), key, SECRET_FILE_MODE)
    else:
        _write_out(key)


def create_key_pair(arguments: Sequence[str]) -> None:
    parser = _parser("create-key-pair")
    add = parser.options.add_argument
    _add_algorithm(parser, "RS256", _public_algorithms())
    for name in ("private", "public"):
        add(
            f"--output-{name}-key",
            metavar="FILE",
            required=True,
            help=f"New file for the {name} key (DER).",
        )
    options = parser.parse(arguments)
    require(parser.prog, "cryptography")
    private, public = _key_pair(options.algorithm)
    at = Path(options.output_private_key)
    _write_new(at, private, SECRET_FILE_MODE)
    try:
        _write_new(Path(options.output_public_key), public, PUBLIC_FILE_MODE)
    except OSError:
        at.unlink()  # a private key alone is useless, and would block the next attempt
        raise


def _public_algorithms() -> list[str]:
    return [f"{kind}{size}" for kind in ("RS", "PS", "ES") for size in RSA_BITS]


def _key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """Create a key pair in DER: PKCS#8, and X.509 SubjectPublicKeyInfo."""
    from cryptography.hazmat.primitives.asymmetric import ec, rsa
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        PublicFormat,
    )

    curves: dict[str, Any] = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}
    key: Any
    if algorithm in curves:
        key = ec.generate_private_key(curves[algorithm]())
    else:
        key = rsa.generate_private_key(RSA_EXPONENT, RSA_BITS[algorithm[2:]])
    public = key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()), public


# --- tokens -----------------------------------------------------------------------------------


def create(arguments: Sequence[str]) -> None:
    parser = _parser("create")
    add = parser.options.add_argument
    _add_algorithm(parser, None, [*SECRET_BYTES, *_public_algorithms()])
    add("-s", "--subject", metavar="ROLE", required=True, help="Role of the token.")
    add(
        "-e",
        "--expiry-time",
        metavar="TIME",
        type=_seconds,
        help="Lifetime of the token: 90s, 30m, 1h, 3d, 2w, 10y [unlimited].",
    )
    add("-sk", "--secret-key", metavar="KEY", help=f"Secret key that signs it: {KEY_HELP}.")
    add("-pk", "--private-key", metavar="KEY", help=f"Or private key that signs it: {KEY_HELP}.")
    add(
        "-hs",
        "--headers",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_header,
        help="Additional header of the token, such as kid=1; may be repeated.",
    )
    options = parser.parse(arguments)
    require(parser.prog, "jwt", "cryptography")
    signing, algorithms = _key_of(parser, options, "private")
    algorithm = options.algorithm or _usual(signing, algorithms)
    if algorithm not in algorithms:
        parser.error(f"This key signs tokens with {', '.join(algorithms)}.")
    claims: dict[str, Any] = {"sub": options.subject}
    if options.expiry_time is not None:
        claims["exp"] = int(time.time()) + options.expiry_time
    import jwt

    print(jwt.encode(claims, signing, algorithm, headers=dict(options.headers)))


def validate(arguments: Sequence[str]) -> None:
    parser = _parser("validate", "[OPTIONS] [TOKEN]")
    _add_algorithm(parser, None, [*SECRET_BYTES, *_public_algorithms()])
    _add_token(parser)
    add = parser.options.add_argument
    add("-sk", "--secret-key", metavar="KEY", help=f"Secret key that signed it: {KEY_HELP}.")
    add("-pk", "--public-key", metavar="KEY", help=f"Or the public key: {KEY_HELP}.")
    options = parser.parse(arguments)
    require(parser.prog, "jwt", "cryptography")
    key, algorithms = _key_of(parser, options, "public")
    if options.algorithm:
        algorithms = [each for each in algorithms if each[:2] == options.algorithm[:2]]
    token = _token_of(parser, options)
    from pyxbroker.auth.claims import check_size, check_times, verified_claims
    from pyxbroker.base.errors import AuthenticationError

    try:
        check_size(token)
        claims = verified_claims(token, key, algorithms)
        check_times(claims, time.time(), 0)
    except AuthenticationError as error:
        fail(str(error))
    print(json.dumps(claims, ensure_ascii=False))


def show(arguments: Sequence[str]) -> None:
    parser = _parser("show", "[OPTIONS] [TOKEN]")
    _add_token(parser)
    token = _token_of(parser, parser.parse(arguments))
    parts = token.split(b".")
    if len(parts) != 3:
        fail("Not a token: expected three parts separated by dots")
    shown = [_json_of(part) for part in parts[:2]]
    print("\n---\n".join(shown))


def _json_of(part: bytes) -> str:
    try:
        text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)).decode()
        json.loads(text)
    except (binascii.Error, ValueError, RecursionError):
        fail("Not a token: a part of it is not JSON in base64")
    return text


# The commands, with their texts in the help.
COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "create-secret-key": (create_secret_key, "Create a secret key for tokenSecretKey."),
    "create-key-pair": (create_key_pair, "Create a private key, and a public one for brokers."),
    "create": (create, "Create a token."),
    "validate": (validate, "Check a token with a key; exits with 1 if the token is invalid."),
    "show": (show, "Print the contents of a token without checking it."),
}


# --- options ----------------------------------------------------------------------------------


def _parser(name: str, arguments: str = "[OPTIONS]") -> Parser:
    return Parser(f"tokens {name}", COMMANDS[name][1], arguments)


def _add_algorithm(parser: Parser, default: str | None, choices: list[str]) -> None:
    parser.options.add_argument(
        "-a",
        "--signature-algorithm",
        dest="algorithm",
        metavar="NAME",
        default=default,
        choices=choices,
        help=f"One of {', '.join(choices)} [{default or 'depends on the key'}].",
    )


def _add_token(parser: Parser) -> None:
    parser.add_argument(
        "token",
        metavar="TOKEN",
        nargs="?",
        help="The token; other users of this machine can see it in the list of processes.",
    )
    add = parser.options.add_argument
    add("-i", "-st", "--stdin", action="store_true", help="Read the token from stdin.")
    add("-f", "--token-file", metavar="FILE", help="Read the token from a file.")


def _token_of(parser: Parser, options: Namespace) -> bytes:
    if options.token is not None:
        return str(options.token).strip().encode()
    if options.stdin:
        return sys.stdin.buffer.readline(TOKEN_FILE_BYTES_MAX).strip()
    if options.token_file:
        with Path(options.token_file).open("rb") as file:
            return file.read(TOKEN_FILE_BYTES_MAX).strip()
    if TOKEN_VARIABLE in os.environ:
        return os.environb[TOKEN_VARIABLE.encode()].strip()
    parser.error(
        "No token given: pass it as an argument, with --stdin or --token-file, or in the"
        f" environment variable {TOKEN_VARIABLE}."
    )


def _key_of(parser: Parser, options: Namespace, other: str) -> tuple[Any, list[str]]:
    """Return the key, and the algorithms that it supports. Raise ConfigError."""
    secret, key = options.secret_key, getattr(options, f"{other}_key")
    if bool(secret) == bool(key):
        parser.error(f"Exactly one of --secret-key and --{other}-key is required.")
    from pyxbroker.auth import signing_keys
    from pyxbroker.auth.secrets import read_secret, secret_name

    if secret:
        data = read_secret("--secret-key", secret)
        return data, signing_keys.load_secret_key(secret_name("--secret-key", secret), data)
    name = f"--{other}-key"
    data = read_secret(name, key)
    load = signing_keys.load_private_key if other == "private" else signing_keys.load_public_key
    return load(secret_name(name, key), data)


def _usual(key: Any, algorithms: list[str]) -> str:
    """Return Pulsar's choice of an algorithm: the strongest one for the size of the key."""
    if algorithms[0].startswith("RS"):
        fitting = [number for number, bits in RSA_BITS.items() if key.key_size >= bits]
        return f"RS{fitting[-1]}"
    return algorithms[-1]


def _seconds(text: str) -> int:
    found = _TIME.fullmatch(text)
    seconds = int(found[1]) * SECONDS[found[2] or "s"] if found else 0
    if not 0 < seconds <= SECONDS_MAX:
        _wrong(f"{text!r} is not a duration; expected such as 90s, 30m, 1h, 3d, 2w or 10y")
    return seconds


def _header(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or name == "alg":
        _wrong(f"{text!r} is not KEY=VALUE with a key other than alg")
    return name, value


def _wrong(sentence: str) -> NoReturn:
    from argparse import ArgumentTypeError

    raise ArgumentTypeError(f"{sentence}.")


# --- files ------------------------------------------------------------------------------------


def _write_new(path: Path, data: bytes, mode: int) -> None:
    """Create a file. Raise OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    descriptor = os.open(path, flags, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        with contextlib.suppress(OSError):
            path.unlink()
        raise with_path(error, path) from None


def _write_out(data: bytes) -> None:
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()

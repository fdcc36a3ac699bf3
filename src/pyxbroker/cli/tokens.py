"""`pyxbroker tokens`: makes keys and tokens, and looks at them, with the options of Pulsar's own
`pulsar tokens`.

Keys and tokens go to files that their owner alone can read, or to stdout, and are never in a
message. A file that is there already is not written over: with a key all of its tokens would end.
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
from pyxbroker.base.properties import ConfigError
from pyxbroker.cli import Group, Parser, fail

ABOUT = """\
Make keys and tokens, and look at them. The options are those of `pulsar tokens`.

A broker is given a secret key with tokenSecretKey, or a public one with
tokenPublicKey; whoever has a token that is signed with it has the role in it.
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
        fail(f"{error.filename} is there and was left as it is: delete it, or name another file")
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
            help=f"The new file of the {name} key (DER).",
        )
    options = parser.parse(arguments)
    private, public = _key_pair(options.algorithm)
    at = Path(options.output_private_key)
    _write_new(at, private, SECRET_FILE_MODE)
    try:
        _write_new(Path(options.output_public_key), public, PUBLIC_FILE_MODE)
    except OSError:
        at.unlink()  # half a pair is of no use, and would be in the way the next time
        raise


def _public_algorithms() -> list[str]:
    return [f"{kind}{size}" for kind in ("RS", "PS", "ES") for size in RSA_BITS]


def _key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """DER: PKCS#8, and X.509 SubjectPublicKeyInfo."""
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
    add("-s", "--subject", metavar="ROLE", required=True, help="Whose token it is.")
    add(
        "-e",
        "--expiry-time",
        metavar="TIME",
        type=_seconds,
        help="When it expires, from now: 90s, 30m, 1h, 3d, 2w, 10y [it does not].",
    )
    add("-sk", "--secret-key", metavar="KEY", help=f"The secret that signs it: {KEY_HELP}.")
    add("-pk", "--private-key", metavar="KEY", help=f"Or the private key: {KEY_HELP}.")
    add(
        "-hs",
        "--headers",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        type=_header,
        help="One more header of the token, such as kid=1; may be given several times.",
    )
    options = parser.parse(arguments)
    signing, algorithms = _key_of(parser, options, "private")
    algorithm = options.algorithm or _usual(signing, algorithms)
    if algorithm not in algorithms:
        parser.error(f"Tokens of this key are signed with {', '.join(algorithms)}.")
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
    add("-sk", "--secret-key", metavar="KEY", help=f"The secret that signed it: {KEY_HELP}.")
    add("-pk", "--public-key", metavar="KEY", help=f"Or the public key: {KEY_HELP}.")
    options = parser.parse(arguments)
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
        fail("This is no token: it does not have three parts with dots between them")
    shown = [_json_of(part) for part in parts[:2]]
    print("\n---\n".join(shown))


def _json_of(part: bytes) -> str:
    try:
        text = base64.urlsafe_b64decode(part + b"=" * (-len(part) % 4)).decode()
        json.loads(text)
    except (binascii.Error, ValueError, RecursionError):
        fail("This is no token: a part of it is not JSON in base64")
    return text


# The commands, and what the list of them says.
COMMANDS: dict[str, tuple[Callable[[Sequence[str]], None], str]] = {
    "create-secret-key": (create_secret_key, "Make a secret key, for tokenSecretKey."),
    "create-key-pair": (create_key_pair, "Make a private and a public key, for tokenPublicKey."),
    "create": (create, "Make a token."),
    "validate": (validate, "Check a token with a key; ends with 1 when it does not count."),
    "show": (show, "Print what a token says, without checking it."),
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
        help=f"One of {', '.join(choices)} [{default or 'what the key is for'}].",
    )


def _add_token(parser: Parser) -> None:
    parser.add_argument_group("Arguments").add_argument(
        "token",
        metavar="TOKEN",
        nargs="?",
        help="The token, which others on this machine can see in the list of processes.",
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
        "A token is needed: as an argument, by --stdin or --token-file, or in the environment"
        f" variable {TOKEN_VARIABLE}."
    )


def _key_of(parser: Parser, options: Namespace, other: str) -> tuple[Any, list[str]]:
    """The secret, or the private or public key, and the algorithms that it is for. Raises
    ConfigError.
    """
    secret, key = options.secret_key, getattr(options, f"{other}_key")
    if bool(secret) == bool(key):
        parser.error(f"Either --secret-key or --{other}-key is needed, and not both.")
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
    """The algorithm that Pulsar takes for a key: the strongest that its size is for."""
    if algorithms[0].startswith("RS"):
        fitting = [number for number, bits in RSA_BITS.items() if key.key_size >= bits]
        return f"RS{fitting[-1]}"
    return algorithms[-1]


def _seconds(text: str) -> int:
    found = _TIME.fullmatch(text)
    seconds = int(found[1]) * SECONDS[found[2] or "s"] if found else 0
    if not 0 < seconds <= SECONDS_MAX:
        _wrong(f"{text!r} is not a time; expected such as 90s, 30m, 1h, 3d, 2w or 10y")
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
    """Raises OSError."""
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

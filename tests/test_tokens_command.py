"""`pyxbroker tokens`: keys and tokens that brokers take, and the words for what is wrong."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import jwt
import pytest
from harness.tokens import SECRET, data_url, ec_key, public, rsa_key, token

from command_line import COMMAND, TIMEOUT_S, error_line, imported_by, run
from pyxbroker.auth.token import TokenProvider
from pyxbroker.settings.config import Config


def tokens(*arguments: str | Path, stdin: bytes = b"", **environment: str) -> Any:
    return subprocess.run(
        [*COMMAND, "tokens", *map(str, arguments)],
        input=stdin,
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
        env={**os.environ, **environment},
    )


def made(*arguments: str | Path) -> bytes:
    finished = tokens(*arguments)
    assert finished.returncode == 0, finished.stderr
    return bytes(finished.stdout)


def role_of(shown: bytes, **settings: Any) -> str | None:
    provider = TokenProvider(Config(**settings))
    return asyncio.run(provider.authenticate(shown.strip())).role


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


# --- keys and tokens --------------------------------------------------------------------------


@pytest.mark.parametrize(("algorithm", "size"), [(None, 32), ("HS384", 48), ("HS512", 64)])
def test_a_secret_key_makes_tokens_that_a_broker_takes(
    tmp_path: Path, algorithm: str | None, size: int
) -> None:
    path = tmp_path / "secret.key"
    chosen = ["-a", algorithm] if algorithm else []
    assert made("create-secret-key", "--output", path, *chosen) == b""
    assert (mode_of(path), path.stat().st_size) == (0o600, size)
    shown = made("create", "--secret-key", path.as_uri(), "--subject", "orders")
    assert jwt.get_unverified_header(shown.strip())["alg"] == (algorithm or "HS256")
    assert role_of(shown, tokenSecretKey=path.as_uri()) == "orders"


def test_a_secret_key_may_be_written_out_and_in_base64(tmp_path: Path) -> None:
    assert len(made("create-secret-key")) == 32
    text = made("create-secret-key", "-b").decode()
    assert len(base64.b64decode(text, validate=True)) == 32
    shown = made("create", "-sk", f"data:;base64,{text}", "-s", "me")
    assert role_of(shown, tokenSecretKey=text) == "me"
    path = tmp_path / "k"
    made("create-secret-key", "-b", "-o", path)
    assert len(base64.b64decode(path.read_bytes(), validate=True)) == 32 and mode_of(path) == 0o600


@pytest.mark.parametrize("algorithm", ["RS256", "PS384", "ES256", "ES512"])
def test_a_pair_of_keys_makes_tokens_that_a_broker_takes(tmp_path: Path, algorithm: str) -> None:
    private, known = tmp_path / "private.key", tmp_path / "public.key"
    pair = ("--output-private-key", private, "--output-public-key", known)
    made("create-key-pair", "-a", algorithm, *pair)
    assert mode_of(private) == 0o600 and mode_of(known) & 0o022 == 0
    shown = made("create", "--private-key", private, "-s", "me")
    settings = {"tokenPublicKey": str(known), "tokenPublicAlg": algorithm}
    assert role_of(shown, **settings) == "me"
    assert json.loads(made("validate", "-pk", known, shown.decode().strip())) == {"sub": "me"}


def test_a_token_expires_when_it_was_told_to_and_has_headers(tmp_path: Path) -> None:
    key = data_url(SECRET)
    shown = made("create", "-sk", key, "-s", "me", "-e", "2h", "-hs", "kid=k1", "-hs", "x=1=2")
    claims = jwt.decode(shown.strip(), SECRET, ["HS512"])
    assert claims["exp"] == pytest.approx(time.time() + 7200, abs=20)
    header = jwt.get_unverified_header(shown.strip())
    assert header == {"alg": "HS512", "typ": "JWT", "kid": "k1", "x": "1=2"}
    for text, seconds in {"90": 90, "90s": 90, "3m": 180, "1d": 86_400, "2w": 1_209_600}.items():
        shown = made("create", "-sk", key, "-s", "me", "-e", text, "-a", "HS256")
        claims = jwt.decode(shown.strip(), SECRET, ["HS256"])
        assert claims["exp"] == pytest.approx(time.time() + seconds, abs=20)


def test_a_file_that_is_there_is_left_as_it_is(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    old.write_bytes(b"precious")
    finished = run("tokens", "create-secret-key", "-o", old)
    assert finished.returncode == 1 and f"{old} exists" in error_line(finished)
    pair = ("--output-private-key", new, "--output-public-key", old)
    assert run("tokens", "create-key-pair", *pair).returncode == 1
    assert old.read_bytes() == b"precious" and not new.exists()


# --- looking at tokens ------------------------------------------------------------------------


def test_a_token_comes_from_each_place_that_pulsar_has(tmp_path: Path) -> None:
    shown = token("me")
    path = tmp_path / "token"
    path.write_text(shown + "\n")
    places: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
        ((shown,), {}),
        (("--stdin",), {"stdin": f"{shown}\nmore".encode()}),
        (("-i",), {"stdin": shown.encode()}),
        (("-f", path), {}),
        (("--token-file", path), {}),
        ((), {"TOKEN": shown}),
    ]
    for options, more in places:
        finished = tokens("validate", "-sk", data_url(SECRET), *options, **more)
        assert (finished.returncode, json.loads(finished.stdout)) == (0, {"sub": "me"})
    header, claims = made("show", shown).decode().split("\n---\n")
    assert json.loads(header)["alg"] == "HS256" and json.loads(claims) == {"sub": "me"}


@pytest.mark.parametrize(
    ("shown", "key", "reason"),
    [
        (token("me", SECRET[::-1]), ["-sk", data_url(SECRET)], "InvalidSignatureError"),
        (token("me", exp=-10), ["-sk", data_url(SECRET)], "has expired"),
        (token("me", nbf=86_400), ["-sk", data_url(SECRET)], "not valid yet"),
        ("nothing", ["-sk", data_url(SECRET)], "DecodeError"),
        ("x" * 20_000, ["-sk", data_url(SECRET)], "longer than"),
        (jwt.encode({"sub": "me"}, "", "none"), ["-sk", data_url(SECRET)], "InvalidAlg"),
        (token("me"), ["-pk", data_url(public(rsa_key()))], "InvalidAlg"),
        (token("me", ec_key(), "ES256"), ["-pk", data_url(public(ec_key())), "-a", "RS256"], ""),
    ],
)
def test_a_token_that_does_not_count_ends_with_one(shown: str, key: list[str], reason: str) -> None:
    finished = run("tokens", "validate", *key, shown)
    assert finished.returncode == 1 and reason in error_line(finished)
    assert shown not in finished.stderr


@pytest.mark.parametrize("shown", ["nothing", "a.b", "!.!.!", "e30.W10", "e30.!.x", "e30.AAA.x"])
def test_what_is_no_token_is_not_shown(shown: str) -> None:
    finished = run("tokens", "show", shown)
    assert finished.returncode == 1 and "Not a token" in error_line(finished)


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        ([], "Usage:"),
        (["mint"], "No such command 'mint'"),
        (["create", "-sk", "x"], "required: -s/--subject"),
        (["create", "-s", "me"], "Exactly one of --secret-key and --private-key is required"),
        (["create", "-s", "me", "-sk", "a", "-pk", "b"], "Exactly one of"),
        (["create", "-s", "me", "-sk", data_url(SECRET), "-e", "soon"], "'soon' is not a duration"),
        (["create", "-s", "me", "-sk", data_url(SECRET), "-e", "0"], "'0' is not a duration"),
        (["create", "-s", "me", "-sk", data_url(SECRET), "-hs", "alg=none"], "other than alg"),
        (["create", "-s", "me", "-sk", data_url(SECRET), "-a", "RS256"], "HS256, HS384, HS512"),
        (["create-secret-key", "-a", "RS256"], "invalid choice"),
        (["create-key-pair"], "required: --output-private-key"),
        (["validate", "x.y.z"], "Exactly one of --secret-key and --public-key is required"),
        (["validate", "-sk", data_url(SECRET)], "No token given"),
        (["show"], "No token given"),
    ],
)
def test_wrong_usage_is_told(arguments: list[str], answer: str) -> None:
    finished = run("tokens", *arguments)
    assert (finished.returncode, finished.stdout) == (2, "") and answer in finished.stderr


@pytest.mark.parametrize(
    ("arguments", "answer"),
    [
        (["create", "-s", "me", "-sk", "/nowhere.key"], "--secret-key is neither"),
        (["create", "-s", "me", "-sk", "file:///nowhere"], "cannot be read: No such file"),
        (["create", "-s", "me", "-sk", data_url(b"short")], "at least 256 are needed"),
        (["create", "-s", "me", "-pk", data_url(SECRET)], "--private-key is no private key"),
        (["validate", "-pk", data_url(SECRET), "x"], "--public-key is no public key"),
        (["validate", "-sk", data_url(SECRET), "-f", "/nowhere"], "/nowhere cannot be used"),
        (["create-secret-key", "-o", "/nowhere/key"], "/nowhere/key cannot be used"),
    ],
)
def test_what_cannot_be_used_is_told_without_the_secret(arguments: list[str], answer: str) -> None:
    finished = run("tokens", *arguments)
    assert finished.returncode == 1 and answer in error_line(finished)
    assert base64.b64encode(SECRET).decode() not in finished.stderr


def test_nothing_is_imported_before_it_is_used() -> None:
    heavy = {"jwt", "cryptography", "asyncio", "google.protobuf", "pyxbroker._native"}
    assert not heavy & imported_by("tokens", "create-secret-key", "-b")


# Made by `pulsar tokens` of Apache Pulsar 4.2.4.
PULSARS_SECRET = "kixR2FqclvZ5jDiwOpBePwYY6O7nHsrOCow09+nrNaE="
PULSARS_TOKEN = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJtZSJ9.vgmKd5gFP7LY_Rot72YWKhf2BWEuiG4F5AKFuShg05U"
PULSARS_PRIVATE_KEY = (
    "MEECAQAwEwYHKoZIzj0CAQYIKoZIzj0DAQcEJzAlAgEBBCC26ZNYt3okoZlAtaoWfnaE7uuYvaBem2pSsa01vGiULA=="
)
PULSARS_PUBLIC_KEY = (
    "MFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAE60BlnkqIKJRGIN8jZRMTWWFKd3eItkjBVBdfshzq/dsisF7djQGkeAgHd"
    "KGgJm2/1gO1TA217QVnepi4o2U5SA=="
)
PULSARS_EC_TOKEN = (
    "eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJtZSJ9.1bAJX4mfGXrGn_P7NWhXEKzBTdcilo88-NrpnxhUNCo5HqOAEhNRdXFr"
    "fyrp383QJKwX5ROE2W05WSL4lhVO_A"
)


def test_keys_and_tokens_of_pulsars_own_program_are_taken() -> None:
    secret, known = ("-sk", PULSARS_SECRET), ("-pk", PULSARS_PUBLIC_KEY)
    for key, shown in ((secret, PULSARS_TOKEN), (known, PULSARS_EC_TOKEN)):
        assert json.loads(made("validate", *key, shown)) == {"sub": "me"}
    assert role_of(PULSARS_TOKEN.encode(), tokenSecretKey=PULSARS_SECRET) == "me"
    made_by_us = made("create", "-pk", PULSARS_PRIVATE_KEY, "-s", "you")
    assert role_of(made_by_us, tokenPublicKey=PULSARS_PUBLIC_KEY, tokenPublicAlg="ES256") == "you"

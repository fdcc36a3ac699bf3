"""Users and passwords from a file as htpasswd writes it."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import subprocess
import time
from pathlib import Path
from typing import Any

import bcrypt
import pytest
from harness.tokens import BASIC, data_url

from pyxbroker.auth import basic, htpasswd
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.basic import BasicProvider
from pyxbroker.auth.htpasswd import APR1_BYTES_MAX, Check, apr1, read_users
from pyxbroker.auth.provider import Identity, NoCredentials
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config

# Made by `openssl passwd -apr1 -salt abcdefgh secret`.
APR1 = "$apr1$abcdefgh$h9FWgUz3n9YxylKLlR5SQ/"
BCRYPT = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
SHA = "{SHA}" + base64.b64encode(hashlib.sha1(b"secret").digest()).decode()
USERS = f"# the users\n\na:{APR1}\nb:{BCRYPT}\ny:{BCRYPT.replace('$2b$', '$2y$')}\ns:{SHA}\n"


def provider(users: str = USERS, **more: Any) -> BasicProvider:
    return BasicProvider(Config(basicAuthConf=data_url(users.encode()), **more))


def refused(shown: bytes, users: str = USERS) -> str:
    with pytest.raises(AuthenticationError) as raised:
        asyncio.run(provider(users).authenticate(shown))
    return str(raised.value)


@pytest.mark.parametrize("user", ["a", "b", "y", "s"])
def test_each_kind_of_hash(user: str) -> None:
    async def main() -> None:
        one = provider()
        for _ in range(2):
            assert await one.authenticate(f"{user}:secret".encode()) == Identity(user)
        for wrong in ("", "secre", "secrets", "Secret", "secret\0", "secret\0x"):
            with pytest.raises(AuthenticationError, match="invalid"):
                await one.authenticate(f"{user}:{wrong}".encode())

    asyncio.run(main())


def test_crypt_by_the_c_library() -> None:
    hashed = subprocess.run(
        ["perl", "-e", 'print crypt("secret", "ab")'], capture_output=True, text=True, check=True
    ).stdout
    check = read_users(f"c:{hashed}\n".encode())["c"]
    assert check(b"secret") and not check(b"secreT") and not check(b"") and not check(b"secret\0")


@pytest.mark.parametrize("password", ["", "a", "x" * 15, "x" * 16, "y" * 40, "über", ":"])
def test_apr1_is_that_of_openssl(password: str) -> None:
    command = ["openssl", "passwd", "-apr1", "-salt", "zz", password]
    made = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    assert apr1(password.encode(), b"zz") == made


def test_a_long_password_costs_apr1_no_more_than_a_short_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds Python's lock: 4,000 bytes would keep the loop waiting for over ten milliseconds."""
    longest = b"x" * APR1_BYTES_MAX
    check = read_users(f"a:{apr1(longest, b'zz')}\n".encode())["a"]
    empty = read_users(f"a:{apr1(b'', b'zz')}\n".encode())["a"]
    sizes: list[int] = []

    def noting(password: bytes, salt: bytes) -> str:
        sizes.append(len(password))
        return apr1(password, salt)

    monkeypatch.setattr(htpasswd, "apr1", noting)
    assert check(longest)
    assert not check(longest + b"x") and not check(b"x" * 4000) and not empty(b"x" * 4000)
    assert sizes == [APR1_BYTES_MAX, 0, 0, 0]


def test_what_is_shown_has_one_colon() -> None:
    for shown in (b"a", b"", b":", b"a:secret:", b":secret", b"\xff:secret", b"nobody:secret"):
        refused(shown)
    assert "longer than" in refused(b"a:" + b"x" * 5000)
    # Also where the file would have it: what is behind the second one may be another's.
    hashes = [bcrypt.hashpw(each, bcrypt.gensalt(4)).decode() for each in (b"se:cret", b"")]
    users = "a:{}\nb:{}\n".format(*hashes)
    for shown in (b"a:se:cret", b"b"):
        assert "user:password" in refused(shown, users)


def test_a_user_whom_nobody_knows_takes_as_long_as_another_one() -> None:
    """Else names could be guessed: whichever hashes a file has, and in whichever order."""
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(9)).decode()
    cheaper = bcrypt.hashpw(b"secret", bcrypt.gensalt(5)).decode()
    users = f"s:{SHA}\na:{APR1}\nc:{cheaper}\nb:{hashed}\nz:{SHA}\n"

    def seconds(shown: bytes) -> float:
        began = time.process_time()  # others may use the machine as well
        refused(shown, users)
        return time.process_time() - began

    known = min(seconds(b"b:x") for _ in range(3))
    for shown in (b"nobody:x", b"s:x", b"a:x", b"c:x", b"nobody:" + 100 * b"x", b"b:x\0"):
        assert seconds(shown) > 0.3 * known, shown


def test_what_is_right_for_the_costliest_hash_is_right_for_its_user_alone() -> None:
    hashed = bcrypt.hashpw(b"other", bcrypt.gensalt(5)).decode()
    users = f"s:{SHA}\nb:{hashed}\n"
    for shown in (b"nobody:other", b"s:other", b"b:secret"):
        refused(shown, users)
    one = provider(users)
    assert asyncio.run(one.authenticate(b"b:other")) == Identity("b")
    assert asyncio.run(one.authenticate(b"s:secret")) == Identity("s")


def test_a_check_is_done_once_for_a_password_that_was_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        one = provider()
        await one.authenticate(b"b:secret")
        checks: list[bytes] = []

        def never(password: bytes) -> bool:
            checks.append(password)
            return False

        monkeypatch.setitem(one._users, "b", Check(never, one._slowest_check.cost))
        assert await one.authenticate(b"b:secret") == Identity("b")
        with pytest.raises(AuthenticationError):
            await one.authenticate(b"b:other")
        assert checks == [b"other"]
        assert b"secret" not in repr(one.__dict__).encode()

    asyncio.run(main())


def test_not_more_wait_for_a_check_than_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basic, "WAITING_MAX", 2)

    async def main() -> None:
        one = provider()
        shown = [f"b:{number}".encode() for number in range(5)]
        found = await asyncio.gather(*map(one.authenticate, shown), return_exceptions=True)
        assert sum("wait to be checked" in str(each) for each in found) == 2  # one is checked
        assert await one.authenticate(b"b:secret") == Identity("b")

    asyncio.run(main())


def test_the_loop_goes_on_while_a_password_is_checked() -> None:
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(11)).decode()

    async def main() -> None:
        task = asyncio.ensure_future(provider(f"b:{hashed}\n").authenticate(b"b:secret"))
        turns = 0
        while not task.done():
            turns += 1
            await asyncio.sleep(0.001)
        assert task.result().role == "b" and turns > 5

    asyncio.run(main())


@pytest.mark.parametrize(
    ("users", "reason"),
    [
        ("", "no users"),
        ("# nobody\n", "no users"),
        ("a", "line 1: expected user:hash"),
        (f":{SHA}", "line 1: expected user:hash"),
        (f"a:{SHA}\na:{SHA}", "line 2: the user is there twice"),
        (f"a:b:{SHA}", "line 1: expected user:hash"),
        ("a:s3cret", "neither apr1, bcrypt, SHA nor crypt"),
        ("a:", "neither apr1"),
        ("a:$6$salt$" + "x" * 86, "neither apr1"),
        ("a:$2x$04$" + "x" * 53, "neither apr1"),
        ("a:$2b$31$" + "e" * 53, "a cost of bcrypt"),
        ("a:$2b$04$" + "x" * 22 + "e" * 31, "neither apr1, bcrypt"),  # bits behind the salt's end
        ("a:$2b$04$" + "e" * 52 + "x", "neither apr1, bcrypt"),  # and behind the hash's
        ("a:{SHA}s3cret", "20 bytes of base64"),
        ("a:{SHA}czNjcmV0", "20 bytes of base64"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_and_not_told(users: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason) as raised:
        provider(users)
    assert "s3cret" not in str(raised.value)
    with pytest.raises(ConfigError, match="not set"):
        BasicProvider(Config())


def test_the_file_may_be_named_by_its_path(tmp_path: Path) -> None:
    path = tmp_path / ".htpasswd"
    path.write_text(USERS)
    config = Config(
        authenticationEnabled=True, authenticationProviders=BASIC, basicAuthConf=str(path)
    )
    verified = asyncio.run(Authentication(config).verify("basic", b"b:secret"))
    assert verified.identity == Identity("b")


def test_a_request_shows_user_and_password_in_its_header() -> None:
    one = provider()
    shown = base64.b64encode(b"b:secret").decode()
    for scheme in ("Basic", "basic", "BASIC"):
        assert one.shown_by({"authorization": f"{scheme} {shown}"}, {}) == b"b:secret"
    for header in ("", "Basic", "Basic ?", f"Bearer {shown}", shown):
        with pytest.raises(NoCredentials):
            one.shown_by({"authorization": header} if header else {}, {})

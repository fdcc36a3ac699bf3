"""Files of users and hashes of passwords, as Apache's `htpasswd` writes them.

    user:$apr1$salt$hash      MD5 in a thousand rounds (htpasswd -m, its default)
    user:$2y$cost$hash        bcrypt (htpasswd -B); recommended
    user:{SHA}hash            SHA-1 without salt (htpasswd -s)
    user:sshash               Unix crypt (htpasswd -d); the first two letters are the salt

Each hash is checked by one function, and all of them use the one comparison of secrets. bcrypt
takes as long as its cost demands, so do not call it on an event loop. bcrypt and crypt release the
GIL; apr1 is Python code, and holds it.
"""

from __future__ import annotations

import base64
import ctypes
import ctypes.util
import hashlib
import re
from collections.abc import Callable
from typing import NamedTuple

from pyxbroker.auth.secrets import is_same
from pyxbroker.base.extras import require
from pyxbroker.base.properties import ConfigError

APR1 = "$apr1$"
APR1_ROUNDS = 1000
APR1_BYTES_MAX = 255  # limit for a password, as in htpasswd; it takes a millisecond
_LETTERS = "./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
# 16 bytes of salt are 22 letters, 23 bytes of hash are 31. The last letter of each has four or two
# unused bits, which are 0. bcrypt refuses other salts, but only at a login.
_BCRYPT = re.compile(
    r"\$2[aby]\$(\d\d)\$[./A-Za-z0-9]{21}[.Oeu][./A-Za-z0-9]{30}[.CGKOSWaeimquy26]"
)
_BCRYPT_COST_MAX = 15  # one or two CPU seconds per guess
_BCRYPT_BYTES_MAX = 72  # of a password; bcrypt ignores further bytes
_APR1 = re.compile(r"\$apr1\$[^$:]{0,8}\$[./A-Za-z0-9]{22}")
_SHA = "{SHA}"
_CRYPT = re.compile(r"[./A-Za-z0-9]{13}")

# Relative costs of a check. bcrypt doubles with each step; its lowest cost, 4, takes twice as long
# as apr1.
_SHA_COST, _CRYPT_COST, _APR1_COST = range(3)


class Check(NamedTuple):
    """Checks a password against a hash."""

    is_right: Callable[[bytes], bool]
    cost: int  # relative duration
    holds_lock: bool = False  # holds the GIL, so that no other Python thread runs

    def __call__(self, password: bytes) -> bool:
        return self.is_right(password)


def read_users(data: bytes, name: str = "basicAuthConf") -> dict[str, Check]:
    """Parse the users of a file. Raises ConfigError, which names lines without their content."""
    users: dict[str, Check] = {}
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{name} is not UTF-8 text.") from None
    for number, line in enumerate(lines, start=1):
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        user, colon, hashed = line.partition(":")
        if not colon or not user or ":" in hashed:
            raise ConfigError(f"{name}, line {number}: expected user:hash.")
        if user in users:
            raise ConfigError(f"{name}, line {number}: the user is there twice.")
        users[user] = _check_of(hashed, f"{name}, line {number}")
    if not users:
        raise ConfigError(f"{name} has no users.")
    return users


def _check_of(hashed: str, place: str) -> Check:
    if _APR1.fullmatch(hashed):
        return Check(_apr1(hashed), _APR1_COST, holds_lock=True)
    found = _BCRYPT.fullmatch(hashed)
    if found:
        cost = int(found[1])
        if not 4 <= cost <= _BCRYPT_COST_MAX:
            raise ConfigError(f"{place}: a cost of bcrypt is 4 to {_BCRYPT_COST_MAX}.")
        require(f"{place}: a hash of bcrypt", "bcrypt")
        return Check(_bcrypt(hashed.encode()), 1 << cost)
    if hashed.startswith(_SHA):
        digest = _sha_of(hashed, place)
        return Check(lambda password: is_same(hashlib.sha1(password).digest(), digest), _SHA_COST)
    if _CRYPT.fullmatch(hashed):
        return Check(_crypt(hashed, place), _CRYPT_COST)
    raise ConfigError(f"{place}: the hash is neither apr1, bcrypt, SHA nor crypt.")


def _apr1(hashed: str) -> Callable[[bytes], bool]:
    salt = hashed.removeprefix(APR1).partition("$")[0].encode()

    def check(password: bytes) -> bool:
        # A password of 4,000 bytes would hold the GIL for more than ten milliseconds. A password
        # that cannot be right takes as long as any other.
        can_be = len(password) <= APR1_BYTES_MAX
        made = apr1(password if can_be else b"", salt)
        return is_same(made.encode(), hashed.encode()) and can_be

    return check


def _sha_of(hashed: str, place: str) -> bytes:
    try:
        digest = base64.b64decode(hashed.removeprefix(_SHA), validate=True)
    except ValueError:
        digest = b""
    if len(digest) != hashlib.sha1().digest_size:
        raise ConfigError(f"{place}: the SHA hash is not 20 bytes of base64.")
    return digest


def _bcrypt(hashed: bytes) -> Callable[[bytes], bool]:
    import bcrypt

    def check(password: bytes) -> bool:
        # bcrypt ignores everything after a zero byte, and newer versions refuse long passwords. A
        # password that cannot be right takes as long as any other.
        can_be = b"\0" not in password and len(password) <= _BCRYPT_BYTES_MAX
        return is_same(bcrypt.hashpw(password if can_be else b"", hashed), hashed) and can_be

    return check


def _crypt(hashed: str, place: str) -> Callable[[bytes], bool]:
    """Return a check that uses the C library's crypt; newer Python versions have none."""
    name = ctypes.util.find_library("crypt")
    if name is None:
        raise ConfigError(
            f"{place}: hashes of crypt need libcrypt, which is not installed;"
            " make one with htpasswd -B."
        )
    crypt = ctypes.CDLL(name).crypt  # not reentrant: returns a static buffer
    crypt.restype = ctypes.c_char_p
    crypt.argtypes = (ctypes.c_char_p, ctypes.c_char_p)
    expected, salt = hashed.encode(), hashed[:2].encode()

    def check(password: bytes) -> bool:
        if b"\0" in password:
            return False
        return is_same(crypt(password, salt) or b"", expected)

    return check


def apr1(password: bytes, salt: bytes) -> str:
    """Return Apache's variant of FreeBSD's MD5-crypt, with another magic string."""
    final = hashlib.md5(password + salt + password).digest()
    mixed = hashlib.md5(password + APR1.encode() + salt)
    for left in range(len(password), 0, -16):
        mixed.update(final[: min(16, left)])
    left = len(password)
    while left:
        mixed.update(b"\0" if left & 1 else password[:1])
        left >>= 1
    final = mixed.digest()
    for number in range(APR1_ROUNDS):
        again = hashlib.md5(password if number & 1 else final)
        if number % 3:
            again.update(salt)
        if number % 7:
            again.update(password)
        again.update(final if number & 1 else password)
        final = again.digest()
    return f"{APR1}{salt.decode()}${_in_letters(final)}"


def _in_letters(digest: bytes) -> str:
    """Encode 16 bytes in MD5-crypt's order, six bits per letter, lowest first."""
    groups = [(digest[at], digest[at + 6], digest[at + 12 if at < 4 else 5]) for at in range(5)]
    letters = []
    for high, middle, low in groups:
        letters += _bits(high << 16 | middle << 8 | low, 4)
    return "".join(letters + _bits(digest[11], 2))


def _bits(value: int, count: int) -> list[str]:
    return [_LETTERS[value >> 6 * at & 63] for at in range(count)]

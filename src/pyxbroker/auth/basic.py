"""Users and passwords from a file of hashes (Pulsar's AuthenticationProviderBasic).

Checking a good hash takes long, on purpose, so checks wait in queues (password_checks.py). The file
is read once, so the result of a check holds until the process ends. Recent results are stored as
hashes with a key of this process. Repeated HTTP requests and repeated wrong passwords then cost no
further check.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
from collections import OrderedDict
from collections.abc import Mapping
from functools import partial

from pyxbroker.auth.failed_logins import remember
from pyxbroker.auth.htpasswd import read_users
from pyxbroker.auth.password_checks import PasswordChecks
from pyxbroker.auth.provider import CLIENT_ADDRESS, Identity, NoCredentials, PublicRefusal
from pyxbroker.auth.secrets import is_same, read_secret, secret_name
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.eviction_queue import network_of
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config

SHOWN_BYTES_MAX = 4 << 10  # user and password together
WAITING_MAX = 500
KEPT_MAX = 1000  # users with a verified password
WRONG_MAX = 16_384  # wrong credentials
DIGEST_BYTES = 32
WRONG = "Unknown user or invalid password"  # Pulsar's text
SCHEME = "basic "


class BasicProvider:
    """Verifies user:password. Raises ConfigError for unusable settings."""

    method = "basic"
    of_certificate = False

    def __init__(self, config: Config) -> None:
        if not config.basicAuthConf:
            raise ConfigError("Users and passwords need basicAuthConf, which is not set.")
        data = read_secret("basicAuthConf", config.basicAuthConf)
        self._users = read_users(data, secret_name("basicAuthConf", config.basicAuthConf))
        # Checked for unknown users, so that they take as long as the most expensive user.
        self._slowest_check = max(self._users.values(), key=lambda each: each.cost)
        hold_lock = any(each.holds_lock for each in self._users.values())
        self._checks = PasswordChecks(WAITING_MAX, hold_lock=hold_lock)
        self._key = os.urandom(32)
        self._kept: OrderedDict[str, bytes] = OrderedDict()  # by user
        self._wrong: OrderedDict[bytes, None] = OrderedDict()

    async def authenticate(self, shown: bytes) -> Identity:
        if len(shown) > SHOWN_BYTES_MAX:
            raise AuthenticationError(f"User and password are longer than {SHOWN_BYTES_MAX} bytes.")
        name, colon, password = shown.partition(b":")
        if not colon or b":" in password:
            raise AuthenticationError("Not of the form user:password.")
        try:
            user = name.decode()
        except UnicodeDecodeError:
            raise AuthenticationError("The user is not UTF-8 text.") from None
        digest = hashlib.blake2b(shown, key=self._key, digest_size=DIGEST_BYTES).digest()
        await self._check(user, password, digest)
        return Identity(user)

    def shown_by(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        header = headers.get("authorization", "")
        if not header[: len(SCHEME)].lower() == SCHEME:
            raise NoCredentials('Authentication token has to be started with "Basic "')
        try:
            return base64.b64decode(header[len(SCHEME) :].strip(), validate=True)
        except (binascii.Error, ValueError):
            raise NoCredentials("Base64 decoding is failure") from None

    async def _check(self, user: str, password: bytes, digest: bytes) -> None:
        """Raise AuthenticationError for wrong credentials."""
        is_right = self._recent_result(user, digest)
        if is_right is None:
            is_right = await self._checks.check(
                network_of(CLIENT_ADDRESS.get()),
                partial(self._is_right, user),
                password,
                lambda: self._recent_result(user, digest),
            )
            if is_right:  # stored before the next check starts
                remember(self._kept, user, digest, KEPT_MAX)
        if not is_right:
            remember(self._wrong, digest, None, WRONG_MAX)
            raise PublicRefusal(WRONG)

    def _is_right(self, user: str, password: bytes) -> bool:
        """Check a password. Wrong ones take as long as the most expensive hash, whether the user
        exists or not. Otherwise the time would tell which users exist.
        """
        check = self._users.get(user)
        is_right = check is not None and check(password)
        if not is_right and (check is None or check.cost < self._slowest_check.cost):
            self._slowest_check(password)
        return is_right

    def _recent_result(self, user: str, digest: bytes) -> bool | None:
        """Return the result of a recent check of the same credentials, or None."""
        if digest in self._wrong:
            return False
        kept = self._kept.get(user)
        return True if kept is not None and is_same(digest, kept) else None

"""Users and passwords from a file of hashes (Pulsar's AuthenticationProviderBasic).

A hash that is worth something takes long to check, so one thread does it, for one client after
another: guesses cost others no turn of the loop, and no more than a part of one core. How many may
wait for it is bounded. A password that was right is right until the process ends, since the file is
read once; so that a request by HTTP does not cost a check each, what was right lately is kept, as a
hash with a key of this process.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import os
from collections import OrderedDict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from pyxbroker.auth.htpasswd import Check, read_users
from pyxbroker.auth.provider import Identity, NotShown
from pyxbroker.auth.secrets import is_same, read_secret
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config

SHOWN_BYTES_MAX = 4 << 10  # of user and password
WAITING_MAX = 100
KEPT_MAX = 1000
WRONG = "The user or the password is wrong."
SCHEME = "basic "


class BasicProvider:
    """Looks at user:password. Raises ConfigError for settings that cannot be used."""

    method = "basic"
    of_certificate = False

    def __init__(self, config: Config) -> None:
        if not config.basicAuthConf:
            raise ConfigError("Users and passwords need basicAuthConf, which is not set.")
        self._users = read_users(read_secret("basicAuthConf", config.basicAuthConf))
        # Somebody whom nobody knows takes as long as somebody whom they know.
        self._nobody: Check = next(iter(self._users.values()))
        self._thread = ThreadPoolExecutor(1, "passwords")
        self._waiting = 0
        self._key = os.urandom(32)
        self._kept: OrderedDict[str, bytes] = OrderedDict()  # by user

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
        digest = hashlib.blake2b(shown, key=self._key).digest()
        kept = self._kept.get(user)
        if kept is None or not is_same(digest, kept):
            await self._check(user, password)
            self._keep(user, digest)
        return Identity(user)

    def shown_by(self, headers: Mapping[str, str], query: Mapping[str, str]) -> bytes:
        header = headers.get("authorization", "")
        if not header[: len(SCHEME)].lower() == SCHEME:
            raise NotShown("Authentication token has to be started with `Basic `")
        try:
            return base64.b64decode(header[len(SCHEME) :].strip(), validate=True)
        except (binascii.Error, ValueError):
            raise NotShown("Base64 decoding is failure") from None

    async def _check(self, user: str, password: bytes) -> None:
        """Raises AuthenticationError."""
        if self._waiting >= WAITING_MAX:
            raise AuthenticationError(f"{WAITING_MAX} passwords wait to be checked already.")
        known = self._users.get(user)
        loop = asyncio.get_running_loop()
        self._waiting += 1
        try:
            is_right = await loop.run_in_executor(self._thread, known or self._nobody, password)
        finally:
            self._waiting -= 1
        if known is None or not is_right:
            raise AuthenticationError(WRONG)

    def _keep(self, user: str, digest: bytes) -> None:
        self._kept[user] = digest
        self._kept.move_to_end(user)
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

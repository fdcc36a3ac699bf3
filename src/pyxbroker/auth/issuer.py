"""An issuer of tokens in OpenID Connect: finds the location of its keys (discovery), and reads
them.

The keys are cached. When they are older than the refresh time, the next use reads them again.
Expired keys verify no token. An unknown key id may be a new key, so it causes another read. The
settings limit how often, because any client can invent a key id. One task reads for all waiting
logins, and continues when they are cancelled.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import time
from collections.abc import Callable
from contextvars import Context
from typing import Any, NamedTuple

from jwt import PyJWK, PyJWTError

from pyxbroker.auth.fetching import FetchFailed, FetchLimits, fetch, split_url
from pyxbroker.auth.provider import NotChecked
from pyxbroker.auth.signing_keys import PUBLIC_ALGORITHMS, UnfitKey, public_algorithms
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.log import get_logger

log = get_logger(__name__)

DISCOVERY = "/.well-known/openid-configuration"
ANSWER_BYTES_MAX = 256 << 10
KEYS_MAX = 64  # per issuer
KID_CHARACTERS_MAX = 512
RETRY_S = 1.0  # pause after a failed read

NO_KEY = "The token names a key that its issuer does not have."


class Key(NamedTuple):
    """A public key, and the algorithms accepted with it."""

    public: Any
    algorithms: list[str]


class IssuerLimits(NamedTuple):
    """Limits on the age of an issuer's keys, and on the time to fetch them."""

    refresh_s: float
    expire_s: float
    miss_refresh_s: float
    fetch: FetchLimits


class Issuer:
    """The keys of one issuer, by key id."""

    def __init__(
        self,
        url: str,
        tls: ssl.SSLContext,
        limits: IssuerLimits,
        schemes: tuple[str, ...],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._url = url
        self._tls = tls
        self._limits = limits
        self._schemes = schemes
        self._clock = clock
        self._keys: dict[str, Key] | None = None
        self._read_at = 0.0
        self._tried_at = -RETRY_S
        self._failure = ""
        self._reading: asyncio.Task[None] | None = None

    async def key(self, kid: str) -> Key:
        """Return the key with this id. Raises AuthenticationError, or NotChecked if the key may
        exist and the issuer cannot be reached.
        """
        limits, now, keys = self._limits, self._clock(), self._keys
        may_be_new = now >= self._tried_at + limits.miss_refresh_s
        if keys is None or self._has_expired(now) or (kid not in keys and may_be_new):
            keys = await self._wait()
        elif now >= self._read_at + limits.refresh_s:
            self._begin()
        found = keys.get(kid)
        if found is None and self._failure:
            raise self._not_read()
        if found is None:
            raise AuthenticationError(NO_KEY)
        return found

    @property
    def was_asked_lately(self) -> bool:
        """True if it is too soon to read the keys again, or they are being read."""
        pause_s = max(self._limits.miss_refresh_s, RETRY_S)
        return self._reading is not None or self._clock() < self._tried_at + pause_s

    def _has_expired(self, now: float) -> bool:
        return now >= self._read_at + self._limits.expire_s

    async def _wait(self) -> dict[str, Key]:
        """Wait for a read, and return the keys; after a failure the previous ones. Raises
        NotChecked if these have expired.
        """
        task = self._begin()
        if task is not None:
            await asyncio.shield(task)
        if self._keys is None or self._has_expired(self._clock()):
            raise self._not_read()
        return self._keys

    def _not_read(self) -> NotChecked:
        return NotChecked(f"The keys of the token's issuer cannot be read: {self._failure}.")

    def _begin(self) -> asyncio.Task[None] | None:
        """Return the task that reads, started if needed; None shortly after a failure."""
        if self._reading is None:
            now = self._clock()
            if self._failure and now < self._tried_at + RETRY_S:
                return None
            self._tried_at = now
            # The task gets a context of its own: it outlives the client's login.
            self._reading = Context().run(asyncio.create_task, self._read())
            self._reading.add_done_callback(self._on_read)
        return self._reading

    def _on_read(self, done: asyncio.Task[None]) -> None:
        self._reading = None

    async def _read(self) -> None:
        try:
            keys = await self._fetch_keys()
        except FetchFailed as error:
            self._failure = str(error)
            log.warning("the keys of an issuer cannot be read", issuer=self._url, reason=error)
            return
        except Exception as error:
            self._failure = "an internal error of the broker"
            log.failure("the keys of an issuer cannot be read", error, issuer=self._url)
            return
        self._failure = ""
        self._keys, self._read_at = keys, self._clock()
        log.info("the keys of an issuer were read", issuer=self._url, keys=len(keys))

    async def _fetch_keys(self) -> dict[str, Key]:
        described = await self._fetch_json(self._url.removesuffix("/") + DISCOVERY, "the discovery")
        if described.get("issuer") != self._url:
            raise FetchFailed("the discovery names another issuer")
        where = described.get("jwks_uri")
        if not isinstance(where, str):
            raise FetchFailed("the discovery names no jwks_uri")
        listed = (await self._fetch_json(where, "the key set")).get("keys")
        if not isinstance(listed, list):
            raise FetchFailed("the key set has no list of keys")
        if len(listed) > KEYS_MAX:
            raise FetchFailed(f"the key set has more than {KEYS_MAX} keys")
        keys: dict[str, Key] = {}
        for each in listed:
            kid, key = parse_key(each)
            if key is not None:
                keys[kid] = key
            await asyncio.sleep(0)  # one key takes one step; the set may be long
        return keys

    async def _fetch_json(self, url: str, what: str) -> dict[str, Any]:
        """Fetch a JSON object. Raises FetchFailed."""
        try:
            parts = split_url(url, self._schemes)
        except ValueError as error:
            raise FetchFailed(f"the URL of {what} cannot be used: {error}") from None
        try:
            data = await fetch(parts, self._tls, self._limits.fetch)
        except FetchFailed as error:
            raise FetchFailed(f"{what}: {error}") from None
        try:
            found = json.loads(data)
        except (ValueError, RecursionError):
            raise FetchFailed(f"{what} is no JSON") from None
        if not isinstance(found, dict):
            raise FetchFailed(f"{what} is no JSON object")
        return found


def parse_key(described: Any) -> tuple[str, Key | None]:
    """Return a key of a set (RFC 7517) and its id. The key is None if it can verify no token; the
    standard demands to ignore it.
    """
    if not isinstance(described, dict):
        return "", None
    kid, algorithm = described.get("kid"), described.get("alg")
    if not isinstance(kid, str) or len(kid) > KID_CHARACTERS_MAX:
        return "", None
    # A published secret or private key proves nothing.
    if described.get("kty") not in ("RSA", "EC") or "d" in described:
        return kid, None
    if described.get("use", "sig") != "sig" or algorithm not in (None, *PUBLIC_ALGORITHMS):
        return kid, None
    try:
        public = PyJWK(described).key
        algorithms = public_algorithms(public)
    except (PyJWTError, ValueError, TypeError, KeyError, OverflowError, UnfitKey):
        return kid, None
    if algorithm is not None:
        algorithms = [each for each in algorithms if each == algorithm]
    return kid, Key(public, algorithms) if algorithms else None

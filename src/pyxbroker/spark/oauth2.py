"""Tokens of an OAuth2 server, for the credentials of a client (RFC 6749, 4.4).

As Pulsar's clients do it: the server's `/.well-known/openid-configuration` says where tokens are
given. A token is used until shortly before it expires, by all tasks of a process.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from pyxbroker.spark.errors import NotReachable, PulsarSparkError

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 1 << 20
EARLY_S = 30.0
"""How long before its end a token is asked for anew, or a tenth of its life if that is less."""

_tokens: dict[tuple[str, ...], tuple[str, float]] = {}
"""Of this process: (token, until when on time.monotonic), by who asked for what."""


class ClientCredentials:
    """Asks for tokens."""

    def __init__(self, issuer: str, client: str, secret: str, more: dict[str, str]) -> None:
        """more: audience, scope."""
        self._issuer = issuer.rstrip("/")
        self._client = client
        self._secret = secret
        self._more = more

    def token(self) -> str:
        """Raises NotReachable, PulsarSparkError."""
        asks = (self._issuer, self._client, self._secret, *sorted(self._more.values()))
        found = _tokens.get(asks)
        if found is None or time.monotonic() >= found[1]:
            found = _tokens[asks] = self._ask()
        return found[0]

    def _ask(self) -> tuple[str, float]:
        where = _get(f"{self._issuer}/.well-known/openid-configuration").get("token_endpoint")
        if not isinstance(where, str) or not where.startswith(("http://", "https://")):
            raise PulsarSparkError(
                f"the OAuth2 server {self._issuer} does not say where tokens are."
            )
        body = {
            "grant_type": "client_credentials",
            "client_id": self._client,
            "client_secret": self._secret,
            **self._more,
        }
        answer = _get(where, urllib.parse.urlencode(body).encode())
        token, life_s = answer.get("access_token"), answer.get("expires_in", 3600)
        if not isinstance(token, str) or not isinstance(life_s, int | float):
            raise PulsarSparkError(f"what the OAuth2 server answers at {where} is no token.")
        return token, time.monotonic() + life_s - min(EARLY_S, life_s / 10)


def _get(url: str, body: bytes | None = None) -> Any:
    """The JSON object of an answer."""
    request = urllib.request.Request(url, body, {"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found = json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        # Not its words: it may say what was sent, the secret.
        raise PulsarSparkError(
            f"the OAuth2 server refuses at {url}: {error.code}{_phrase_of(error.code)}."
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise NotReachable(f"no OAuth2 server answers at {url}: {_reason_of(error)}.") from None
    if not isinstance(found, dict):
        raise PulsarSparkError(f"what the OAuth2 server answers at {url} is no JSON object.")
    return found


def _phrase_of(status: int) -> str:
    found = http.client.responses.get(status)
    return f" {found}" if found else ""


def _reason_of(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, OSError):
        return reason.strerror or str(reason)
    if isinstance(reason, json.JSONDecodeError):
        return "what it says is no JSON"
    return type(error).__name__

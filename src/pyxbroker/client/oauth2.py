"""Tokens of an OAuth2 server, for the credentials of a client (RFC 6749, 4.4).

As in Pulsar's clients, the server's `/.well-known/openid-configuration` names the token endpoint. A
token is used until shortly before it expires, by all clients of the process. The functions block;
urllib is used because it honours the proxies that the environment names.
"""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from pyxbroker.client.errors import CredentialsError, IssuerUnreachable

TIMEOUT_S = 10.0
ANSWER_BYTES_MAX = 1 << 20
EARLY_S = 30.0
"""A token is replaced so long before it expires, or a tenth of its life if that is shorter."""

_tokens: dict[tuple[str, ...], tuple[str, float]] = {}
"""Tokens of this process: (token, its end on time.monotonic), by the arguments of the request."""


class ClientCredentials:
    """The credentials of a client, for which the server issues tokens."""

    def __init__(self, issuer: str, client: str, secret: str, more: dict[str, str]) -> None:
        """more: the audience and the scope, if the server wants them."""
        self._issuer = issuer.rstrip("/")
        self._client = client
        self._secret = secret
        self._more = more

    def token(self) -> str:
        """Return a valid token. Raises IssuerUnreachable, CredentialsError."""
        asks = (self._issuer, self._client, self._secret, *sorted(self._more.values()))
        found = _tokens.get(asks)
        if found is None or time.monotonic() >= found[1]:
            found = _tokens[asks] = self._ask()
        return found[0]

    def _ask(self) -> tuple[str, float]:
        where = _get(f"{self._issuer}/.well-known/openid-configuration").get("token_endpoint")
        if not isinstance(where, str) or not where.startswith(("http://", "https://")):
            raise CredentialsError(
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
            raise CredentialsError(f"what the OAuth2 server answers at {where} is no token.")
        return token, time.monotonic() + life_s - min(EARLY_S, life_s / 10)


def _get(url: str, body: bytes | None = None) -> Any:
    """Send a request and return the JSON object of the answer."""
    request = urllib.request.Request(url, body, {"Accept": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            found = json.loads(answer.read(ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        # The answer's body is not repeated: it may echo the secret.
        raise CredentialsError(
            f"the OAuth2 server refuses at {url}: {error.code}{_phrase_of(error.code)}."
        ) from None
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise IssuerUnreachable(
            f"no OAuth2 server answers at {url}: {_reason_of(error)}."
        ) from None
    if not isinstance(found, dict):
        raise CredentialsError(f"what the OAuth2 server answers at {url} is no JSON object.")
    return found


def _phrase_of(status: int) -> str:
    found = http.client.responses.get(status)
    return f" {found}" if found else ""


def _reason_of(error: Exception) -> str:
    reason = getattr(error, "reason", error)
    if isinstance(reason, OSError):
        return reason.strerror or str(reason)
    if isinstance(reason, json.JSONDecodeError):
        return "the answer is not JSON"
    return type(error).__name__

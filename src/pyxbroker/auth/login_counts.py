"""Counts of authentication results, by Pulsar's names of providers and failure reasons."""

from __future__ import annotations

import time
from collections import Counter
from math import inf

from pyxbroker.auth.provider import (
    Identity,
    NoCredentials,
    NotChecked,
    Provider,
    TokenExpired,
    WrongAudience,
)
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.histogram import Histogram

# Upper bounds of the remaining validity of tokens in minutes, as in Pulsar: up to a year.
TOKEN_MINUTES = (
    *(5.0, 10.0, 60.0, 240.0, 1440.0, 10080.0, 20160.0, 43200.0, 129600.0, 259200.0),
    *(388800.0, 525600.0, inf),
)
UNKNOWN = "UNKNOWN"
_REASONS: tuple[tuple[type[AuthenticationError], str], ...] = (
    (NoCredentials, "INVALID_AUTH_DATA"),
    (NotChecked, UNKNOWN),
    (WrongAudience, "INVALID_TOKEN_AUDIENCE"),
)
_OTHER_REASONS = {"basic": "INVALID_AUTH_DATA", "tls": "INVALID_CERTS"}  # by method


class LoginCounts:
    """Number of credentials accepted and refused since the start."""

    def __init__(self) -> None:
        self.succeeded: Counter[tuple[str, str]] = Counter()  # by provider and method
        self.failed: Counter[tuple[str, str, str]] = Counter()  # and reason
        self.expired_tokens = 0
        self.token_minutes = Histogram(TOKEN_MINUTES)

    def add_success(self, name: str, provider: Provider, identity: Identity) -> None:
        """Count credentials that a provider accepted. `name`: the provider's class in Pulsar."""
        self.succeeded[name, provider.method] += 1
        if identity.expires_at is not None and provider.method == "token":
            self.token_minutes.add(max(identity.expires_at - time.time(), 0.0) / 60)

    def add_failure(self, name: str, provider: Provider, error: AuthenticationError) -> None:
        """Count credentials that a provider refused, or their absence."""
        self.expired_tokens += isinstance(error, TokenExpired)
        other = _OTHER_REASONS.get(provider.method, "INVALID_TOKEN")
        reason = next((name for kind, name in _REASONS if isinstance(error, kind)), other)
        self.failed[name, provider.method, reason] += 1

"""Settings of a client."""

from __future__ import annotations

from dataclasses import dataclass, field

from pyxbroker.client.authentication import Authentication
from pyxbroker.client.tls import TlsSettings


@dataclass(frozen=True)
class ClientSettings:
    """The addresses, time limits and credentials of a client."""

    service_url: str
    """One or several hosts: `pulsar://a:6650,b:6650`, or with TLS `pulsar+ssl://a:6651`."""
    authentication: Authentication = field(default_factory=Authentication)
    tls: TlsSettings = field(default_factory=TlsSettings)
    connect_timeout_s: float = 10.0
    operation_timeout_s: float = 30.0
    """The time limit of one request, and of all attempts to find and open a topic together."""
    lookup_retry_s: float = 30.0
    """The time for which a temporarily refused lookup is retried; 0: never."""
    keep_alive_s: float = 30.0
    """A PING is sent at this interval, and a silent broker given up after two; 0: never."""
    listener: str = ""
    """The advertised listener whose URL a lookup returns."""
    client_version: str = "pyxbroker"
    original_principal: str = ""
    """The role on whose behalf a proxy connects."""

"""Listeners: the addresses that a broker advertises to clients, and additional ports.

Mirrors MultipleListenerValidator and BindAddressValidator of Apache Pulsar, with their error texts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from urllib.parse import SplitResult, urlsplit

from pyxbroker.base.errors import UnknownListener
from pyxbroker.base.listening import is_loopback
from pyxbroker.base.log import get_logger
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.base.properties import ConfigError

log = get_logger("pyxbroker.broker")

# The field of Addresses for each URL scheme.
FIELDS = {
    "pulsar": "broker_url",
    "pulsar+ssl": "broker_url_tls",
    "http": "web_url",
    "https": "web_url_tls",
}
BOUND = ("pulsar", "pulsar+ssl")
URLS_MAX = 2  # per listener, as in Pulsar
_BIND_ADDRESS = re.compile(r"(\w+):(.+)")


class Addresses(NamedTuple):
    """The addresses of a broker for clients; an empty text means not served."""

    broker_url: str = ""  # pulsar://host:port
    web_url: str = ""  # http://host:port
    broker_url_tls: str = ""  # pulsar+ssl://host:port
    web_url_tls: str = ""  # https://host:port

    @property
    def web_name(self) -> str:
        """Host and web port of the broker."""
        return (self.web_url or self.web_url_tls).partition("://")[2]


OfListener = Callable[[str], Addresses]
"""The addresses of one broker by the name of a listener."""


class BindAddress(NamedTuple):
    """An additional port of the binary protocol. Its clients get the addresses of its listener."""

    name: str
    host: str
    port: int
    is_tls: bool


class Listeners:
    """The addresses that a broker advertises: its own, and those of each listener by name."""

    def __init__(
        self, own: Addresses, advertised: Mapping[str, Addresses] | None = None, internal: str = ""
    ) -> None:
        self.advertised = dict(advertised or {})
        found = self.advertised.get(internal)
        self.own = own
        if found is not None:
            # Other settings advertise the web ports, unless a listener does so.
            web = Addresses(web_url=own.web_url, web_url_tls=own.web_url_tls)
            self.own = _first_of([found, *self.advertised.values(), web])

    def of(self, name: str) -> Addresses:
        """Return the addresses of a listener, or the default ones. Raises UnknownListener."""
        if not name.strip():
            return self.own
        found = self.advertised.get(name)
        if found is None:
            raise UnknownListener(f"the broker do not have {name} listener")  # in Pulsar's words
        # Clients do not get the broker's other ports, but its web addresses.
        return found._replace(web_url=self.own.web_url, web_url_tls=self.own.web_url_tls)


def _host_of(url: str) -> str:
    return url.partition("://")[2].rpartition(":")[0].strip("[]")


class LoopbackHint:
    """Logs once when a client of another host gets a loopback address."""

    def __init__(self) -> None:
        self._is_due = True

    def check(self, client: str, addresses: Addresses) -> None:
        """Check the addresses sent to a client. `client` is the client's address."""
        url = addresses.broker_url or addresses.broker_url_tls
        if not self._is_due or not client or is_loopback(client) or not is_loopback(_host_of(url)):
            return
        self._is_due = False
        log.warning(
            "a client of another host gets an address that only this host can reach",
            peer=client,
            address=url,
            remedy="start with --set advertisedAddress=NAME, a name or address of this host that"
            " clients reach, unless its port is forwarded to them",
        )


def _first_of(listeners: list[Addresses]) -> Addresses:
    """Merge listeners: a missing address is taken from the next listener, as in Pulsar. Clients
    that use TLS and name no listener find the TLS address this way.
    """
    return Addresses(*(next(filter(None, each), "") for each in zip(*listeners, strict=True)))


def advertised_by(text: str, internal: str) -> tuple[dict[str, Addresses], str]:
    """Return the listeners of `advertisedListeners`, and the name of the internal one. Raises
    ConfigError.
    """
    urls: dict[str, list[str]] = {}
    for each in text.split(","):
        name, colon, url = each.partition(":")
        if not each.strip():
            continue
        if not colon or not name.strip():
            raise ConfigError(
                "the configure entry `advertisedListeners` is invalid. because"
                f" {each} do not contain listener name"
            )
        urls.setdefault(name.strip(), []).append(url.strip())
    if not urls:
        return {}, ""
    internal = internal.strip() or next(iter(urls))
    if internal not in urls:
        raise ConfigError(
            "the `advertisedListeners` configure do not contain `internalListenerName` entry"
            f" {internal!r}: it has {', '.join(urls)}."
        )
    places: dict[str, str] = {}
    return {name: _listener(name, found, places) for name, found in urls.items()}, internal


def _listener(name: str, urls: list[str], places: dict[str, str]) -> Addresses:
    if len(urls) > URLS_MAX:
        raise _redundant(name)
    found: dict[str, str] = {}
    for url in urls:
        try:
            parts = urlsplit(url)
            scheme, place = parts.scheme.lower(), _place_of(parts)
        except ValueError as error:
            raise _invalid(url, str(error)) from None
        if scheme not in FIELDS:
            raise _invalid(url, f"its scheme is none of {', '.join(FIELDS)}")
        if FIELDS[scheme] in found:
            raise _redundant(name)
        if places.setdefault(place, name) != name:
            raise _invalid(url, f"must not specify `{place}` to different listener.")
        found[FIELDS[scheme]] = f"{scheme}://{place}"
    return Addresses(**found)


def _place_of(parts: SplitResult) -> str:
    """Return host and port of a URL. Raises ValueError if one is missing."""
    host, port = parts.hostname, parts.port
    if not host or not port:
        raise ValueError("it needs a host and a port")
    if parts.path.strip("/") or parts.query or parts.username is not None:
        raise ValueError("there is more than a host and a port")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _invalid(url: str, why: str) -> ConfigError:
    return ConfigError(f"the value {url} in the `advertisedListeners` configure is invalid: {why}")


def _redundant(name: str) -> ConfigError:
    return ConfigError(f"there are redundant configure for listener `{name}`")


def bound_by(text: str) -> list[BindAddress]:
    """Return the ports of `bindAddresses`. Raises ConfigError."""
    return [_bind_address(each.strip()) for each in text.split(",") if each.strip()]


def _bind_address(text: str) -> BindAddress:
    found = _BIND_ADDRESS.fullmatch(text)
    malformed = ConfigError(
        f"bindAddresses: malformed: {text}: expected name:pulsar://host:port, or pulsar+ssl."
    )
    if found is None:
        raise malformed
    try:
        parts = urlsplit(found[2])
        host, port = parts.hostname, parts.port
    except ValueError:
        raise malformed from None
    if parts.scheme.lower() not in BOUND or host is None or port is None:
        raise malformed
    return BindAddress(found[1], host, port, parts.scheme.lower() == "pulsar+ssl")

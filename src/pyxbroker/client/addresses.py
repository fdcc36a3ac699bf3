"""Service URLs and the addresses of brokers."""

from __future__ import annotations

from typing import NamedTuple

from pyxbroker.client.errors import BadSetting

DEFAULT_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651, "http": 80, "https": 443}
_TLS_SCHEMES = ("pulsar+ssl", "https")


class Address(NamedTuple):
    """An address to connect to. Behind a proxy, `proxied` is the URL of the broker that it forwards
    to.
    """

    url: str
    proxied: str = ""

    @property
    def is_tls(self) -> bool:
        return is_tls(self.url)

    @property
    def host_and_port(self) -> tuple[str, int]:
        return host_and_port(self.url)


def is_tls(url: str) -> bool:
    return url.partition("://")[0] in _TLS_SCHEMES


def host_and_port(url: str) -> tuple[str, int]:
    """Return the host and the port of one URL. Raises BadSetting."""
    scheme, separator, rest = url.partition("://")
    if not separator or scheme not in DEFAULT_PORTS:
        raise BadSetting(f"{url!r} is not a service URL: it has to begin with pulsar:// or such.")
    authority = rest.partition("/")[0]
    host, colon, port = authority.rpartition(":")
    if not colon or authority.endswith("]"):
        host, port = authority, str(DEFAULT_PORTS[scheme])
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise BadSetting(f"{url!r} is not a service URL: it needs a host, and a port is a number.")
    return host.strip("[]"), int(port)


class ServiceUrl:
    """A service URL, which may name several hosts: `pulsar://a:6650,b:6650`."""

    def __init__(self, text: str) -> None:
        """Parse a service URL. Raises BadSetting."""
        scheme, _, rest = text.partition("://")
        self.urls = [f"{scheme}://{each.strip()}" for each in rest.rstrip("/").split(",")]
        for each in self.urls:
            host_and_port(each)

    @property
    def current(self) -> str:
        """The URL to use, as long as its server answers."""
        return self.urls[0]

    def rotate(self) -> None:
        """Move to the next URL, because the server of the current one does not answer."""
        self.urls.append(self.urls.pop(0))

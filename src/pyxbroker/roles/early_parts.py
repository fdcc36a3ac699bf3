"""The parts that a process creates before its data is open: authentication, ports, metadata store.

A start waits for their imports, so nothing heavy is imported here; roles/parts.py has the other
parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from pyxbroker.base.listening import explain_port, listen
from pyxbroker.base.properties import ConfigError
from pyxbroker.broker.broker_port import BrokerPort, Ports
from pyxbroker.broker.listeners import (
    Addresses,
    BindAddress,
    Listeners,
    advertised_by,
    bound_by,
)
from pyxbroker.metadata.copy_settings import CopySettings
from pyxbroker.metadata.store import MetadataStore, open_store
from pyxbroker.settings.config import DEFAULT_METADATA_URL, Config

if TYPE_CHECKING:
    from pyxbroker.auth.authentication import Authentication


def authentication_of(config: Config) -> Authentication | None:
    """Return the authentication of the settings, or None if it is disabled. Raises ConfigError."""
    if config.authorizationEnabled:
        from pyxbroker.auth.permissions import check_settings

        check_settings(config)
    if not config.authenticationEnabled:
        return None
    from pyxbroker.auth.authentication import Authentication

    return Authentication(config)


def make_metadata_store(config: Config, data_directory: Path) -> MetadataStore:
    """Return the metadata store of the settings, which is not open yet."""
    return open_store(
        config.metadataStoreUrl or DEFAULT_METADATA_URL,
        data_directory=data_directory,
        session_timeout_ms=config.metadataStoreSessionTimeoutMillis,
        operation_timeout_ms=config.metadataStoreOperationTimeoutSeconds * 1000,
        copies=CopySettings(
            interval_s=config.metadataCopyIntervalSeconds,
            kept=config.metadataCopiesKept,
            kept_s=config.metadataCopiesKeptHours * 3600,
        ),
    )


def open_ports(config: Config) -> Ports:
    """Open the listening sockets. Raises ConfigError for a port, or TLS, that cannot be used."""
    address = config.bindAddress
    tls, broker, broker_tls, web, web_tls = None, None, None, None, None
    named = _named(config)
    if not named and config.brokerServicePort is None and config.brokerServicePortTls is None:
        raise ConfigError(
            "brokerServicePort, brokerServicePortTls and bindAddresses are empty: no client could"
            " connect. Set one of them; brokerServicePort=0 takes any free port."
        )
    has_tls = config.brokerServicePortTls is not None or config.webServicePortTls is not None
    if has_tls or any(each.is_tls for each in named):
        from pyxbroker.base.tls import TlsContexts, TlsSettings

        tls = TlsContexts(TlsSettings(config))
    opened: dict[int, str] = {}
    if (port := config.brokerServicePort) is not None:
        with _explained(opened, address, port, "brokerServicePort, --broker-port"):
            broker = BrokerPort(address, port)
    if (port := config.brokerServicePortTls) is not None:
        with _explained(opened, address, port, "brokerServicePortTls"):
            broker_tls = BrokerPort(address, port, tls)
    if (port := config.webServicePort) is not None:
        with _explained(opened, address, port, "webServicePort, --web-port"):
            web = listen(address, port)
    if (port := config.webServicePortTls) is not None:
        with _explained(opened, address, port, "webServicePortTls"):
            web_tls = listen(address, port)
    bound = []
    for each in named:
        with _explained(opened, each.host, each.port, "bindAddresses"):
            contexts = tls if each.is_tls else None
            bound.append(BrokerPort(each.host, each.port, contexts, each.name))
    return Ports(broker, broker_tls, web, web_tls, tls, tuple(bound))


@contextmanager
def _explained(opened: dict[int, str], address: str, port: int, setting: str) -> Iterator[None]:
    """Turn the failure to open a port into a ConfigError that names the setting of this port.

    `opened` has the settings of the ports that this process has opened so far.
    """
    try:
        yield
    except OSError as error:
        raise explain_port(error, address, port, setting, opened.get(port)) from None
    opened[port] = setting


def _named(config: Config) -> list[BindAddress]:
    """Return the bind addresses of listeners. Raises ConfigError if one is not advertised."""
    named = bound_by(config.bindAddresses)
    advertised, _ = advertised_by(config.advertisedListeners, config.internalListenerName)
    for each in named:
        if each.name not in advertised:
            raise ConfigError(
                f"bindAddresses has the listener {each.name!r}, which advertisedListeners does "
                "not have: the broker could not return addresses of topics to its clients. Add "
                "it to advertisedListeners."
            )
    return named


def listeners_of(config: Config, ports: Ports) -> Listeners:
    """Return the addresses that the broker gives to clients, by listener. Raises ConfigError."""
    advertised, internal = advertised_by(config.advertisedListeners, config.internalListenerName)
    return Listeners(_addresses(config.advertisedAddress, ports), advertised, internal)


def _addresses(host: str, ports: Ports) -> Addresses:
    def url(scheme: str, port: int) -> str:
        return f"{scheme}://{host}:{port}" if port else ""

    return Addresses(
        url("pulsar", ports.broker_port),
        # Other brokers use it as an address, also if no port is open.
        f"http://{host}:{ports.web_port}" if ports.web_port or not ports.web_port_tls else "",
        url("pulsar+ssl", ports.broker_port_tls),
        url("https", ports.web_port_tls),
    )

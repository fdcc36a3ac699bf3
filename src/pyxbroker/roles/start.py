"""The start of a standalone process: as soon as it can be, since people wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
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
from pyxbroker.roles.data import StandaloneData, ignore_step
from pyxbroker.settings.config import Config

if TYPE_CHECKING:
    from pyxbroker.auth.authentication import Authentication
    from pyxbroker.roles.standalone import Standalone


async def start_standalone(
    config: Config,
    data_directory: Path,
    accept_loss: bool = False,
    on_step: Callable[[str], None] = ignore_step,
) -> Standalone:
    """Starts broker, embedded bookie and metadata; returns when the broker port is served.

    With accept_loss it starts without what is missing of its data; the log says what that is.
    Calls `on_step` with what each step of the start waits for.
    """
    on_step("the keys and certificates of its settings, and its ports")
    # Before a port is there: who is to be let in is known then, or there is no start.
    authentication = authentication_of(config)
    ports = _open_ports(config)
    advertised, internal = advertised_by(config.advertisedListeners, config.internalListenerName)
    listeners = Listeners(_addresses(config.advertisedAddress, ports), advertised, internal)
    data = StandaloneData(config, data_directory, accept_loss, listeners.own, on_step)
    opening = asyncio.ensure_future(data.open())
    # Other threads open the data now; what comes next is imported meanwhile.
    await asyncio.sleep(0)
    from pyxbroker.roles.standalone import Standalone

    storage, bookie_id = await opening
    on_step("the broker's parts")
    standalone = Standalone(data, ports, authentication, listeners)
    await standalone.start(storage, bookie_id)
    return standalone


def _open_ports(config: Config) -> Ports:
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
    """The ports of listeners. Raises ConfigError for one that nobody could be sent to."""
    named = bound_by(config.bindAddresses)
    advertised, _ = advertised_by(config.advertisedListeners, config.internalListenerName)
    for each in named:
        if each.name not in advertised:
            raise ConfigError(
                f"bindAddresses has the listener {each.name!r}, which advertisedListeners does not"
                " have: nobody who comes by it could be told where topics are."
            )
    return named


def _addresses(host: str, ports: Ports) -> Addresses:
    def url(scheme: str, port: int) -> str:
        return f"{scheme}://{host}:{port}" if port else ""

    return Addresses(
        url("pulsar", ports.broker_port),
        # Brokers are called by it, also where nothing is served there.
        f"http://{host}:{ports.web_port}" if ports.web_port or not ports.web_port_tls else "",
        url("pulsar+ssl", ports.broker_port_tls),
        url("https", ports.web_port_tls),
    )


def authentication_of(config: Config) -> Authentication | None:
    """Who is let in, None for everybody. Raises ConfigError."""
    if config.authorizationEnabled:
        from pyxbroker.auth.permissions import check_settings

        check_settings(config)
    if not config.authenticationEnabled:
        return None
    from pyxbroker.auth.authentication import Authentication

    return Authentication(config)

"""The addresses of brokers in the nodes of owners and in registrations, as Pulsar writes them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pyxbroker.base.compact_json import to_short_json
from pyxbroker.broker.listeners import Addresses, Listeners

# The fields of Addresses by those of NamespaceEphemeralData, LocalBrokerData, AdvertisedListener.
OF_OWNER = ("nativeUrl", "httpUrl", "nativeUrlTls", "httpUrlTls")
OF_BROKER = ("pulsarServiceUrl", "webServiceUrl", "pulsarServiceUrlTls", "webServiceUrlTls")
OF_LISTENER = ("brokerServiceUrl", "brokerHttpUrl", "brokerServiceUrlTls", "brokerHttpsUrl")
LISTENERS = "advertisedListeners"
DISABLED = "disabled"


def fields_of(addresses: Addresses, names: tuple[str, ...]) -> dict[str, str]:
    """Return the addresses that are served, by the given names."""
    return {name: url for name, url in zip(names, addresses, strict=True) if url}


def listener_fields(listeners: Listeners) -> dict[str, Any]:
    """Return the field advertisedListeners of both records."""
    found = listeners.advertised.items()
    return {name: fields_of(addresses, OF_LISTENER) for name, addresses in found}


def owner_value(listeners: Listeners) -> bytes:
    """Return the value of the nodes of a broker's bundles (NamespaceEphemeralData)."""
    own = fields_of(listeners.own, OF_OWNER)
    return to_short_json(own | {DISABLED: False, LISTENERS: listener_fields(listeners)})


def read_fields(value: bytes) -> dict[str, Any]:
    """Return the fields of a record; empty if it cannot be read."""
    try:
        fields = json.loads(value)
    except (RecursionError, ValueError):
        return {}
    return fields if isinstance(fields, dict) else {}


def addresses_of(fields: Mapping[str, Any], names: tuple[str, ...]) -> Addresses:
    """Return the addresses in a record; empty ones for what is missing or no text."""
    found = (fields.get(name) for name in names)
    return Addresses(*(each if isinstance(each, str) else "" for each in found))


def of_listener(fields: Mapping[str, Any], names: tuple[str, ...], name: str) -> Addresses | None:
    """Return the addresses of a listener of the broker of a record; those of the broker if `name`
    is empty, None if the broker does not have the listener.
    """
    own = addresses_of(fields, names)
    if not name.strip():
        return own
    listeners = fields.get(LISTENERS)
    found = listeners.get(name) if isinstance(listeners, dict) else None
    if not isinstance(found, dict):
        return None
    # As `Listeners.of`: not the broker's other ports, but its web addresses.
    there = addresses_of(found, OF_LISTENER)
    return there._replace(web_url=own.web_url, web_url_tls=own.web_url_tls)

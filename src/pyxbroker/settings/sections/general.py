"""Settings of the process: its cluster, its ports, and what applies to every connection."""

from __future__ import annotations

from pyxbroker.settings.schema import Section, limit, setting

PORT_MAX = 65535


class General(Section, title="General"):
    clusterName: str = setting("standalone", "Name of the cluster that this broker belongs to.")
    brokerServicePort: int | None = setting(
        6650,
        "Port of the binary protocol; 0 takes any free port.",
        maximum=PORT_MAX,
    )
    webServicePort: int | None = setting(
        8080,
        "Port of the admin REST API and /metrics. 0 takes any free port, empty opens no port.",
        maximum=PORT_MAX,
    )
    bindAddress: str = setting("0.0.0.0", "Address that the ports listen on.")
    advertisedAddress: str = setting(
        "localhost", "Host name or address that lookups return to clients."
    )
    bindAddresses: str = setting(
        "",
        "Additional ports of the binary protocol, each with the name of a listener:"
        " `name:pulsar://host:port,name:pulsar+ssl://host:port`. Lookups through such a port return"
        " the addresses that advertisedListeners has for its name.",
    )
    advertisedListeners: str = setting(
        "",
        "URLs that lookups return to clients, by listener: `name:scheme://host:port,...`. The"
        " schemes are pulsar, pulsar+ssl, http and https; each name has one or two URLs. Empty:"
        " advertisedAddress and the ports.",
    )
    internalListenerName: str = setting(
        "",
        "The listener of advertisedListeners for clients that connect to one of the other ports"
        " and name no listener. Empty: the first one.",
    )
    brokerShutdownTimeoutMs: int = setting(
        60_000,
        "Longest time that a clean shutdown may take before the process ends.",
        unit="ms",
        dynamic=True,
    )
    statusFilePath: str = setting(
        "",
        "While this file exists, `/status.html` returns 200 with the text OK. Without the file, or"
        " if the setting is empty, it returns 404.",
    )
    maxMessageSize: int = setting(
        5 * 1024 * 1024,
        "Largest payload of one SEND. The broker announces it to clients when they connect.",
        unit="bytes",
        minimum=1024,
        maximum=1 << 30,
    )
    keepAliveIntervalSeconds: int = limit(
        30,
        "The broker sends PING on a connection that has had no traffic for this time, and closes"
        " the connection if the same time passes again without an answer. 0 disables the check.",
        unit="s",
    )
    connectionLivenessCheckTimeoutMillis: int = limit(
        5000,
        "How long the broker waits for an answer to PING from a client that holds a producer name"
        " or an exclusive subscription which another client asks for. Without an answer the broker"
        " closes the connection. 0 disables the check.",
        unit="ms",
    )
    enablePersistentTopics: bool = setting(True, "If true, the broker serves persistent topics.")
    enableNonPersistentTopics: bool = setting(
        True, "If true, the broker serves non-persistent topics."
    )

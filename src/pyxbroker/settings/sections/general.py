"""The process: its cluster, its ports, and what holds for every connection."""

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
        "Port of the admin REST interface and /metrics; 0 takes any free port, empty serves none.",
        maximum=PORT_MAX,
    )
    bindAddress: str = setting("0.0.0.0", "Address that the ports are bound to.")
    advertisedAddress: str = setting(
        "localhost", "Host name or address that lookups send clients to."
    )
    bindAddresses: str = setting(
        "",
        "Further ports of the binary protocol, each with the name of a listener:"
        " `name:pulsar://host:port,name:pulsar+ssl://host:port`. Who comes by one is told the"
        " addresses that advertisedListeners has for its name.",
    )
    advertisedListeners: str = setting(
        "",
        "What lookups send clients to, by listeners: `name:scheme://host:port,...`, with the"
        " schemes pulsar, pulsar+ssl, http and https, and one or two URLs for each name. Empty:"
        " advertisedAddress and the ports.",
    )
    internalListenerName: str = setting(
        "",
        "Which of advertisedListeners is for clients that come by the other ports and name no"
        " listener; empty: the first one.",
    )
    brokerShutdownTimeoutMs: int = setting(
        60_000,
        "Longest time that a clean stop may take before the process ends.",
        unit="ms",
        dynamic=True,
    )
    statusFilePath: str = setting(
        "",
        "File that `/status.html` answers OK for while it is there, and 404 without; empty is 404.",
    )
    maxMessageSize: int = setting(
        5 * 1024 * 1024,
        "Largest payload of one SEND; clients learn it when they connect.",
        unit="bytes",
        minimum=1024,
        maximum=1 << 30,
    )
    keepAliveIntervalSeconds: int = limit(
        30,
        "A connection without traffic is asked with PING after this time and is closed after"
        " another one without an answer; 0 never asks.",
        unit="s",
    )
    connectionLivenessCheckTimeoutMillis: int = limit(
        5000,
        "Wait for the answer of a client whose place (a producer's name, an exclusive subscription)"
        " another one asks for; without an answer it is closed. 0 never asks.",
        unit="ms",
    )
    enablePersistentTopics: bool = setting(True, "Whether persistent topics are served.")
    enableNonPersistentTopics: bool = setting(True, "Whether non-persistent topics are served.")

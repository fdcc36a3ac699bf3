"""Apache Pulsar's provider for OpenID Connect, which its broker does not bring along.

``apacheoidc/pom.xml`` names it; ``run.sh`` starts a broker with it when ``PEERS_CACHE`` is a folder
of this broker's jars and that one's.
"""

from __future__ import annotations

import os
from pathlib import Path

from harness.brokers import BrokerFailed
from harness.java_build import JavaProgram

PROVIDER = JavaProgram("apacheoidc")


def environment(directory: Path) -> dict[str, str]:
    """What a broker of Apache Pulsar is started with; makes links to jars in a directory."""
    cache = Path(os.environ.get("PEERS_CACHE", Path.home() / ".cache" / "pyxbroker-peers"))
    server, together = cache / "apache-pulsar" / "server", directory / "apache-pulsar" / "server"
    if not (server / "complete").exists():
        raise BrokerFailed(f"{server} has not all jars yet: start Apache Pulsar without it once")
    together.mkdir(parents=True)
    for jar in (*server.iterdir(), *PROVIDER.jars().iterdir()):
        (together / jar.name).symlink_to(jar)
    return {"PEERS_CACHE": str(directory)}

"""Starts Apache Pulsar's broker, a small JVM on free ports, on a ZooKeeper and bookies that run."""

from __future__ import annotations

from pathlib import Path

from harness.brokers import Broker
from harness.java_build import JavaProgram, tool

PULSAR = JavaProgram("apachebroker")
_SMALL = (
    *("-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"),
    *("-Djava.net.preferIPv4Stack=true", "-Dio.netty.tryReflectionSetAccessible=true"),
)
_OPENED = (
    *("java.base/jdk.internal.loader", "java.base/java.lang", "java.base/java.io"),
    *("java.base/java.util.zip", "java.base/sun.net", "java.base/jdk.internal.platform"),
    *("java.base/java.nio", "java.base/jdk.internal.misc"),
    *("java.management/sun.management", "jdk.management/com.sun.management.internal"),
)
_LOG = """\
<Configuration status="WARN">
  <Appenders><Console name="out"><PatternLayout pattern="%d %p %c{1} - %m%n%ex"/></Console>
  </Appenders><Loggers><Root level="info"><AppenderRef ref="out"/></Root></Loggers>
</Configuration>
"""
_SETTINGS = {
    "managedLedgerCacheSizeMB": "32",
    "numIOThreads": "2",
    "numHttpServerThreads": "8",
    "numOrderedExecutorThreads": "2",
    "managedLedgerNumWorkerThreads": "2",
    "bookkeeperClientNumWorkerThreads": "2",
    "bookkeeperClientNumIoThreads": "2",
}


class ApacheBroker(Broker):
    """A broker of a cluster whose metadata is at ``metadata``."""

    def __init__(self, directory: Path, metadata: str, settings: dict[str, str]) -> None:
        super().__init__("apache", directory, settings=_SETTINGS | settings)
        self.metadata = metadata

    def command(self) -> list[str]:
        """The command line; writes the configuration files it names."""
        log = self.directory / "log4j2.xml"
        log.write_text(_LOG)
        settings = {
            "metadataStoreUrl": self.metadata,
            "configurationMetadataStoreUrl": self.metadata,
            "advertisedAddress": "127.0.0.1",
            "brokerServicePort": str(self.port),
            "webServicePort": str(self.web_port),
        }
        file = self._write_configuration(settings | self.settings)
        line = pulsar_command("PulsarBrokerStarter", 384, f"-Dlog4j.configurationFile={log}")
        return [*line, "--broker-conf", str(file)]


def pulsar_command(main: str, memory_mib: int, *flags: str) -> list[str]:
    """Return the command line of one of Apache Pulsar's programs, in a small JVM."""
    java = tool("java", "default-jdk-headless")
    memory = (f"-Xmx{memory_mib}m", f"-XX:MaxDirectMemorySize={memory_mib}m")
    opened = (word for name in _OPENED for word in ("--add-opens", f"{name}=ALL-UNNAMED"))
    line = [java, *_SMALL, *memory, *opened, *flags, "-cp", f"{PULSAR.jars()}/*"]
    return [*line, f"org.apache.pulsar.{main}"]

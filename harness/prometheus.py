"""A real Prometheus (Debian's package `prometheus`) that scrapes one address each second."""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from harness.brokers import free_ports

START_S = 60.0


class PrometheusMissing(Exception):
    """There is no Prometheus; the text says what to install."""


class Prometheus:
    """A process of its own; to be closed."""

    def __init__(self, directory: Path, target: str) -> None:
        """target: host:port of what has /metrics."""
        program = shutil.which("prometheus")
        if program is None:
            raise PrometheusMissing(
                "the tests of the dashboard need `prometheus` on the PATH: install it"
                " (apt-get install prometheus)"
            )
        directory.mkdir(parents=True)
        configuration = directory / "prometheus.yml"
        # JSON is YAML.
        job = {"job_name": "broker", "static_configs": [{"targets": [target]}]}
        every = {"scrape_interval": "1s", "scrape_timeout": "1s"}
        configuration.write_text(json.dumps({"global": every, "scrape_configs": [job]}))
        [port] = free_ports(1)
        self._url = f"http://127.0.0.1:{port}"
        self._output = directory / "output.log"
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(
                [
                    program,
                    f"--config.file={configuration}",
                    f"--storage.tsdb.path={directory / 'data'}",
                    f"--web.listen-address=127.0.0.1:{port}",
                    "--log.level=warn",
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )

    def wait_ready(self) -> None:
        """Waits until it answers."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                with urllib.request.urlopen(f"{self._url}/-/ready", timeout=10):
                    return
            except OSError:
                assert self._process.poll() is None, self._output.read_text()
                assert time.monotonic() < deadline, self._output.read_text()
                time.sleep(0.05)

    def query(self, expression: str) -> list[dict[str, Any]]:
        """What an expression has now: labels (`metric`) and a time and a text (`value`) each.

        Raises AssertionError for one that Prometheus does not understand.
        """
        asked = urllib.parse.urlencode({"query": expression})
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/query?{asked}", timeout=30) as answer:
                told = json.load(answer)
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from None
        assert told["data"]["resultType"] == "vector", expression
        result: list[dict[str, Any]] = told["data"]["result"]
        return result

    def close(self) -> None:
        """Ends the process."""
        self._process.terminate()
        self._process.wait(30)

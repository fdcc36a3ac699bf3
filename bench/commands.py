"""Times of commands, from the start of the process to its end.

    python -m bench.commands
    python -m bench.commands --java /path/to/run.sh

Each command runs 20 times on one broker; the figure is the median. `--java` names a program that
runs Apache's tools as `admin ...` and `client ...`, and takes the URLs of the broker from
PULSAR_WEB and PULSAR_URL.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pyxbroker.testing import broker

RUNS = 20
OURS = str(Path(sys.executable).with_name("pyxbroker"))


def median_ms(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Return the median of the whole process. Raises CalledProcessError."""
    times = []
    for _ in range(RUNS + 1):
        began = time.monotonic()
        subprocess.run(command, env=environment, check=True, capture_output=True)
        times.append((time.monotonic() - began) * 1000)
    return statistics.median(times[1:])  # the first one reads the files from the disk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--java", help="a program that runs Apache's tools")
    options = parser.parse_args()
    with broker() as served:
        urls = {"PULSAR_WEB": served.admin_url, "PULSAR_URL": served.service_url}
        produce = ["produce", "orders", "-m", "hello"]
        commands = {
            "pyxbroker --help": [OURS, "--help"],
            "pyxbroker admin tenants list": [
                *(OURS, "admin", "--admin-url", served.admin_url, "tenants", "list")
            ],
            "pyxbroker client produce": [*(OURS, "client", *produce, "--url", served.service_url)],
        }
        if options.java:
            java = options.java
            commands |= {
                "pulsar-admin --help": [java, "admin", "--help"],
                "pulsar-admin tenants list": [java, "admin", "tenants", "list"],
                "pulsar-client produce": [java, "client", *produce],
            }
        for name, command in commands.items():
            print(f"{name}: {median_ms(command, os.environ | urls):.0f} ms", flush=True)


if __name__ == "__main__":
    main()

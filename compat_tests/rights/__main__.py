"""Asks a broker what each role may do, and keeps or compares what it says.

python -m compat_tests.rights record              asks Apache Pulsar, and writes the record
python -m compat_tests.rights show [PATTERN]      asks ours, and prints each difference
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

from compat_tests.answers.differences import Told
from compat_tests.rights import commands, requests
from compat_tests.rights.differences import is_known
from compat_tests.rights.record import read, write
from compat_tests.rights.scene import broker_with_rights


def asked(kind: str) -> Iterable[tuple[str, Told]]:
    """What a broker of its own says."""
    with tempfile.TemporaryDirectory() as directory:
        broker = broker_with_rights(kind, Path(directory) / "broker")
        try:
            broker.start()
            yield from commands.told(broker)
            yield from requests.told(broker)
        finally:
            broker.close()


def show(pattern: str = "") -> None:
    """Prints what differs."""
    theirs = read()
    for name, told in asked("pyxbroker"):
        if re.search(pattern, name) and not is_known(name, theirs[name], told):
            print(f"{name}\n  there: {theirs[name]}\n  here:  {told}")


def main(verb: str, *arguments: str) -> None:
    if verb == "record":
        write(dict(asked("apache")))
    elif verb == "show":
        show(*arguments)
    else:
        sys.exit(__doc__)


main(*(sys.argv[1:] or ("",)))

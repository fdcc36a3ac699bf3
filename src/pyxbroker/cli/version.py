"""`pyxbroker version`."""

from __future__ import annotations

import platform
from collections.abc import Sequence

from pyxbroker import __version__
from pyxbroker.cli import COMMANDS, Parser


def command(arguments: Sequence[str]) -> None:
    Parser("version", COMMANDS["version"]).parse(arguments)
    print(f"pyxbroker {__version__} (Python {platform.python_version()})")

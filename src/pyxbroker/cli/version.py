"""`pyxbroker version`."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pyxbroker import __version__
from pyxbroker.cli import COMMANDS, Parser

PACKAGE = Path(__file__).parent.parent
NAME = ("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")


def command(arguments: Sequence[str]) -> None:
    Parser("version", COMMANDS["version"]).parse(arguments)
    commit = commit_of(PACKAGE)
    about = [f"commit {commit}"] if commit else []
    about.append(f"Python {platform.python_version()}")
    print(f"pyxbroker {__version__} ({', '.join(about)})")


def commit_of(package: Path) -> str:
    """Return the commit that a package was built from; empty if unknown.

    In a checkout it is the present commit, with `-dirty` where files differ from it.
    """
    root = package.parent.parent
    if (root / ".git").exists() and (root / "setup.py").exists():
        try:
            git = ["git", "-C", str(root), *NAME]
            return subprocess.run(git, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            pass  # no git, or not the owner of the checkout
    try:
        return (package / "commit.txt").read_text().strip()
    except FileNotFoundError:
        return ""

"""`pyxbroker version`."""

from __future__ import annotations

import platform

import click

from pyxbroker import __version__
from pyxbroker.cli import Command


@click.command(cls=Command)
def command() -> None:
    """Print the version of pyxbroker and of the Python that runs it."""
    click.echo(f"pyxbroker {__version__} (Python {platform.python_version()})")

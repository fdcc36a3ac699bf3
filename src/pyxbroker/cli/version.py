"""`pyxbroker version`."""

from __future__ import annotations

import platform

import click

from pyxbroker import __version__


@click.command()
def command() -> None:
    """Print the version of pyxbroker and of the Python that runs it."""
    click.echo(f"pyxbroker {__version__} (Python {platform.python_version()})")

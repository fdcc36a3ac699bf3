"""The options that say which broker a command asks, and with which credentials."""

from __future__ import annotations

from pyxbroker.cli import Parser

DEFAULT_URL = "http://localhost:8080"


def add_login_options(parser: Parser) -> None:
    """Add the options. One that is not given is None."""
    add = parser.options.add_argument
    add(
        "--admin-url",
        metavar="URL",
        help=f"http:// or https://host:port of any broker [{DEFAULT_URL}].",
    )
    add("--token", metavar="TOKEN", help="A token, or file:///path of one.")
    add("--auth-plugin", metavar="CLASS", help="Another kind of login, as in pulsar-admin.")
    add("--auth-params", metavar="TEXT", help="The parameters of that login.")
    add("--tls-trust-cert-path", metavar="FILE", help="PEM file of trusted authorities.")
    add("--tls-allow-insecure", action="store_true", default=None, help="Accept any certificate.")

"""The options of commands that connect to a cluster: its URL, the login and TLS.

What the command line lacks, contexts.py takes from a context or from a client.conf.
"""

from __future__ import annotations

from argparse import Namespace

from pyxbroker.cli import Parser, contexts

ADMIN_URL = "http://localhost:8080"
SERVICE_URL = "pulsar://localhost:6650"


def add_admin_url(parser: Parser) -> None:
    parser.options.add_argument(
        "--admin-url",
        metavar="URL",
        help=f"http:// or https://host:port of any broker [{ADMIN_URL}].",
    )


def add_service_url(parser: Parser, *names: str) -> None:
    parser.options.add_argument(
        *names,
        dest="service_url",
        metavar="URL",
        help=f"pulsar:// or pulsar+ssl://host:port [{SERVICE_URL}].",
    )


def add_login_options(parser: Parser) -> None:
    """Add the options of the login and of TLS, with the names of Pulsar's tools."""
    add = parser.options.add_argument
    add("--context", metavar="NAME", help="A context of contexts.toml, as in `pyxbroker admin`.")
    add("--token", metavar="TOKEN", help="A token, or file:///path of one.")
    add("--auth-plugin", metavar="CLASS", help="Another kind of login, as in pulsar-admin.")
    add("--auth-params", metavar="TEXT", help="The parameters of that login.")
    add(
        *("--tls-trust-cert-path", "--tlsTrustCertsFilePath", "--trust-cert-file"),
        metavar="FILE",
        help="PEM file of trusted authorities.",
    )
    add("--tls-allow-insecure", action="store_true", default=None, help="Accept any certificate.")


def complete(options: Namespace) -> None:
    """Set what the command line lacks. Exits if its source cannot be read."""
    contexts.complete(options)
    options.admin_url = ADMIN_URL if options.admin_url is None else options.admin_url
    options.service_url = SERVICE_URL if options.service_url is None else options.service_url

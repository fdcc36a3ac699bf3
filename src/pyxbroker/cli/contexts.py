"""The sources of the URL and the login: options, a context, or a client.conf of Pulsar."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

from pyxbroker.base.command_line import fail, no_such
from pyxbroker.base.properties import ConfigError, read_properties

CLIENT_CONF = "PULSAR_CLIENT_CONF"
# The settings of a context, and the keys of client.conf for them.
KEYS = {
    "admin-url": "webServiceUrl",
    "service-url": "brokerServiceUrl",
    "token": "",
    "auth-plugin": "authPlugin",
    "auth-params": "authParams",
    "tls-trust-cert-path": "tlsTrustCertsFilePath",
    "tls-allow-insecure": "tlsAllowInsecureConnection",
    "tls-enable-hostname-verification": "tlsEnableHostnameVerification",
    "tls-certificate-file": "tlsCertificateFilePath",
    "tls-key-file": "tlsKeyFilePath",
}
SCHEMES = {
    "admin-url": ("http://", "https://"),
    "service-url": ("pulsar://", "pulsar+ssl://"),
}
_FLAGS = ("tls-allow-insecure", "tls-enable-hostname-verification")


def contexts_file() -> Path:
    # expanduser, unlike Path.home, accepts a user without a home, as in containers.
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")  # noqa: PTH111
    return Path(home) / "pyxbroker" / "contexts.toml"


def complete(options: Namespace) -> None:
    """Set the options that are not given; None if nothing has them."""
    found = _settings(options.context)
    has_login = options.token is not None or options.auth_plugin is not None
    for name in KEYS:
        dest = name.replace("-", "_")
        if has_login and name in ("token", "auth-plugin", "auth-params"):
            continue  # a login of the command line is not completed
        if getattr(options, dest, None) is None:
            setattr(options, dest, found.get(name))


def _settings(name: str | None) -> dict[str, Any]:
    file = contexts_file()
    if name is None and os.environ.get(CLIENT_CONF):
        return _client_conf(Path(os.environ[CLIENT_CONF]))
    if name is None and not file.exists():
        return {}
    found = _toml(file)
    name = name if name is not None else found.get("current")
    if name is None:
        return {}
    contexts = found.get("contexts")
    if not isinstance(contexts, dict) or name not in contexts:
        known = contexts if isinstance(contexts, dict) else ()
        fail(f"{file}: {no_such('context', str(name), known)}")
    settings = contexts[name]
    if not isinstance(settings, dict):
        fail(f"{file}: context {name} has to be a table: [contexts.{name}]")
    for key, value in settings.items():
        if key not in KEYS:
            fail(f"{file}: context {name}: {no_such('setting', key, KEYS)}")
        expected = bool if key in _FLAGS else str
        if not isinstance(value, expected):
            fail(f"{file}: context {name}: {key} has to be {_TYPES[expected]}")
        _check_url(f"{file}: context {name}: {key}", key, value)
    return settings


def _check_url(where: str, name: str, value: Any) -> None:
    """Exit if a URL has another scheme than its setting needs."""
    if name in SCHEMES and not value.startswith(SCHEMES[name]):
        fail(f"{where} is {value!r}; expected {' or '.join(SCHEMES[name])}HOST:PORT")


_TYPES: dict[type, str] = {bool: "true or false", str: "a string"}


def _toml(file: Path) -> dict[str, Any]:
    if sys.version_info >= (3, 11):
        import tomllib

        try:
            return tomllib.loads(file.read_text())
        except OSError as error:
            fail(f"Cannot read {file}: {error.strerror}")
        except ValueError as error:
            fail(f"{file} is not TOML: {error}")
    fail(f"{file} needs Python 3.11; use options, or {CLIENT_CONF}")


def _client_conf(file: Path) -> dict[str, Any]:
    names = {key: name for name, key in KEYS.items() if key}
    found: dict[str, Any] = {}
    try:
        for _, key, text in read_properties(file):
            if key in names and (value := text.strip()):
                name = names[key]
                _check_url(f"{file}: {key}", name, value)
                found[name] = value == "true" if name in _FLAGS else value
    except ConfigError as error:
        fail(f"Cannot read the file that {CLIENT_CONF} names: {error}")
    return found

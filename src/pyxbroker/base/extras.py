"""Packages that only an extra installs, because few brokers need them."""

from __future__ import annotations

from importlib.util import find_spec

from pyxbroker.base.properties import ConfigError

# Each module with its package and the extra of pyproject.toml that installs it.
MODULES = {
    "bcrypt": ("bcrypt", "auth"),
    "cryptography": ("cryptography", "auth"),
    "hdrh": ("hdrhistogram", "perf"),
    "jwt": ("PyJWT", "auth"),
    "kazoo": ("kazoo", "zookeeper"),
    "yaml": ("PyYAML", "perf"),
}


def require(feature: str, *modules: str, error: type[Exception] = ConfigError) -> None:
    """Raise an error that names the feature and the extra, if one of the modules is missing.

    The message has no full stop at its end; the caller's message may continue.
    """
    for module in modules:
        if find_spec(module) is None:
            package, extra = MODULES[module]
            raise error(
                f"{feature} needs the package {package}, which is not installed:"
                f" pip install 'pyxbroker[{extra}]'"
            )

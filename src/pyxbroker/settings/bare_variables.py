"""Environment variables named like a setting, but without the prefix that makes them settings.

Imported only when a variable looks like the key of a setting.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pyxbroker.base.properties import ConfigError
from pyxbroker.settings import java_keys
from pyxbroker.settings.names import ALIASES
from pyxbroker.settings.schema import Value
from pyxbroker.settings.sections.openid import OpenId
from pyxbroker.settings.sections.security import Security
from pyxbroker.settings.sections.tls import Tls
from pyxbroker.settings.sources import ENVIRONMENT_PREFIX, SILENT, TLS_SWITCH

if TYPE_CHECKING:
    from pyxbroker.settings.config import Config

PROTECTIONS = {*Security.rows, *OpenId.rows, *Tls.rows, TLS_SWITCH, "encryptionRequireOnProducer"}


def find(environment: Mapping[str, str], config: Config) -> list[str]:
    """Return the variables that were probably meant as settings.

    Raise ConfigError if one of them asks for a protection that the broker would start without.
    """
    found = [
        name
        for name in sorted(environment)
        if _is_key(name, config) and ENVIRONMENT_PREFIX + name not in environment
    ]
    missed = [name for name in found if name in PROTECTIONS and _differs(config, environment, name)]
    if missed:
        raise ConfigError(
            "The environment has security settings under names that the broker ignores, so it"
            f" would start without them: {', '.join(missed)}. Put {ENVIRONMENT_PREFIX} in front of"
            f" their names, such as {ENVIRONMENT_PREFIX}{missed[0]}, or remove them."
        )
    return found


def _is_key(name: str, config: Config) -> bool:
    return name in config.rows or name in ALIASES or name in SILENT or java_keys.is_known(name)


def _differs(config: Config, environment: Mapping[str, str], name: str) -> bool:
    """Return True if the variable's value differs from the one in force."""
    text = environment[name]
    if name == TLS_SWITCH:
        return text.strip().lower() == "true"
    value: Value = getattr(config, name)
    try:
        return config.rows[name].parse(text) != value
    except (KeyError, ValueError):
        return True

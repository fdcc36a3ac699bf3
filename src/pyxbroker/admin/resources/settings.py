"""/admin/v2/brokers/configuration: dynamic configuration, as in Pulsar's Brokers."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.admin.resources.names import STRING_MAP, STRINGS, check_length, this_broker
from pyxbroker.auth.authentication import names_of
from pyxbroker.auth.authorization import (
    DELETE_SETTING,
    READ_RUNTIME_SETTINGS,
    READ_SETTINGS,
    UPDATE_SETTING,
)
from pyxbroker.broker.dynamic_settings import names
from pyxbroker.settings.config import SCHEMA, SECRET
from pyxbroker.web.endpoint import Answer, Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.response import Response

PATH = "/admin/v2/brokers/configuration"
ONE = PATH + "/{name}"
VALUE_BYTES_MAX = 4 << 10
INVALID = " Invalid dynamic-config value"  # Pulsar's text


async def get_names(request: Request) -> Response:
    """Return the names of dynamic settings."""
    return Response.json(sorted(names()))


async def get_values(request: Request) -> Response:
    """Return the dynamic settings that are set."""
    return Response.json(await request.app.broker.dynamic_settings.values())


async def get_runtime(request: Request) -> Response:
    """Return all settings with their current values, without passwords and keys."""
    config = request.app.broker.config
    return Response.json(
        {name: _text(getattr(config, name)) for name in SCHEMA if name not in SECRET}
    )


async def set_value(request: Request) -> Response:
    """Change a setting immediately and persistently."""
    name, value = request.parameters["name"], request.parameters["value"]
    if name not in names():
        raise HttpError(412, "Can't update non-dynamic configuration")
    check_length("value", value, VALUE_BYTES_MAX)
    if name == "superUserRoles":
        _check_superusers(request, value)
    try:
        await request.app.broker.dynamic_settings.set(name, value)
    except ValueError as error:
        raise HttpError(412, f"{INVALID}: {name} must be {error}") from None
    return Response.empty(200)


def _check_superusers(request: Request, roles: str) -> None:
    """Raise HttpError 412 for superusers without the role that sets them.

    That role could not change the setting again.
    """
    config = request.app.broker.config
    if config.authorizationEnabled and request.principal.role not in names_of(roles):
        raise HttpError(
            412,
            f"{INVALID}: superUserRoles must contain the role that sets it,"
            f" {request.principal.role}, which could not change the setting again.",
        )


async def remove_value(request: Request) -> Response:
    """Restore the value that a setting had when the broker started."""
    name = request.parameters["name"]
    if name not in names():
        raise HttpError(412, "Can't delete non-dynamic configuration")
    await request.app.broker.dynamic_settings.remove(name)
    return Response.empty(200)


def _text(value: object) -> str:
    if value is None:
        return ""
    return str(value).lower() if isinstance(value, bool) else str(value)


NOTHING = Answer("Done; no body.")

ENDPOINTS = (
    Endpoint(
        "GET",
        PATH,
        get_names,
        READ_SETTINGS,
        "The settings that can be changed while the broker runs.",
        Answer("Their names.", STRINGS),
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        PATH + "/values",
        get_values,
        READ_SETTINGS,
        "The settings that have been changed.",
        Answer("Their values.", STRING_MAP),
        resource=this_broker,
    ),
    Endpoint(
        "GET",
        PATH + "/runtime",
        get_runtime,
        READ_RUNTIME_SETTINGS,
        "All settings with their current values, without passwords and keys.",
        Answer("Their values.", STRING_MAP),
        resource=this_broker,
    ),
    Endpoint(
        "POST",
        ONE + "/{value}",
        set_value,
        UPDATE_SETTING,
        "Changes a setting of all brokers, immediately and persistently.",
        NOTHING,
        resource=this_broker,
    ),
    Endpoint(
        "DELETE",
        ONE,
        remove_value,
        DELETE_SETTING,
        "Restores the value that a setting had when each broker started.",
        NOTHING,
        resource=this_broker,
    ),
)

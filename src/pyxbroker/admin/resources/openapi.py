"""/openapi.json: the table of endpoints, for programs that make clients or pages of it."""

from __future__ import annotations

import json
from functools import cache

from pyxbroker.admin.endpoints import Answer, Endpoint
from pyxbroker.admin.request import Request
from pyxbroker.admin.response import JSON, Response
from pyxbroker.auth.authorization import OPEN


@cache
def _document() -> bytes:
    from pyxbroker.admin.documents import openapi

    return json.dumps(openapi(), separators=(",", ":")).encode()


async def get_openapi(request: Request) -> Response:
    """The document, which is made once."""
    return Response(_document(), JSON)


ENDPOINTS = (
    Endpoint(
        "GET",
        "/openapi.json",
        get_openapi,
        OPEN,
        "This table as an OpenAPI 3.0 document.",
        Answer("The document.", {"type": "object"}),
    ),
)

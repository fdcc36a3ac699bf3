"""/openapi.json: the table of endpoints, for programs that generate clients or pages."""

from __future__ import annotations

from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import OPEN
from pyxbroker.base.compact_json import to_json
from pyxbroker.base.off_loop import OffLoop
from pyxbroker.web.endpoint import Answer, Endpoint
from pyxbroker.web.response import JSON, Response


def _make_document() -> bytes:
    from pyxbroker.admin.documents import openapi

    return to_json(openapi())


# Created in a thread: it imports every resource.
_document = OffLoop(_make_document)


async def get_openapi(request: Request) -> Response:
    """Return the document, which is created once."""
    return Response(await _document.get(), JSON)


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

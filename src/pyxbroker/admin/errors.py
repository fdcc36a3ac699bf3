"""Refusals as Pulsar's REST answers them: a status and `{"reason": ...}`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable

from aiohttp import web

from pyxbroker.errors import PulsarError
from pyxbroker.log import get_logger
from pyxbroker.metadata.store import MetadataError

_log = get_logger(__name__)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

# The status for a ServerError of the binary protocol; others are 500.
STATUS = {
    3: 401,  # AuthenticationError
    4: 403,  # AuthorizationError
    5: 409,  # ConsumerBusy
    6: 503,  # ServiceNotReady
    11: 404,  # TopicNotFound
    12: 404,  # SubscriptionNotFound
    13: 404,  # ConsumerNotFound
    14: 429,  # TooManyRequests
    17: 412,  # InvalidTopicName
    18: 409,  # IncompatibleSchema
    22: 405,  # NotAllowedError
}


def refusal(status: int, reason: str) -> web.Response:
    """A refused request, with a sentence that a person can act on."""
    body = json.dumps({"reason": reason}, separators=(",", ":"), ensure_ascii=False)
    return web.Response(status=status, text=body, content_type="application/json")


@web.middleware
async def answer_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Turns what a resource raises into a refusal; only a fault of ours reaches the log."""
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        answer = refusal(error.status, error.text or error.reason)
        if "Allow" in error.headers:
            answer.headers["Allow"] = error.headers["Allow"]
        return answer
    except PulsarError as error:
        return refusal(STATUS.get(error.code, 500), str(error))
    except MetadataError as error:
        return refusal(503, f"The metadata store cannot answer: {error}")
    except asyncio.TimeoutError:
        return refusal(503, "The broker did not answer in time.")
    except Exception:
        _log.exception("request failed", method=request.method, path=request.path)
        return refusal(500, "The broker failed to answer this request; its log says why.")

"""An endpoint of the table: its request, its answer and its right."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from pyxbroker.auth.authorization import Resource, Right
from pyxbroker.base.json_weight import TOKENS_MAX
from pyxbroker.base.named_tuple import NamedTuple
from pyxbroker.web.response import JSON, Response

if TYPE_CHECKING:
    from pyxbroker.web.request import Request

BODY_BYTES_MAX = 1 << 20

Handler = Callable[[Any], Awaitable[Response]]  # takes a Request
Schema = dict[str, Any]  # of JSON, as OpenAPI writes it


def _no_resource(request: Request[Any]) -> Resource:
    return None


class Query(NamedTuple):
    """A field of the query.

    Its type is that of the default. Without a default it is a number if `is_number`, otherwise
    text.
    """

    name: str
    about: str
    default: bool | int | None = None
    is_number: bool = False

    @property
    def kind(self) -> type[bool] | type[int] | type[str]:
        """The type of the value."""
        if self.default is not None:
            return type(self.default)
        return int if self.is_number else str


class Content(NamedTuple):
    """The JSON body of a request: its media types, and the schema of each.

    `bytes_max` and `tokens_max` limit its length and the count of its values and names; valid
    bodies are below both.
    """

    about: str
    schemas: dict[str, Schema]
    required: bool = False
    bytes_max: int = BODY_BYTES_MAX
    tokens_max: int = TOKENS_MAX


class Answer(NamedTuple):
    """The answer of a successful request."""

    about: str
    schema: Schema | None = None
    media_type: str = JSON
    status: int = 200


DONE = Answer("Done.", status=204)


class Endpoint(NamedTuple):
    """One row. A segment of `path` is literal or a parameter: `{name}`, `{name:int}`, ...

    `resource` derives from a request the resource that the right is checked on; it refuses invalid
    names. `precheck` is what Pulsar checks before the right. `summary` is one sentence. `queue`
    names the queue of long answers (long_answers.py) in which the request waits, independent of its
    resource.
    """

    method: str
    path: str
    handler: Handler
    right: Right
    summary: str
    answer: Answer = DONE
    resource: Callable[[Any], Resource] = _no_resource
    query: tuple[Query, ...] = ()
    content: Content | None = None
    queue: str = ""
    precheck: Callable[[Any], Awaitable[None]] | None = None

    def field(self, name: str) -> Query:
        """Return a field of the query. Raises KeyError if the endpoint does not have it."""
        for each in self.query:
            if each.name == name:
                return each
        raise KeyError(f"{self.method} {self.path} does not take {name}")

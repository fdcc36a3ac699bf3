"""An endpoint: what it takes, answers and needs."""

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
    """A field of the query. Its type is that of the default, or text when there is none,
    unless it is a number."""

    name: str
    about: str
    default: bool | int | None = None
    is_number: bool = False

    @property
    def kind(self) -> type[bool] | type[int] | type[str]:
        """The type of its value."""
        if self.default is not None:
            return type(self.default)
        return int if self.is_number else str


class Content(NamedTuple):
    """The JSON body of a request: its media types, and the schema for each. It has at most so many
    bytes, and values and names: legal ones have fewer.
    """

    about: str
    schemas: dict[str, Schema]
    required: bool = False
    bytes_max: int = BODY_BYTES_MAX
    tokens_max: int = TOKENS_MAX


class Answer(NamedTuple):
    """What is answered when nothing is in the way."""

    about: str
    schema: Schema | None = None
    media_type: str = JSON
    status: int = 200


DONE = Answer("Done.", status=204)


class Endpoint(NamedTuple):
    """One row. A segment of `path` is literal or a parameter: `{name}`, `{name:int}`, ...

    `resource` makes what the right is checked on from a request; a name that cannot be is refused
    there. `first` checks what Pulsar checks before the right. `summary` is one sentence. `line`
    names the kind of long answers (long_answers.py) in whose line it waits, whatever it is about.
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
    line: str = ""
    first: Callable[[Any], Awaitable[None]] | None = None

    def field(self, name: str) -> Query:
        """A field of the query that this endpoint takes. Raises KeyError for any other one."""
        for each in self.query:
            if each.name == name:
                return each
        raise KeyError(f"{self.method} {self.path} does not take {name}")

"""The rows of the tables: commands, their arguments and options, and the request of each.

A row has the request as its method and its path. `to` of an option says where its value goes:

    "?force"            a parameter of the query; a flag that is not given is left out
    "{subscription}"    a part of the path, percent-encoded
    "{/bundle}"         the same with its slash; nothing if the option is not given
    "adminRoles"        a field of the JSON object that is the body
    "="                 the whole body
    ""                  nowhere; the function of the row uses it

Options and their units are those of Apache Pulsar's pulsar-admin.
"""

from __future__ import annotations

import json
from argparse import ArgumentTypeError, Namespace
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

Convert = Callable[[str], Any]
Print = Callable[[Any], str]


class Option(NamedTuple):
    """An option, or an argument if its name has no dash."""

    names: tuple[str, ...]
    about: str
    to: str
    convert: Convert | None
    """Converts the text; None: a flag, which takes none."""
    default: Any
    """Sent if the option is not given; None: not sent."""
    is_required: bool
    value: Any
    """The value of a flag."""
    one_of: str
    """Exactly one of the options of a command with the same text here is given."""

    @property
    def dest(self) -> str:
        """The name of its value: that of the longest name."""
        return max(self.names, key=len).lstrip("-").replace("-", "_")

    @property
    def is_argument(self) -> bool:
        return not self.names[0].startswith("-")


class Command(NamedTuple):
    """A command: its request, and how its answer is printed."""

    about: str
    method: str
    path: str
    """Empty if the function alone knows its requests."""
    options: tuple[Option, ...]
    body: Any
    """The body, or the fields that options add to; None: it has those of options only."""
    printed: Print | None
    """Formats the answer for --output text; None: by its type."""
    run: Run | None
    """Sends the requests of a command that has not exactly one."""
    destroys: str
    """The effect on data that needs a confirmation, as a verb and its object; empty: none."""
    unless: str
    """The flag that replaces the confirmation, or `-` and the flag that makes it necessary."""
    check: Callable[[Namespace], str] | None
    """A function that returns an error in the combination of options; empty: none."""


Run = Callable[[Any, Namespace], Awaitable[Any]]
"""Takes the AdminClient and the values of the options, and returns the answer."""


def option(
    names: str,
    about: str,
    to: str = "",
    convert: Convert = str,
    *,
    default: Any = None,
    required: bool = False,
    one_of: str = "",
) -> Option:
    """Return an option with a value. names: separated by blanks."""
    return Option(tuple(names.split()), about, to, convert, default, required, None, one_of)


def flag(names: str, about: str, to: str = "", *, value: Any = True, one_of: str = "") -> Option:
    """Return an option without a value."""
    default = None if one_of else not value
    return Option(tuple(names.split()), about, to, None, default, False, value, one_of)


def argument(name: str, about: str, convert: Convert = str, *, to: str | None = None) -> Option:
    """Return an argument; it goes into the path."""
    return Option(
        (name,), about, f"{{{name}}}" if to is None else to, convert, None, True, None, ""
    )


def switch(enable: str, disable: str, about: str, to: str) -> tuple[Option, Option]:
    """Return two flags, one of which has to be given."""
    return (
        flag(enable, f"Enable {about}.", to, one_of=enable),
        flag(disable, f"Disable {about}.", to, value=False, one_of=enable),
    )


def request(
    method: str,
    about: str,
    path: str,
    *options: Option,
    body: Any = None,
    printed: Print | None = None,
    destroys: str = "",
    unless: str = "",
    check: Callable[[Namespace], str] | None = None,
) -> Command:
    return Command(about, method, path, options, body, printed, None, destroys, unless, check)


def get(about: str, path: str, *options: Option, printed: Print | None = None) -> Command:
    return request("GET", about, path, *options, printed=printed)


def put(about: str, path: str, *options: Option, **more: Any) -> Command:
    return request("PUT", about, path, *options, **more)


def post(about: str, path: str, *options: Option, **more: Any) -> Command:
    return request("POST", about, path, *options, **more)


def delete(about: str, path: str, *options: Option, **more: Any) -> Command:
    return request("DELETE", about, path, *options, **more)


def function(
    about: str,
    run: Run,
    *options: Option,
    printed: Print | None = None,
    destroys: str = "",
    unless: str = "",
    check: Callable[[Namespace], str] | None = None,
) -> Command:
    """Return a command whose function sends its requests."""
    return Command(about, "", "", options, None, printed, run, destroys, unless, check)


# --- values ---------------------------------------------------------------------------------------


def words(text: str) -> list[str]:
    """Return the parts between commas."""
    return text.split(",")


class Pairs(dict[str, str]):
    """`key=value` of an option that may be repeated."""


def pair(text: str) -> Pairs:
    """Return `key=value`."""
    key, equals, value = text.partition("=")
    if not equals:
        raise ArgumentTypeError(f"{text!r} is not of the form key=value.")
    return Pairs({key: value})


def pairs(text: str) -> Pairs:
    """Return `key=value,key=value`."""
    found = Pairs()
    for each in text.split(","):
        found |= pair(each)
    return found


_SECONDS = {"s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800, "y": 31_536_000}
_BYTES = {"k": 10, "m": 20, "g": 30, "t": 40}


def seconds(text: str) -> int:
    """Return a time such as 90, 10m, 3h, 7d, 2w or 1y in seconds."""
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].isalpha() else (text, "s")
    try:
        return int(number) * _SECONDS[unit]
    except (ValueError, KeyError):
        raise ArgumentTypeError(
            f"{text!r} is not a time: expected a number of seconds, or one with s, m, h, d, w or y."
        ) from None


def milliseconds(text: str) -> int:
    """Return the same in milliseconds."""
    return seconds(text) * 1_000


def minutes(text: str) -> int:
    """Return the same in minutes; -1 stays -1."""
    found = seconds(text)
    return -1 if found == -1 else found // 60


def size(text: str) -> int:
    """Return a size such as 4096, 10M, 16G or 3T in bytes."""
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].isalpha() else (text, "")
    try:
        return int(number) << (_BYTES[unit] if unit else 0)
    except (ValueError, KeyError):
        raise ArgumentTypeError(
            f"{text!r} is not a size: expected a number of bytes, or one with K, M, G or T."
        ) from None


def megabytes(text: str) -> int:
    """Return the same in MiB; -1 stays -1."""
    found = size(text)
    return -1 if found == -1 else found >> 20


def choice(*values: str) -> Convert:
    """Return a conversion that accepts these values, in any case."""
    spelled = {each.lower(): each for each in values}

    def convert(text: str) -> str:
        try:
            return spelled[text.lower()]
        except KeyError:
            raise ArgumentTypeError(f"{text!r} is none of {', '.join(values)}.") from None

    return convert


class Encoded(str):
    """A part of a path that is percent-encoded already."""

    __slots__ = ()


def topic(text: str) -> Encoded:
    """Return the part of a path that names a topic: `persistent/tenant/namespace/topic`."""
    from pyxbroker.base.errors import InvalidTopicName
    from pyxbroker.client.admin import topic_path

    try:
        return Encoded(topic_path(text).removeprefix("/admin/v2/"))
    except InvalidTopicName as error:
        raise ArgumentTypeError(str(error)) from None


def namespace(text: str) -> Encoded:
    """Return the part of a path that names a namespace."""
    parts = text.split("/")
    if len(parts) != 2 or not all(parts):
        raise ArgumentTypeError(f"{text!r} is not of the form tenant/namespace.")
    return Encoded("/".join(quote(each, safe="") for each in parts))


def json_file(text: str) -> dict[str, Any]:
    """Return the JSON object in a file."""
    try:
        found = json.loads(Path(text).read_text())
    except OSError as error:
        raise ArgumentTypeError(f"{text}: {error.strerror}.") from None
    except ValueError:
        raise ArgumentTypeError(f"{text} is not JSON.") from None
    if not isinstance(found, dict):
        raise ArgumentTypeError(f"{text} contains no JSON object.")
    return found


def bundle(text: str) -> str:
    """Return a bundle: `0x00000000_0x40000000`."""
    bounds = text.split("_")
    if len(bounds) != 2 or not all(each.startswith("0x") for each in bounds):
        raise ArgumentTypeError(f"{text!r} is not a bundle, such as 0x00000000_0x40000000.")
    return text

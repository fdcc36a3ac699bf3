"""Parsers of option values. Each takes the option's name and text, and raises WrongOption."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from pyxbroker.spark.errors import WrongOption
from pyxbroker.spark.positions import OffsetRequest, parse_offsets
from pyxbroker.spark.routing import HASHES, ROUND_ROBIN, SINGLE

_HOST = r"(\[[0-9a-fA-F:.]+\]|[^\s/:,\[\]@?#]+)(:\d{1,5})?"
_SERVICE_URL = re.compile(rf"pulsar(\+ssl)?://{_HOST}(,{_HOST})*/?", re.ASCII)
_WEB_URL = re.compile(rf"https?://{_HOST}/?", re.ASCII)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_CODECS = {"none": "NONE", "lz4": "LZ4", "zlib": "ZLib", "zstd": "ZSTD", "snappy": "SNAPPY"}
TEXT_BYTES_MAX = 64 << 10


class Secret:
    """A text that is hidden in representations. Can be pickled, for Spark's workers."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "<secret>"


def service_url(name: str, value: str) -> str:
    form = (
        "pulsar://host:port, or pulsar+ssl://host:port with TLS; further brokers follow as"
        " ,host:port"
    )
    return _url(name, value, _SERVICE_URL, form)


def web_url(name: str, value: str) -> str:
    return _url(name, value, _WEB_URL, "http://host:port, or https://host:port")


def _url(name: str, value: str, pattern: re.Pattern[str], form: str) -> str:
    if not pattern.fullmatch(value.strip()):
        raise WrongOption(f"{name} is {_shown_url(value)}: it has the form {form}.")
    return value.strip().rstrip("/")


def _shown_url(value: str) -> str:
    """Return the URL for an error message, without a password in it."""
    return repr(re.sub(r"//.*@", "//...@", value, flags=re.DOTALL))


def text(name: str, value: str) -> str:
    if not value.strip():
        raise WrongOption(f"{name} is empty.")
    if len(value) > TEXT_BYTES_MAX:
        raise WrongOption(f"{name} is longer than {TEXT_BYTES_MAX} characters.")
    return value.strip()


def names(name: str, value: str) -> list[str]:
    found = [each.strip() for each in text(name, value).split(",")]
    if not all(found):
        raise WrongOption(f"{name} is {value!r}: it has to be names separated by commas.")
    return found


def secret(name: str, value: str) -> Secret:
    return Secret(text(name, value))


def flag(name: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise WrongOption(f"{name} is {value!r}: it has to be true or false.")
    return value.strip().lower() == "true"


def one_of(*words: str) -> Callable[[str, str], str]:
    def read(name: str, value: str) -> str:
        if value.strip().lower() not in words:
            raise WrongOption(
                f"{name} is {value!r}: it has to be {', '.join(words[:-1])} or {words[-1]}."
            )
        return value.strip().lower()

    return read


def _named(names: dict[str, str]) -> Callable[[str, str], str]:
    """Return a parser for Java's names in any case. `names` maps lower case to values."""

    def read(name: str, value: str) -> str:
        found = names.get(value.strip().lower())
        if found is None:
            raise WrongOption(f"{name} is {value!r}: it has to be one of {', '.join(names)}.")
        return found

    return read


compression = _named(_CODECS)
hashing = _named({each.lower(): each for each in HASHES})
routing = _named({each.lower(): each for each in (ROUND_ROBIN, SINGLE)})


def size(name: str, value: str) -> int:
    """Return a number of bytes, which may have a suffix k, m or g."""
    found = re.fullmatch(r"(\d{1,15})\s*([kmg]?)b?", value.strip().lower(), re.ASCII)
    if found is None or int(found[1]) == 0:
        raise WrongOption(f"{name} is {value!r}: it has to be a number of bytes, such as 64m.")
    return int(found[1]) * _UNITS[found[2]]


def count(name: str, value: str) -> int:
    if not re.fullmatch(r"\d{1,9}", value.strip(), re.ASCII) or int(value) == 0:
        raise WrongOption(f"{name} is {value!r}: it has to be a number of at least 1.")
    return int(value)


def milliseconds(name: str, value: str) -> float:
    """Return the time in seconds."""
    if not re.fullmatch(r"\d{1,12}", value.strip(), re.ASCII) or int(value) == 0:
        raise WrongOption(f"{name} is {value!r}: it has to be a number of milliseconds.")
    return int(value) / 1000


def moment(name: str, value: str) -> int:
    """Return milliseconds since 1970, given as a number or as a date with a time."""
    written = value.strip()
    if re.fullmatch(r"\d{1,15}", written, re.ASCII):
        return int(written)
    try:
        found = datetime.fromisoformat(written.removesuffix("Z") + "+00:00" * written.endswith("Z"))
    except ValueError as error:
        raise WrongOption(
            f"{name} is {value!r}: it has to be a number of milliseconds since 1970, or as"
            " 2026-01-31T12:00:00Z."
        ) from error
    if found.tzinfo is None:
        found = found.replace(tzinfo=timezone.utc)
    return round(found.timestamp() * 1000)


def properties(name: str, value: str) -> dict[str, str]:
    """Return a JSON object whose values are strings."""
    try:
        found = json.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
        raise WrongOption(f"{name} has to be a JSON object of strings.")
    return found


def file(name: str, value: str) -> str:
    """Return the path of an existing file, which may be written as file:///path."""
    path = text(name, value).removeprefix("file://")
    try:
        is_there = Path(path).is_file()
    except OSError:
        is_there = False  # not a valid file name
    if not is_there:
        # The message omits the value: it may be the key itself, as a data: URL of Java's client.
        raise WrongOption(f"{name}: the file does not exist; give file:///path.")
    return path


def offsets(name: str, value: str) -> OffsetRequest | dict[str, OffsetRequest]:
    found: Any = parse_offsets(name, value)
    return found

"""What is done with secrets: where they are read from, and how they are compared."""

from __future__ import annotations

import base64
import binascii
import hmac
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pyxbroker.base.properties import ConfigError

SECRET_BYTES_MAX = 1 << 20  # of a file of keys or of passwords


def is_same(shown: bytes, expected: bytes) -> bool:
    """Whether two secrets are the same. How long it takes tells nothing but their lengths: nothing
    else in this broker compares secrets.
    """
    return hmac.compare_digest(shown, expected)


def read_secret(key: str, value: str) -> bytes:
    """The bytes that a setting stands for: a `file:` or `data:` URL, the path of a file, or base64,
    as in Pulsar (AuthTokenUtils.readKeyFromUrl).

    Raises ConfigError, which does not repeat the value: it may be the secret.
    """
    if value.startswith("data:"):
        return _of_data_url(key, value)
    if value.startswith("file:"):
        return _of_file(key, Path(unquote(urlsplit(value).path)))
    if _is_file(value) or _is_missing_file(value):
        return _of_file(key, Path(value))
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(
            f"{key} is neither a file: or data: URL, nor the path of a file that is there, nor"
            " base64."
        ) from None


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except (OSError, ValueError):
        return False  # a secret is longer than a path may be


def _is_missing_file(value: str) -> bool:
    """Return True for the path of a file that does not exist, in a directory that does. The root
    and the working directory do not count: what only looks like a path may be a secret.
    """
    folder = Path(value).parent
    try:
        return folder not in (Path("/"), Path()) and folder.is_dir() and not Path(value).exists()
    except (OSError, ValueError):
        return False


def secret_name(key: str, value: str) -> str:
    """Return a setting for a sentence, with the path of the file that it names, if it names one."""
    if value.startswith("file:"):
        return f"{key} ({unquote(urlsplit(value).path)})"
    return f"{key} ({value})" if _is_file(value) else key


def _of_data_url(key: str, value: str) -> bytes:
    head, comma, data = value.removeprefix("data:").partition(",")
    if not comma:
        raise ConfigError(f"{key} is a data: URL without a comma before its data.")
    if not head.endswith(";base64"):
        return unquote_to_bytes(data)
    try:
        return base64.b64decode(unquote(data), validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{key} is a data: URL whose data is not base64.") from None


def _of_file(key: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(SECRET_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise ConfigError(f"{key}: {path} cannot be read: {reason}.") from None
    if len(found) > SECRET_BYTES_MAX:
        raise ConfigError(f"{key}: {path} has more than {SECRET_BYTES_MAX} bytes.")
    return found

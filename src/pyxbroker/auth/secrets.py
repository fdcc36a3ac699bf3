"""Reading and comparing secrets."""

from __future__ import annotations

import base64
import binascii
import hmac
from pathlib import Path
from urllib.parse import unquote, unquote_to_bytes, urlsplit

from pyxbroker.base.properties import ConfigError

SECRET_BYTES_MAX = 1 << 20  # of a file of keys or passwords


def is_same(shown: bytes, expected: bytes) -> bool:
    """Compare two secrets in constant time, which reveals only their lengths. All comparisons of
    secrets use this function.
    """
    return hmac.compare_digest(shown, expected)


def read_secret(key: str, value: str) -> bytes:
    """Read the bytes that a setting names: a `file:` or `data:` URL, the path of a file, or base64,
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
            f"{key} is neither a file: or data: URL, nor the path of an existing file, nor base64."
        ) from None


def _is_file(value: str) -> bool:
    try:
        return Path(value).is_file()
    except (OSError, ValueError):
        return False  # a secret may be longer than a path can be


def _is_missing_file(value: str) -> bool:
    """Return True for the path of a missing file in an existing directory. The root and the working
    directory do not count: a secret may look like a path in them.
    """
    folder = Path(value).parent
    try:
        return folder not in (Path("/"), Path()) and folder.is_dir() and not Path(value).exists()
    except (OSError, ValueError):
        return False


def secret_name(key: str, value: str) -> str:
    """Return a setting's name for messages, with the path of the file that it names, if any."""
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

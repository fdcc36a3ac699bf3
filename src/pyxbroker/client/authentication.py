"""Credentials of a client: a token, a password, a certificate, or a token of an OAuth2 server.

Credentials are read each time that they are used, so a token file that was replaced is read again.
No error and no representation has a secret. Nor does an error have the name of a file that holds
one: a user who gives the secret in place of the name would publish it.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from pyxbroker.client.errors import BadSetting, CredentialsError
from pyxbroker.client.tls import CertificateFiles, reason_of

if TYPE_CHECKING:
    from pyxbroker.client.oauth2 import ClientCredentials

TOKEN_BYTES_MAX = 64 << 10
_TOKEN = re.compile(rb"[!-~]+")
_ISSUER = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", re.ASCII)


class Authentication:
    """Authentication without credentials, and the base class of all methods."""

    method = ""
    """The name of the method in CONNECT."""
    may_block = False
    """True if `credentials` asks a server."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__}>"

    def credentials(self) -> bytes:
        """Return the data for CONNECT and AUTH_RESPONSE. Raises CredentialsError, BadSetting."""
        return b""

    async def current_credentials(self) -> bytes:
        """Return the credentials without blocking the event loop."""
        if self.may_block:
            return await asyncio.to_thread(self.credentials)
        return self.credentials()

    def header_of(self, credentials: bytes) -> str:
        """Return the value of the header Authorization; empty: it is not sent."""
        return ""

    def header(self) -> str:
        """Return that header's value for the current credentials. Raises CredentialsError."""
        return self.header_of(self.credentials())

    def certificate(self) -> CertificateFiles | None:
        """Return the client's certificate, if that is how it authenticates."""
        return None


class TokenAuthentication(Authentication):
    """A token, or the file that has it."""

    method = "token"

    def __init__(self, setting: str, params: str) -> None:
        """params: `token:...`, `file:///path`, or a JSON object. Raises BadSetting."""
        self._setting = setting
        text = _json_of(setting, params).get("token") if params.startswith("{") else params
        if not isinstance(text, str):
            raise BadSetting(f'{setting} has to be token:..., file:///path, or {{"token": "..."}}.')
        self._file = ""
        self._token = ""
        if text.startswith("file:"):
            self._file = _path(text)
        else:
            self._token = text.removeprefix("token:")

    def credentials(self) -> bytes:
        found = self._token.encode() if not self._file else _read(self._setting, self._file).strip()
        return _checked(self._setting, found)

    def header_of(self, credentials: bytes) -> str:
        return f"Bearer {credentials.decode()}"


class BasicAuthentication(Authentication):
    """A user and a password."""

    method = "basic"

    def __init__(self, setting: str, params: str) -> None:
        """params: `user:password`, or a JSON object. Raises BadSetting."""
        found = _json_of(setting, params) if params.startswith("{") else {}
        user = found.get("userId", found.get("username"))
        password = found.get("password")
        if not found and ":" in params:
            user, _, password = params.partition(":")
        if not isinstance(user, str) or not isinstance(password, str) or not user:
            raise BadSetting(
                f'{setting} has to be {{"userId": "...", "password": "..."}}, or user:password.'
            )
        self.user, self.password = user, password

    def credentials(self) -> bytes:
        return f"{self.user}:{self.password}".encode()

    def header_of(self, credentials: bytes) -> str:
        return f"Basic {base64.b64encode(credentials).decode()}"


class TlsAuthentication(Authentication):
    """A certificate."""

    method = "tls"

    def __init__(self, setting: str, params: str) -> None:
        """params: `tlsCertFile:/path,tlsKeyFile:/path`, or a JSON object. Raises BadSetting."""
        found = _json_of(setting, params) if params.startswith("{") else _pairs_of(params)
        files = found.get("tlsCertFile"), found.get("tlsKeyFile")
        if not all(isinstance(each, str) and is_path(each) for each in files):
            raise BadSetting(f"{setting} has to be tlsCertFile:/path,tlsKeyFile:/path.")
        self.files = str(files[0]), str(files[1])
        self._setting = setting

    def certificate(self) -> CertificateFiles | None:
        name = f"the certificate and the key that are given as {self._setting}"
        return CertificateFiles(*self.files, name)


class OAuth2Authentication(Authentication):
    """A token that an OAuth2 server issues for a client's credentials."""

    method = "token"
    may_block = True

    def __init__(self, setting: str, params: str) -> None:
        """params: a JSON object. Raises BadSetting."""
        found = _json_of(setting, params)
        names = {
            "issuer": found.get("issuerUrl", found.get("issuer_url")),
            "key": found.get("privateKey", found.get("private_key")),
        }
        if not all(isinstance(each, str) and each for each in names.values()):
            raise BadSetting(
                f"{setting} has to be a JSON object with issuerUrl, privateKey (a file: or data:"
                " URL of the credentials), and audience or scope if the server wants them."
            )
        if not _ISSUER.fullmatch(str(names["issuer"])):
            raise BadSetting(f"{setting}: issuerUrl has to be https://host, or https://host/path.")
        self._setting = setting
        self._issuer, self._key = str(names["issuer"]), str(names["key"])
        self._more = {
            name: str(found[name]) for name in ("audience", "scope") if found.get(name) is not None
        }

    def credentials(self) -> bytes:
        return _checked(f"the token of {self._issuer}", self._client().token().encode())

    def header_of(self, credentials: bytes) -> str:
        return f"Bearer {credentials.decode()}"

    def _client(self) -> ClientCredentials:
        from pyxbroker.client.oauth2 import ClientCredentials  # imports urllib.request

        where = f"{self._setting}: the content of privateKey"
        key = _json_of(where, _content(self._setting, self._key).decode(errors="replace"))
        try:
            client, secret = str(key["client_id"]), str(key["client_secret"])
        except KeyError as error:
            raise BadSetting(f"{self._setting}: the file of privateKey has no {error}.") from None
        return ClientCredentials(self._issuer, client, secret, self._more)


METHODS: dict[str, Callable[[str, str], Authentication]] = {
    "token": TokenAuthentication,
    "basic": BasicAuthentication,
    "tls": TlsAuthentication,
    "oauth2": OAuth2Authentication,
}
"""By the last word of the Java class, in lower case and without `Authentication`."""


def method_named(plugin: str) -> Callable[[str, str], Authentication] | None:
    """Return the class for a Java class name or its last word; None: none exists."""
    return METHODS.get(plugin.rpartition(".")[2].lower().removeprefix("authentication"))


# --- texts and files ------------------------------------------------------------------------------


def _json_of(what: str, params: str) -> dict[str, Any]:
    try:
        found = json.loads(params)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        # The text is not repeated: it may be a secret.
        raise BadSetting(f"{what} has to be a JSON object, and is none.")
    return found


def _checked(what: str, token: bytes) -> bytes:
    """Return a token that can stand in a header, too. Raises CredentialsError."""
    if not _TOKEN.fullmatch(token):
        raise CredentialsError(
            f"{what}: a token is one line of ASCII characters without blanks, and this is not."
        )
    return token


def _pairs_of(params: str) -> dict[str, Any]:
    pairs = [each.partition(":") for each in params.split(",")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _path(url: str) -> str:
    return url.removeprefix("file:").removeprefix("//")


def is_path(text: str) -> bool:
    """Return False for a text that is no path but, for example, the content of a file."""
    return bool(text) and text.isprintable() and not text.startswith(("-----", "data:", "{"))


def _content(setting: str, url: str) -> bytes:
    """Return the content of a file, or of a data: URL."""
    if not url.startswith("data:"):
        return _read(setting, _path(url))
    head, comma, body = url.partition(",")
    try:
        if not comma:
            raise ValueError("it has no comma")
        return base64.b64decode(body) if head.endswith(";base64") else unquote_to_bytes(body)
    except ValueError:
        raise BadSetting(f"{setting} has a data: URL that cannot be read.") from None


def _read(setting: str, path: str) -> bytes:
    if not is_path(path):
        raise BadSetting(f"{setting} has to name a file as file:///path.")
    try:
        with Path(path).open("rb") as opened:
            found = opened.read(TOKEN_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        # Neither the name nor `from error`, which has it.
        raise CredentialsError(
            f"the file that {setting} names cannot be read: {reason_of(error)}."
        ) from None
    if len(found) > TOKEN_BYTES_MAX:
        raise CredentialsError(
            f"the file that {setting} names has more than {TOKEN_BYTES_MAX} bytes."
        )
    return found

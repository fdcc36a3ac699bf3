"""Who the connector says it is, and how it knows a broker: TLS, tokens, passwords, OAuth2.

Options have the names of Java's client: `authPluginClassName` is one of its classes, or the last
word of such a name, and `authParams` what it takes. Those of `pulsar.admin.` are for REST; what is
not given there is as `pulsar.client.` says. Secrets are read when they are
shown, so a file that has a newer token is read again; none is in an error or a representation. Nor
is the name of a file that may have one: who gives the secret where a name belongs would see it.
"""

from __future__ import annotations

import base64
import json
import logging
import re
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import unquote_to_bytes

from pyxbroker.spark.errors import PulsarSparkError, WrongOption
from pyxbroker.spark.oauth2 import ClientCredentials
from pyxbroker.spark.options import Options

TOKEN_BYTES_MAX = 64 << 10
_TOKEN = re.compile(rb"[!-~]+")
_ISSUER = re.compile(r"https?://[^\s/?#@]+(/[^\s?#@]*)?", re.ASCII)

_log = logging.getLogger(__name__)


class Shown(NamedTuple):
    """What is shown to a broker: the method's name, and the data."""

    method: str
    data: bytes

    def __repr__(self) -> str:
        return f"<Shown by {self.method}>"


class Login:
    """Who somebody is; to show it may read files, or ask a server. Raises PulsarSparkError."""

    method = ""

    def show(self) -> bytes:
        return b""

    def header(self) -> str:
        """Of Authorization, by HTTP; empty: none."""
        return ""

    def official(self) -> Any:
        """The same for the official client."""
        return None

    def certificate(self) -> tuple[str, str] | None:
        """Files of a certificate and its key."""
        return None


class TokenLogin(Login):
    """A token, or where it is read each time that it is shown."""

    method = "token"

    def __init__(self, option: str, params: str) -> None:
        self._option = option
        text = _json_of(option, params).get("token") if params.startswith("{") else params
        if not isinstance(text, str):
            raise WrongOption(f'{option} has to be token:..., file:///path, or {{"token": "..."}}.')
        self._file = ""
        self._token = ""
        if text.startswith("file:"):
            self._file = _path(text)
        else:
            self._token = text.removeprefix("token:")

    def show(self) -> bytes:
        found = self._token.encode() if not self._file else _read(self._option, self._file).strip()
        return _checked(self._option, found)

    def header(self) -> str:
        return f"Bearer {self.show().decode()}"

    def official(self) -> Any:
        return _supplier(self)


class BasicLogin(Login):
    """A user and a password."""

    method = "basic"

    def __init__(self, option: str, params: str) -> None:
        found = _json_of(option, params) if params.startswith("{") else {}
        user = found.get("userId", found.get("username"))
        password = found.get("password")
        if not found and ":" in params:
            user, _, password = params.partition(":")
        if not isinstance(user, str) or not isinstance(password, str) or not user:
            raise WrongOption(
                f'{option} has to be {{"userId": "...", "password": "..."}}, or user:password.'
            )
        self._user, self._password = user, password

    def show(self) -> bytes:
        return f"{self._user}:{self._password}".encode()

    def header(self) -> str:
        return f"Basic {base64.b64encode(self.show()).decode()}"

    def official(self) -> Any:
        import pulsar

        return pulsar.AuthenticationBasic(self._user, self._password)


class TlsLogin(Login):
    """A certificate."""

    method = "tls"

    def __init__(self, option: str, params: str) -> None:
        found = _json_of(option, params) if params.startswith("{") else _pairs_of(params)
        files = found.get("tlsCertFile"), found.get("tlsKeyFile")
        if not all(isinstance(each, str) and _is_path(each) for each in files):
            raise WrongOption(f"{option} has to be tlsCertFile:/path,tlsKeyFile:/path.")
        self._files = str(files[0]), str(files[1])

    def official(self) -> Any:
        import pulsar

        return pulsar.AuthenticationTLS(*self._files)

    def certificate(self) -> tuple[str, str] | None:
        return self._files


class OAuth2Login(Login):
    """A token that an OAuth2 server gives for a client's credentials."""

    method = "token"

    def __init__(self, option: str, params: str) -> None:
        found = _json_of(option, params)
        names = {
            "issuer": found.get("issuerUrl", found.get("issuer_url")),
            "key": found.get("privateKey", found.get("private_key")),
        }
        if not all(isinstance(each, str) and each for each in names.values()):
            raise WrongOption(
                f"{option} has to be a JSON object with issuerUrl, privateKey (a file: or data: URL"
                " of the credentials), and audience or scope if the server wants them."
            )
        if not _ISSUER.fullmatch(str(names["issuer"])):
            raise WrongOption(f"{option}: issuerUrl has to be https://host, or https://host/path.")
        self._option = option
        self._issuer, self._key = str(names["issuer"]), str(names["key"])
        self._more = {
            name: str(found[name]) for name in ("audience", "scope") if found.get(name) is not None
        }

    def show(self) -> bytes:
        return _checked(f"the token of {self._issuer}", self._credentials().token().encode())

    def header(self) -> str:
        return f"Bearer {self.show().decode()}"

    def official(self) -> Any:
        return _supplier(self)

    def _credentials(self) -> ClientCredentials:
        where = f"{self._option}: the content of privateKey"
        key = _json_of(where, _content(self._option, self._key).decode(errors="replace"))
        try:
            client, secret = str(key["client_id"]), str(key["client_secret"])
        except KeyError as error:
            raise WrongOption(f"{self._option}: the file of privateKey has no {error}.") from None
        return ClientCredentials(self._issuer, client, secret, self._more)


def _supplier(login: Login) -> Any:
    """For the official client, which asks whenever a broker does."""
    import pulsar

    def supply() -> str:
        try:
            return login.show().decode()
        except PulsarSparkError as error:
            # An exception would end the process: the client's thread has no place for it.
            _log.warning("there is no token for the broker: %s", error)
            return ""

    return pulsar.AuthenticationToken(supply)


LOGINS: dict[str, Callable[[str, str], Login]] = {
    "token": TokenLogin,
    "basic": BasicLogin,
    "tls": TlsLogin,
    "oauth2": OAuth2Login,
}
"""By the last word of Java's class, in lower case and without Authentication."""


class Security:
    """TLS and login of one side, the brokers' port or REST. Pickles."""

    def __init__(self, options: Options, of_rest: bool = False) -> None:
        """Raises WrongOption."""

        def value(name: str) -> tuple[str, Any]:
            """The option that says it, and what it says."""
            if of_rest and options.is_given(f"pulsar.admin.{name}"):
                return f"pulsar.admin.{name}", options[f"pulsar.admin.{name}"]
            return f"pulsar.client.{name}", options[f"pulsar.client.{name}"]

        self._trusted_option, self.trusted = value("tlsTrustCertsFilePath")
        self.takes_untrusted = bool(value("tlsAllowInsecureConnection")[1])
        # As curl and browsers do; Java's client before 4.0 had to be told.
        self.checks_host = value("tlsHostnameVerificationEnable")[1] is not False
        self._files = value("tlsCertificateFilePath"), value("tlsKeyFilePath")
        self._params_option, params = value("authParams")
        self.login = _login_of(*value("authPluginClassName"), self._params_option, params)
        if (self._files[0][1] is None) != (self._files[1][1] is None):
            raise WrongOption(
                f"{self._files[0][0]} and {self._files[1][0]} are given together, or not at all."
            )
        for name, path in self._files:
            if path is not None and not _is_path(path):
                raise WrongOption(f"{name} has to be the path of a file.")

    @property
    def certificate(self) -> tuple[str, str] | None:
        """Files of our certificate and its key."""
        own = self._files[0][1], self._files[1][1]
        return self.login.certificate() or (own if own[0] else None)

    @property
    def _certificate_options(self) -> str:
        if self.login.certificate() is not None:
            return self._params_option
        return f"{self._files[0][0]} and {self._files[1][0]}"

    def context(self) -> ssl.SSLContext:
        """Reads the files. Raises WrongOption."""
        try:
            context = ssl.create_default_context(cafile=self.trusted)
        except (OSError, ssl.SSLError) as error:
            raise WrongOption(
                f"{self._trusted_option}: {self.trusted} cannot be used: {_reason(error)}."
            ) from None
        if self.takes_untrusted or not self.checks_host:
            context.check_hostname = False
        if self.takes_untrusted:
            context.verify_mode = ssl.CERT_NONE
        if self.certificate is not None:
            try:
                context.load_cert_chain(*self.certificate, _refuse_password)
            except (OSError, ValueError) as error:
                raise WrongOption(
                    f"the certificate and the key that are given as {self._certificate_options}"
                    f" cannot be used: {_reason(error)}."
                ) from None
        return context

    def official(self) -> dict[str, Any]:
        """The same as arguments of the official client."""
        own: dict[str, Any] = {
            "tls_trust_certs_file_path": self.trusted,
            "tls_allow_insecure_connection": self.takes_untrusted,
            "tls_validate_hostname": self.checks_host and not self.takes_untrusted,
            "authentication": self.login.official(),
        }
        if self.certificate is not None:
            own["tls_certificate_file_path"], own["tls_private_key_file_path"] = self.certificate
        return own


def _login_of(class_option: str, name: str | None, option: str, params: Any) -> Login:
    if name is None:
        if params is not None:
            raise WrongOption(f"{option} is given, and {class_option} is not.")
        return Login()
    word = name.rpartition(".")[2].lower().removeprefix("authentication")
    make = LOGINS.get(word)
    if make is None:
        raise WrongOption(
            f"{class_option} is {name!r}: there are AuthenticationToken, AuthenticationBasic,"
            " AuthenticationTls and AuthenticationOAuth2."
        )
    if params is None:
        raise WrongOption(f"{class_option} is given, and {option} is not.")
    return make(option, params.text)


# --- texts and files ------------------------------------------------------------------------------


def _json_of(what: str, params: str) -> dict[str, Any]:
    try:
        found = json.loads(params)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        # Not what it is: it may be a secret.
        raise WrongOption(f"{what} has to be a JSON object, and is none.")
    return found


def _checked(what: str, token: bytes) -> bytes:
    """A token as it can stand in a header, too. Raises PulsarSparkError."""
    if not _TOKEN.fullmatch(token):
        raise PulsarSparkError(
            f"{what}: a token is one line of ASCII characters without blanks, and this is not."
        )
    return token


def _pairs_of(params: str) -> dict[str, Any]:
    pairs = [each.partition(":") for each in params.split(",")]
    return {name.strip(): value.strip() for name, _, value in pairs}


def _path(url: str) -> str:
    return url.removeprefix("file:").removeprefix("//")


def _is_path(text: str) -> bool:
    """Whether it may be one: not, say, the content of the file."""
    return bool(text) and text.isprintable() and not text.startswith(("-----", "data:", "{"))


def _content(option: str, url: str) -> bytes:
    """Of a file, or of a data: URL."""
    if not url.startswith("data:"):
        return _read(option, _path(url))
    head, comma, body = url.partition(",")
    try:
        if not comma:
            raise ValueError("it has no comma")
        return base64.b64decode(body) if head.endswith(";base64") else unquote_to_bytes(body)
    except ValueError:
        raise WrongOption(f"{option} has a data: URL that cannot be read.") from None


def _read(option: str, path: str) -> bytes:
    if not _is_path(path):
        raise WrongOption(f"{option} has to name a file as file:///path.")
    try:
        with Path(path).open("rb") as opened:
            found = opened.read(TOKEN_BYTES_MAX + 1)
    except (OSError, ValueError) as error:
        # Not with its name, and not `from error`, which has it.
        raise PulsarSparkError(
            f"the file that {option} names cannot be read: {_reason(error)}."
        ) from None
    if len(found) > TOKEN_BYTES_MAX:
        raise PulsarSparkError(
            f"the file that {option} names has more than {TOKEN_BYTES_MAX} bytes."
        )
    return found


def _refuse_password() -> str:
    raise ValueError("the key is encrypted")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "it is no PEM").lower().replace("_", " ")
    if isinstance(error, OSError):
        return error.strerror or type(error).__name__
    return str(error)

"""An issuer of tokens: OpenID Connect's discovery, a set of keys, and OAuth2's client credentials.

It is asked over TLS, with a certificate of an authority of one's own, and in each way that tests
want misbehaves: what it answers is in attributes that may be changed at any time.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs

import jwt
import trustme

from harness.tokens import rsa_key

DISCOVERY = "/.well-known/openid-configuration"
KEYS = "/keys"
TOKENS = "/token"
AUDIENCE = "urn:broker"
SECRET = "a secret of a client"
HOUR_S = 3600


class Issuer:
    """Serves in a thread until it is closed. `ca` None serves without TLS; `host` is the one that
    its certificate is for.
    """

    def __init__(self, ca: trustme.CA | None, path: str = "", host: str = "localhost") -> None:
        issuer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                issuer._answer(self, b"")

            def do_POST(self) -> None:
                length = int(self.headers.get("Content-Length", "0"))
                issuer._answer(self, self.rfile.read(length))

            def log_message(self, format: str, *arguments: Any) -> None:
                """Nothing: what was asked is counted."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if ca is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            ca.issue_cert(host).configure_cert(context)
            # In the thread of the connection: who is slow does not hold up others.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        scheme = "http" if ca is None else "https"
        self.path = path
        self.root = f"{scheme}://localhost:{self._server.server_address[1]}"
        self.url = self.root + path
        self.asked: Counter[str] = Counter()
        self.private: dict[str, Any] = {"k1": rsa_key()}  # what is signed with, by name
        self.published: list[dict[str, Any]] | None = None  # instead of those
        self.discovery: dict[str, Any] = {}  # instead of what it would tell
        self.bodies: dict[str, bytes] = {}  # of a path, instead of what it would answer
        self.status = 200
        self.delay_s = 0.0
        self.drip_s = 0.0  # between two bytes of an answer
        self.claims: dict[str, Any] = {}  # of the tokens of clients that bring a secret
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def __enter__(self) -> Issuer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what it makes ------------------------------------------------------------------------

    def keys(self) -> list[dict[str, Any]]:
        """The set of public keys."""
        if self.published is not None:
            return self.published
        return [public_jwk(key, kid) for kid, key in self.private.items()]

    def token(
        self,
        role: Any = "me",
        kid: str | None = "k1",
        algorithm: str = "RS256",
        key: Any = None,
        **claims: Any,
    ) -> str:
        """A token; times are given in seconds from now, and None leaves a claim out."""
        now = int(time.time())
        found = {"iss": self.url, "aud": AUDIENCE, "sub": role, "iat": 0, "exp": HOUR_S, **claims}
        for name in ("iat", "exp", "nbf"):
            if isinstance(found.get(name), int):
                found[name] += now
        found = {name: value for name, value in found.items() if value is not None}
        header = {} if kid is None else {"kid": kid}
        if key is None:
            key = self.private[kid or "k1"]
        return jwt.encode(found, key, algorithm=algorithm, headers=header)

    # --- what it answers ----------------------------------------------------------------------

    def _answer(self, handler: BaseHTTPRequestHandler, sent: bytes) -> None:
        asked = handler.path.removeprefix(self.path)
        self.asked[asked] += 1
        time.sleep(self.delay_s)
        status, body = self.status, self.bodies.get(asked)
        if body is None:
            status, told = self._told(asked, sent)
            body = json.dumps(told).encode()
        try:
            handler.send_response(status)
            handler.send_header("Content-Type", "application/json")
            handler.send_header("Content-Length", str(len(body)))
            handler.end_headers()
            if not self.drip_s:
                handler.wfile.write(body)
            else:
                for each in body:
                    handler.wfile.write(bytes([each]))
                    time.sleep(self.drip_s)
        except (OSError, ValueError):
            handler.close_connection = True  # who asked has gone

    def _told(self, asked: str, sent: bytes) -> tuple[int, dict[str, Any]]:
        if asked == DISCOVERY:
            known = {
                "issuer": self.url,
                "jwks_uri": self.url + KEYS,
                "token_endpoint": self.url + TOKENS,
            }
            return self.status, known | self.discovery
        if asked == KEYS:
            return self.status, {"keys": self.keys()}
        if asked == TOKENS:
            return self._of_credentials(sent)
        return 404, {"error": "not_found"}

    def _of_credentials(self, sent: bytes) -> tuple[int, dict[str, Any]]:
        """OAuth2's client credentials: as a form, or as JSON."""
        if sent.startswith(b"{"):
            form = json.loads(sent)
        else:
            form = {name: values[0] for name, values in parse_qs(sent.decode()).items()}
        if form.get("grant_type") != "client_credentials" or form.get("client_secret") != SECRET:
            return 401, {"error": "invalid_client", "error_description": "who is that?"}
        shown = self.token(form["client_id"], aud=form.get("audience"), **self.claims)
        return 200, {"access_token": shown, "token_type": "Bearer", "expires_in": HOUR_S}


def public_jwk(key: Any, kid: str | None, **more: Any) -> dict[str, Any]:
    """The public part of a private key, as a set of keys has it."""
    public = key.public_key()
    kind = (
        jwt.algorithms.RSAAlgorithm
        if hasattr(public, "public_numbers") and hasattr(public.public_numbers(), "n")
        else jwt.algorithms.ECAlgorithm
    )
    found: dict[str, Any] = kind.to_jwk(public, as_dict=True)
    if kid is not None:
        found["kid"] = kid
    return found | {"use": "sig"} | more

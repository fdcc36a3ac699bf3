"""Tokens of issuers that publish their keys: which count, and what an issuer can do to a broker."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
import trustme
from harness.issuer import AUDIENCE, DISCOVERY, KEYS, Issuer, public_jwk
from harness.tokens import PACKAGE, SECRET, TOKENS, data_url, ec_key, public, rsa_key, token

from certificates import authority
from pyxbroker.auth.authentication import Authentication
from pyxbroker.auth.fetching import split_url
from pyxbroker.auth.issuer import ANSWER_BYTES_MAX, KEYS_MAX, parse_key
from pyxbroker.auth.openid import OpenIdProvider
from pyxbroker.auth.provider import Identity, NoCredentials, NotChecked
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config

OPENID = PACKAGE + "oidc.AuthenticationProviderOpenID"
Act = Callable[[OpenIdProvider], Awaitable[None]]


@pytest.fixture
def issuer() -> Iterator[Issuer]:
    with Issuer(authority()) as one:
        yield one


@pytest.fixture
def trusted(tmp_path: Path) -> Path:
    path = tmp_path / "authority.pem"
    authority().cert_pem.write_to_path(path)
    return path


def settings(issuers: str, trusted: Path | str, **more: Any) -> dict[str, Any]:
    return {
        "authenticationEnabled": True,
        "authenticationProviders": OPENID,
        "openIDAllowedTokenIssuers": issuers,
        "openIDAllowedAudiences": f"urn:other, {AUDIENCE}",
        "openIDTokenIssuerTrustCertsFilePath": str(trusted),
        "openIDHttpConnectionTimeoutMillis": 1000,
        "openIDHttpReadTimeoutMillis": 1000,
        **more,
    }


def provider_of(issuer: Issuer, trusted: Path, **more: Any) -> OpenIdProvider:
    return OpenIdProvider(Config(**settings(issuer.url, trusted, **more)))


async def refused(provider: OpenIdProvider, shown: str, reason: str) -> None:
    with pytest.raises(AuthenticationError, match=reason) as raised:
        await provider.authenticate(shown.encode())
    # What was shown is nobody's business.
    assert all(part not in str(raised.value) for part in shown.split(".") if len(part) > 3)


def by_hand(header: dict[str, Any], claims: dict[str, Any], secret: bytes) -> str:
    """A token with a signature by a secret, of what no library would sign."""
    parts = [
        base64.urlsafe_b64encode(json.dumps(each).encode()).rstrip(b"=")
        for each in (header, claims)
    ]
    signed = b".".join(parts)
    signature = hmac.new(secret, signed, hashlib.sha256).digest()
    return (signed + b"." + base64.urlsafe_b64encode(signature).rstrip(b"=")).decode()


# --- which tokens count -----------------------------------------------------------------------


def test_a_token_of_an_issuer_that_is_allowed_is_its_subject(issuer: Issuer, trusted: Path) -> None:
    async def main() -> None:
        provider = provider_of(issuer, trusted)
        for _ in range(3):
            found = await provider.authenticate(issuer.token("me", exp=60).encode())
            assert found.role == "me"
            assert found.expires_at == pytest.approx(time.time() + 60, abs=5)

    asyncio.run(main())
    assert issuer.asked == {DISCOVERY: 1, KEYS: 1}, "what was read is used again"


@pytest.mark.parametrize("algorithm", ["RS256", "RS384", "RS512", "PS256", "PS512", "ES256"])
def test_rsa_and_elliptic_curves_count(issuer: Issuer, trusted: Path, algorithm: str) -> None:
    issuer.private["e"] = ec_key()
    kid = "e" if algorithm == "ES256" else "k1"
    shown = issuer.token("me", kid, algorithm)
    found = asyncio.run(provider_of(issuer, trusted).authenticate(shown.encode()))
    assert found.role == "me"


def test_other_tokens_are_refused(issuer: Issuer, trusted: Path) -> None:
    issuer.private |= {"k2": rsa_key(3072), "e": ec_key()}
    issuer.published = [
        *(public_jwk(issuer.private[kid], kid) for kid in ("k1", "e")),
        public_jwk(issuer.private["k2"], "k2", alg="RS512"),
        {"kty": "oct", "kid": "secret", "k": base64.urlsafe_b64encode(SECRET).decode()},
    ]
    pem = public(rsa_key())
    none = jwt.encode({"iss": issuer.url, "sub": "me"}, "", "none", headers={"kid": "k1"})
    cases = [
        (issuer.token(iss="https://localhost:1"), "issuer that is not allowed"),
        (issuer.token(iss=None), "issuer that is not allowed"),
        (issuer.token(iss=issuer.url + "/"), "issuer that is not allowed"),
        (issuer.token(aud="elsewhere"), "another audience"),
        (issuer.token(aud=None), "another audience"),
        (issuer.token(exp=-1), "has expired"),
        (issuer.token(exp=None), "no claim exp"),
        (issuer.token(iat=None), "no claim iat"),
        (issuer.token(role=None), "no claim sub"),
        (issuer.token(iat=100), "not valid yet"),
        (issuer.token(nbf=100), "not valid yet"),
        (issuer.token(exp="soon"), "not a time"),
        (issuer.token(kid=None), "names no key"),
        (issuer.token(kid="k9", key=rsa_key()), "issuer does not have"),
        (issuer.token(key=rsa_key(3072)), "InvalidSignatureError"),
        (issuer.token(kid="k2", algorithm="RS256"), "algorithm"),
        (issuer.token(kid="e", algorithm="RS256", key=rsa_key()), "algorithm"),
        (issuer.token(kid="secret", algorithm="HS256", key=SECRET), "issuer does not have"),
        (by_hand({"alg": "HS256", "kid": "k1"}, {"iss": issuer.url}, pem), "algorithm"),
        (by_hand({"alg": ["RS256"], "kid": "k1"}, {"iss": issuer.url}, pem), "algorithm|Error"),
        (by_hand({"alg": "RS256", "kid": ["k1"]}, {"iss": issuer.url}, pem), "names no key|Error"),
        (by_hand({"alg": "RS256", "kid": "k1"}, {"iss": [issuer.url]}, pem), "not allowed|Error"),
        (none, "algorithm"),
        ("no token", "DecodeError"),
        ("", "DecodeError"),
        ("a" * 20_000, "longer than"),
        (token("me"), "issuer that is not allowed"),
    ]

    async def main() -> None:
        provider = provider_of(issuer, trusted)
        for shown, reason in cases:
            await refused(provider, shown, reason)
        shown = issuer.token(kid="k2", algorithm="RS512")
        assert (await provider.authenticate(shown.encode())).role == "me"

    asyncio.run(main())
    assert issuer.asked[KEYS] == 1


def test_the_role_is_the_claim_that_the_settings_name(issuer: Issuer, trusted: Path) -> None:
    async def main() -> None:
        provider = provider_of(issuer, trusted, openIDRoleClaim="roles")
        for value in ("r", ["r", "s"]):
            assert (await provider.authenticate(issuer.token(roles=value).encode())).role == "r"
        assert (await provider.authenticate(issuer.token(roles=[]).encode())).role is None
        await refused(provider, issuer.token(), "no claim roles")

    asyncio.run(main())


def test_clocks_may_differ_by_the_leeway(issuer: Issuer, trusted: Path) -> None:
    provider = provider_of(issuer, trusted, openIDAcceptedTimeLeewaySeconds=30)
    found = asyncio.run(provider.authenticate(issuer.token(exp=-10, iat=10).encode()))
    assert found.expires_at == pytest.approx(time.time() + 20, abs=5)


def test_issuers_are_several_and_each_knows_its_own_keys(issuer: Issuer, trusted: Path) -> None:
    async def main(other: Issuer) -> None:
        issuers = f"{issuer.url},{other.url}"
        provider = OpenIdProvider(Config(**settings(issuers, trusted, openIDCacheSize=1)))
        for one in (issuer, other, issuer):
            assert (await provider.authenticate(one.token().encode())).role == "me"
            for each in provider._issuers.values():
                each._tried_at -= 300
        await refused(provider, issuer.token(iss=other.url), "InvalidSignatureError")
        assert len(provider._issuers) == 1

    with Issuer(authority(), "/realms/a") as other:
        other.private = {"k1": rsa_key(3072)}
        asyncio.run(main(other))
        # With room for one, each took the place of the other.
        assert issuer.asked[KEYS] == 2 and other.asked[KEYS] == 2


def test_more_issuers_than_have_room_are_each_asked_once_an_interval(
    issuer: Issuer, trusted: Path
) -> None:
    """Whatever strangers send, and without a pause for those whose tokens are good."""

    async def main(other: Issuer) -> None:
        issuers = f"{issuer.url},{other.url}"
        provider = OpenIdProvider(Config(**settings(issuers, trusted, openIDCacheSize=1)))
        for _ in range(10):
            for one in (issuer, other):
                await refused(provider, one.token(key=rsa_key(3072)), "InvalidSignatureError")
                assert (await provider.authenticate(one.token().encode())).role == "me"

    with Issuer(authority(), "/realms/a") as other:
        asyncio.run(main(other))
        assert issuer.asked == other.asked == {DISCOVERY: 1, KEYS: 1}


def test_an_issuer_may_end_with_a_slash(trusted: Path) -> None:
    with Issuer(authority(), "/") as issuer:
        provider = OpenIdProvider(Config(**settings(issuer.url, trusted)))
        issuer.discovery = {"jwks_uri": issuer.root + "/keys"}
        issuer.path = ""
        assert asyncio.run(provider.authenticate(issuer.token().encode())).role == "me"


# --- keys that change -------------------------------------------------------------------------


class Clock:
    """Of what is kept."""

    def __init__(self, provider: OpenIdProvider, issuer: Issuer) -> None:
        self.now = 1000.0
        provider._issuer(issuer.url)._clock = lambda: self.now


def test_a_new_key_is_found_and_made_up_ones_ask_no_more_than_once_an_interval(
    issuer: Issuer, trusted: Path
) -> None:
    async def main() -> None:
        provider = provider_of(issuer, trusted)
        clock = Clock(provider, issuer)
        await provider.authenticate(issuer.token().encode())
        issuer.private = {"k2": rsa_key(3072)}
        for _ in range(5):
            await refused(provider, issuer.token(kid="k2"), "does not have")
        assert issuer.asked[KEYS] == 1
        clock.now += 300
        assert (await provider.authenticate(issuer.token(kid="k2").encode())).role == "me"
        await refused(provider, issuer.token(kid="k1", key=rsa_key()), "does not have")
        for number in range(20):
            await refused(provider, issuer.token(kid=f"x{number}", key=rsa_key()), "does not have")
        assert issuer.asked[KEYS] == 2

    asyncio.run(main())


def test_keys_are_read_again_while_they_are_used_and_expire_when_they_cannot_be(
    issuer: Issuer, trusted: Path
) -> None:
    async def main() -> None:
        provider = provider_of(issuer, trusted)
        clock = Clock(provider, issuer)
        shown = issuer.token().encode()
        await provider.authenticate(shown)
        clock.now += 64_800
        issuer.delay_s = 0.5
        await provider.authenticate(shown)
        reading = provider._issuer(issuer.url)._reading
        assert reading is not None and not reading.done(), "nobody waits for the refresh"
        await reading
        assert issuer.asked[KEYS] == 2
        issuer.delay_s = 0
        clock.now += 64_800
        issuer.status = 503
        await provider.authenticate(shown)
        await provider._issuer(issuer.url)._reading  # type: ignore[misc]
        clock.now += 30_000
        await refused(provider, shown.decode(), "discovery: the answer has the status 503")
        issuer.status = 200
        clock.now += 2
        await provider.authenticate(shown)

    asyncio.run(main())


def test_one_reads_for_all_who_wait_and_goes_on_when_they_leave(
    issuer: Issuer, trusted: Path
) -> None:
    async def main() -> None:
        provider = provider_of(issuer, trusted)
        issuer.delay_s = 0.2
        shown = issuer.token().encode()
        waiting = [asyncio.create_task(provider.authenticate(shown)) for _ in range(50)]
        await asyncio.sleep(0.05)
        waiting[0].cancel()
        found = await asyncio.gather(*waiting, return_exceptions=True)
        assert isinstance(found[0], asyncio.CancelledError)
        assert all(isinstance(each, Identity) for each in found[1:])

    asyncio.run(main())
    assert issuer.asked == {DISCOVERY: 1, KEYS: 1}


# --- issuers that misbehave -------------------------------------------------------------------


def attempt(issuer: Issuer, trusted: Path, reason: str, **more: Any) -> None:
    """Somebody is refused for a reason, in time, and the loop does not stand still meanwhile."""

    async def main() -> None:
        provider = provider_of(issuer, trusted, **more)
        longest, last = 0.0, time.monotonic()
        login = asyncio.create_task(refused(provider, issuer.token(), reason))
        began = last
        while not login.done():
            await asyncio.sleep(0.005)
            now = time.monotonic()
            longest, last = max(longest, now - last), now
        await login
        assert last - began < 30 and longest < 2
        # Who comes next is not made to wait at once.
        await refused(provider, issuer.token(), reason)

    asyncio.run(main())


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"delay_s": 3.0}, "discovery: no answer within 0.3 s"),
        ({"drip_s": 0.02}, "discovery: no answer within 0.3 s"),
        ({"bodies": {DISCOVERY: b" " * (ANSWER_BYTES_MAX + 1)}}, "more than 262144 bytes"),
        ({"bodies": {KEYS: b"[" * 200_000}}, "the key set is no JSON"),
        ({"bodies": {KEYS: b"[]"}}, "the key set is no JSON object"),
        ({"bodies": {KEYS: b'{"keys": 1}'}}, "no list of keys"),
        ({"bodies": {DISCOVERY: b"\xff"}}, "the discovery is no JSON"),
        ({"published": [{}] * (KEYS_MAX + 1)}, "more than 64 keys"),
        ({"published": [{}, 1, None, {"kid": "k1"}]}, "does not have"),
        ({"discovery": {"issuer": "https://other"}}, "names another issuer"),
        ({"discovery": {"jwks_uri": 5}}, "names no jwks_uri"),
        ({"discovery": {"jwks_uri": "http://localhost/"}}, "does not begin with https"),
        ({"discovery": {"jwks_uri": "https://a b/"}}, "has blanks"),
        ({"discovery": {"jwks_uri": "https://localhost\r\nX: y/"}}, "has blanks"),
        ({"discovery": {"jwks_uri": "file:///etc/passwd"}}, "does not begin with https"),
        ({"status": 302}, "the status 302"),
    ],
)
def test_what_an_issuer_does_costs_a_login_and_no_more(
    issuer: Issuer, trusted: Path, changes: dict[str, Any], reason: str
) -> None:
    for name, value in changes.items():
        setattr(issuer, name, value)
    attempt(issuer, trusted, reason, openIDHttpReadTimeoutMillis=300)


def test_an_issuer_that_is_not_there_or_is_another_is_not_believed(
    issuer: Issuer, trusted: Path
) -> None:
    with Issuer(trustme.CA()) as stranger:
        attempt(stranger, trusted, "the certificate cannot be trusted")
    stranger.url = stranger.root = "https://localhost:1"
    attempt(stranger, trusted, "no connection: ")


def test_an_issuer_that_takes_a_connection_and_is_silent_is_given_up(trusted: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent, Issuer(authority()) as issuer:
        issuer.url = f"https://localhost:{silent.getsockname()[1]}"
        attempt(
            issuer, trusted, "no connection within 0.2 s", openIDHttpConnectionTimeoutMillis=200
        )


def test_a_key_that_may_be_new_cannot_be_told_from_a_made_up_one_while_its_issuer_fails(
    issuer: Issuer, trusted: Path
) -> None:
    async def main() -> None:
        provider = provider_of(issuer, trusted, openIDKeyIdCacheMissRefreshSeconds=0)
        await provider.authenticate(issuer.token().encode())
        made_up = issuer.token(kid="k9", key=rsa_key()).encode()
        with pytest.raises(AuthenticationError, match="does not have") as told:
            await provider.authenticate(made_up)
        assert not isinstance(told.value, NotChecked)
        issuer.status = 500
        with pytest.raises(NotChecked, match="the status 500"):
            await provider.authenticate(made_up)
        await provider.authenticate(issuer.token().encode())

    asyncio.run(main())


def test_who_waits_for_an_issuer_holds_up_nobody_else(issuer: Issuer, trusted: Path) -> None:
    async def main() -> None:
        both = settings(
            issuer.url,
            trusted,
            authenticationProviders=f"{OPENID},{TOKENS}",
            tokenSecretKey=data_url(SECRET),
        )
        authentication = Authentication(Config(**both))
        issuer.delay_s = 0.5
        slow = asyncio.create_task(authentication.verify("token", issuer.token().encode()))
        await asyncio.sleep(0.05)
        found = await authentication.verify("token", token("static").encode())
        assert found.identity.role == "static" and not slow.done()
        assert (await slow).identity.role == "me"

    asyncio.run(main())


# --- several providers of one method ----------------------------------------------------------


@pytest.mark.parametrize("names", [(TOKENS, OPENID), (OPENID, TOKENS)])
def test_two_providers_of_tokens_are_tried_in_order_and_the_first_one_stays(
    issuer: Issuer, trusted: Path, names: tuple[str, str]
) -> None:
    async def main() -> None:
        both = settings(
            issuer.url,
            trusted,
            authenticationProviders=",".join(names),
            tokenSecretKey=data_url(SECRET),
        )
        authentication = Authentication(Config(**both))
        static = await authentication.verify("token", token("me").encode())
        issued = await authentication.verify("token", issuer.token("me").encode())
        assert static.identity.role == issued.identity.role == "me"
        assert static.provider is not issued.provider
        again = await authentication.verify_again(issued, "token", issuer.token("me").encode())
        assert again.provider is issued.provider
        for earlier, shown in ((issued, token("me")), (static, issuer.token("me"))):
            with pytest.raises(AuthenticationError):
                await authentication.verify_again(earlier, "token", shown.encode())
        for headers in ({}, {"x-pulsar-auth-method-name": "token"}):
            for shown in (token("me"), issuer.token("me")):
                asked = headers | {"authorization": f"Bearer {shown}"}
                found = await authentication.verify_request(asked, lambda: {})
                assert (found.identity.role, found.refused) == ("me", None)
        for shown in (token("me", SECRET[::-1]), issuer.token(exp=-1)):
            with pytest.raises(AuthenticationError):
                await authentication.verify("token", shown.encode())

    asyncio.run(main())


def test_by_http_a_token_is_in_the_header_alone(issuer: Issuer, trusted: Path) -> None:
    provider = provider_of(issuer, trusted)
    assert provider.shown_by({"authorization": "Bearer x"}, {}) == b"x"
    for headers in ({}, {"authorization": "Basic x"}, {"authorization": "Bearer  "}):
        with pytest.raises(NoCredentials):
            provider.shown_by(headers, {"token": "x"})


# --- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"openIDAllowedTokenIssuers": " ,"}, "openIDAllowedTokenIssuers is empty"),
        ({"openIDAllowedTokenIssuers": "http://a"}, "openIDRequireIssuersUseHttps=false"),
        ({"openIDAllowedTokenIssuers": "https://a,b"}, "'b', which cannot be used"),
        ({"openIDAllowedTokenIssuers": "https://u:p@a"}, "a user or a password"),
        ({"openIDAllowedTokenIssuers": "https://"}, "names no host"),
        ({"openIDAllowedTokenIssuers": "https://a:99999"}, "is no URL"),
        ({"openIDAllowedAudiences": ""}, "openIDAllowedAudiences is empty"),
        ({"openIDTokenIssuerTrustCertsFilePath": "/nowhere"}, "/nowhere cannot be used: No such"),
        ({"openIDTokenIssuerTrustCertsFilePath": __file__}, "no certificates in PEM"),
        (
            {"openIDFallbackDiscoveryMode": "KUBERNETES_DISCOVER_TRUSTED_ISSUER"},
            "no discovery by Kubernetes",
        ),
    ],
)
def test_settings_that_cannot_be_used_are_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        OpenIdProvider(Config(**settings("https://a", "", **changes)))


def test_without_https_an_issuer_is_asked_only_when_the_settings_say_so(tmp_path: Path) -> None:
    with Issuer(None) as issuer:
        config = settings(issuer.url, "", openIDRequireIssuersUseHttps=False)
        provider = OpenIdProvider(Config(**config))
        assert asyncio.run(provider.authenticate(issuer.token().encode())).role == "me"


# --- keys and URLs ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes",
    [
        {"kty": "oct"},
        {"kty": "OKP", "crv": "Ed25519", "x": "AA"},
        {"kty": None},
        {"use": "enc"},
        {"alg": "none"},
        {"alg": "HS256"},
        {"alg": "ES256"},
        {"n": "AA"},
        {"n": "!"},
        {"n": 5},
        {"e": ""},
        {"e": "AQAAAAE"},  # 2^32 + 1
        {"e": base64.urlsafe_b64encode((2**2000 + 1).to_bytes(251, "big")).rstrip(b"=").decode()},
        {"d": "AA"},
        {"kid": None},
        {"kid": 5},
        {"kid": "k" * 1000},
    ],
)
def test_a_key_that_nothing_can_be_checked_with_is_passed_over(changes: dict[str, Any]) -> None:
    described = public_jwk(rsa_key(), "k1")
    assert parse_key(described)[1] is not None
    assert parse_key(described | changes)[1] is None
    assert parse_key(json.dumps(described))[1] is None


def test_a_small_key_is_passed_over_and_a_curve_has_one_algorithm() -> None:
    assert parse_key(public_jwk(rsa_key(1024), "k"))[1] is None
    assert parse_key(public_jwk(rsa_key(), "k") | {"e": "_____w"})[1] is not None  # 2^32 - 1
    found = parse_key(public_jwk(ec_key(), "k"))[1]
    assert found is not None and found.algorithms == ["ES256"]


@pytest.mark.parametrize("url", ["https://h", "https://h:8443/p?q=1", "https://[::1]/x"])
def test_urls_that_can_be_asked(url: str) -> None:
    assert split_url(url, ("https",)).scheme == "https"


def test_what_providers_need_is_imported_when_they_are_on() -> None:
    program = """
import sys
from harness.tokens import BASIC, data_url
from pyxbroker.auth.authentication import Authentication
from pyxbroker.settings.config import Config
ours = set(sys.modules)
Authentication(Config(authenticationProviders=BASIC, basicAuthConf=data_url(b"a:abJnggxhB/yWI")))
print(*sorted(set(sys.modules) - ours))
"""
    found = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()
    assert "pyxbroker.auth.basic" in found
    late = {"jwt", "httptools", "pyxbroker.auth.openid", "pyxbroker.auth.claims"}
    assert not late & set(found)

"""Roles that are told by certificates: what counts, and what a client could only claim."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from pyxbroker.auth.authentication import PACKAGE, Authentication
from pyxbroker.auth.certificates import common_name_of
from pyxbroker.base.errors import AuthenticationError
from pyxbroker.base.properties import ConfigError
from pyxbroker.settings.config import Config

TLS = PACKAGE + "AuthenticationProviderTls"


def authentication(**others: Any) -> Authentication:
    values: dict[str, Any] = {"brokerServicePortTls": 0, "tlsTrustCertsFilePath": "/clients.pem"}
    return Authentication(Config(authenticationProviders=TLS, **(values | others)))


@pytest.mark.parametrize(
    ("certificate", "name"),
    [
        (None, ""),
        ({}, ""),
        ({"subject": ((("organizationName", "o"),),)}, ""),
        ({"subject": ((("organizationName", "o"),), (("commonName", "me"),))}, "me"),
        ({"subject": ((("commonName", "first"),), (("commonName", "second"),))}, "second"),
        ({"subject": ((("commonName", "first"),), (("commonName", ""),))}, "first"),
        ({"subject": ((("commonName", "Users"),), (("commonName", "jdoe"),))}, "jdoe"),
        ({"subject": ((("commonName", "Zoë"),),)}, "Zoë"),
    ],
)
def test_of_several_common_names_the_one_counts_that_pulsar_takes(
    certificate: dict[str, Any] | None, name: str
) -> None:
    assert common_name_of(certificate) == name


def test_the_role_is_the_common_name_whatever_a_client_sends() -> None:
    verified = asyncio.run(authentication().verify("tls", b"admin", "me"))
    assert (verified.identity.role, verified.identity.expires_at) == ("me", None)
    with pytest.raises(AuthenticationError):
        asyncio.run(authentication().verify("tls", b"admin"))


@pytest.mark.parametrize("headers", [{}, {"x-pulsar-auth-method-name": "tls"}])
def test_a_request_by_http_has_the_role_of_its_connection(headers: dict[str, str]) -> None:
    def asked(name: str) -> str | None:
        found = authentication().verify_request(headers, lambda: {"token": "admin"}, name)
        return asyncio.run(found).identity.role

    assert asked("me") == "me"
    with pytest.raises(AuthenticationError):
        asked("")


def test_who_has_none_is_anonymous_unless_the_method_is_named() -> None:
    anonymous = authentication(anonymousUserRole="guest")
    verified = asyncio.run(anonymous.verify_request({}, lambda: {}))
    assert verified.identity.role == "guest"
    for asked in (
        anonymous.verify("tls", b""),
        anonymous.verify_request({"x-pulsar-auth-method-name": "tls"}, lambda: {}),
    ):
        with pytest.raises(AuthenticationError):
            asyncio.run(asked)


def test_without_a_port_for_it_the_start_is_refused() -> None:
    with pytest.raises(ConfigError, match="there is no port with TLS"):
        Authentication(Config(authenticationProviders=TLS))


@pytest.mark.parametrize(
    ("with_store", "name"), [(False, "tlsTrustCertsFilePath"), (True, "tlsTrustStore")]
)
def test_without_authorities_of_its_own_the_start_is_refused(with_store: bool, name: str) -> None:
    """Else whoever gets a certificate of a public authority chooses a role."""
    others: dict[str, Any] = {"tlsEnabledWithKeyStore": with_store}
    others |= {"tlsTrustCertsFilePath": "/clients.pem" if with_store else ""}
    with pytest.raises(ConfigError, match=f"and {name} is empty"):
        authentication(**others)
    authentication(**(others | {name: "/clients"}))

"""The roles, what each one has, and a broker that asks for rights."""

from __future__ import annotations

from pathlib import Path

from harness.brokers import Broker
from harness.tokens import token, with_rights

# Each role, and who it asks for when it is a proxy.
ROLES: dict[str, tuple[str, str]] = {
    "administrator of the tenant": ("admin", ""),
    "produce on the namespace": ("np", ""),
    "consume on the namespace": ("nc", ""),
    "produce on the topic": ("tp", ""),
    "consume on the topic": ("tc", ""),
    "nothing": ("nobody", ""),
    "proxy for the administrator": ("proxy", "admin"),
    "proxy that may for who may not": ("proxy", "nobody"),
    "proxy that may for nobody": ("proxy", ""),
    "who is no proxy for the administrator": ("np", "admin"),
    "superuser": ("root", ""),
    "anonymous": ("", ""),
    "administrator of another tenant": ("other-admin", ""),
}
# By REST these stand for the others: what a proxy may is one function, whatever is asked.
BY_REST = (
    "administrator of the tenant",
    "produce on the namespace",
    "consume on the topic",
    "nothing",
)
# These ask for what does not exist, or has a name that nothing can have.
OF_MISSING = (
    "superuser",
    "administrator of the tenant",
    "administrator of another tenant",
    "nothing",
    "anonymous",
)
ANONYMOUS_ROLE = "guest"  # of a client that shows no token
GRANTS = (
    ("np", "ns", "produce"),
    ("nc", "ns", "consume"),
    ("tp", "ns/topic", "produce"),
    ("tc", "ns/topic", "consume"),
)
OTHER_TENANT = "other"
OTHER_ADMINS = '{"adminRoles":["other-admin"],"allowedClusters":["standalone"]}'
ADMINS = '{"adminRoles":["admin","proxy"],"allowedClusters":["standalone"]}'


def headers_of(role: str, original: str = "") -> dict[str, str]:
    headers = {"Authorization": f"Bearer {token(role)}"} if role else {}
    return headers | ({"X-Original-Principal": original} if original else {})


def broker_with_rights(kind: str, directory: Path) -> Broker:
    settings = with_rights(kind) | {"proxyRoles": "proxy", "anonymousUserRole": ANONYMOUS_ROLE}
    return Broker(kind, directory, settings=settings, headers=headers_of("root"))

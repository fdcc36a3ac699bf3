"""Grants in the record of a namespace: the parts of Pulsar's AuthPolicies."""

from __future__ import annotations

from pyxbroker.policies.records import Fields

AUTH = "auth_policies"
ROLES = "namespace_auth"
SUBSCRIPTIONS = "subscription_auth_roles"
TOPICS = "destination_auth"


def has_grants(record: Fields, topic: str) -> bool:
    """Return True if a namespace's record has grants for the topic."""
    return topic in ((record.get(AUTH) or {}).get(TOPICS) or {})


def forget_topic(record: Fields, topic: str) -> None:
    """Remove the grants for a topic from a namespace's record."""
    if has_grants(record, topic):
        grants = record[AUTH]
        others = {name: roles for name, roles in grants[TOPICS].items() if name != topic}
        record[AUTH] = grants | {TOPICS: others}

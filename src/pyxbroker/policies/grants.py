"""Who may do what, as a namespace's record has it: the parts of Pulsar's AuthPolicies."""

from __future__ import annotations

from pyxbroker.policies.records import Fields

AUTH = "auth_policies"
ROLES = "namespace_auth"
SUBSCRIPTIONS = "subscription_auth_roles"
TOPICS = "destination_auth"


def has_grants(record: Fields, topic: str) -> bool:
    """Whether a record says who may do what with a topic."""
    return topic in ((record.get(AUTH) or {}).get(TOPICS) or {})


def forget_topic(record: Fields, topic: str) -> None:
    """Changes a record: it says nothing of a topic any more."""
    if has_grants(record, topic):
        grants = record[AUTH]
        others = {name: roles for name, roles in grants[TOPICS].items() if name != topic}
        record[AUTH] = grants | {TOPICS: others}

"""The principal of a session or an HTTP request."""

from __future__ import annotations

from pyxbroker.base.named_tuple import NamedTuple


class Principal(NamedTuple):
    """A role, as Pulsar defines it, and for a proxy the role of its client. Immutable.

    `role` is None for an unauthenticated client.
    """

    role: str | None = None
    original_role: str | None = None


# The principal of every client while authentication is off.
ANONYMOUS = Principal()

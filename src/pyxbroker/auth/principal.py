"""Who asks: what every session and every HTTP request carries."""

from __future__ import annotations

from pyxbroker.base.named_tuple import NamedTuple


class Principal(NamedTuple):
    """A role as Pulsar has it, and for a proxy the role that it asks for; it does not change.

    `role` is None for somebody who has not said who they are.
    """

    role: str | None = None
    original_role: str | None = None


# Everybody, while authentication is off.
ANONYMOUS = Principal()

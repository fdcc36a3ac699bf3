"""The audit log: who changed what, who was kept from it, and who could not log in.

A line for each, JSON, by a logger of its own name (base/log.py, AuditHandler). Changes are all
there; what anybody can bring about, a failed login or a refusal, is limited as other lines are. A
line never has a body, a credential, or what stands behind the question mark of a request, but for
the numbers and switches that its endpoint takes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyxbroker.auth.principal import Principal
from pyxbroker.base.log import AUDIT
from pyxbroker.settings.config import Config

WITH_AUTHENTICATION = "withAuthentication"
DONE, DENIED = "done", "denied"  # what became of a command; of a request it is the status

_NO_ARGUMENTS: Mapping[str, object] = {}


class Audit:
    """That of one broker; where it is off, nothing is written."""

    def __init__(self, config: Config) -> None:
        wanted = config.auditLog
        self.is_on = (
            config.authenticationEnabled if wanted == WITH_AUTHENTICATION else wanted == "true"
        )
        self._proxies: frozenset[str] = frozenset()
        if self.is_on:
            from pyxbroker.auth.authentication import names_of

            self._proxies = frozenset(names_of(config.proxyRoles))
        self._logger = logging.getLogger(AUDIT)

    def changed(
        self,
        principal: Principal,
        address: str,
        operation: str,
        target: object,
        outcome: object,
        arguments: Mapping[str, object] = _NO_ARGUMENTS,
    ) -> None:
        """Somebody who may has asked for a change."""
        more = {"arguments": arguments} if arguments else {}
        self._write(
            logging.INFO, "change", principal, address, operation, target, outcome=outcome, **more
        )

    def refused(
        self,
        principal: Principal,
        address: str,
        operation: str,
        target: object,
        outcome: object,
        reason: object,
    ) -> None:
        """Somebody has asked for what they have no right to."""
        self._write(
            logging.WARNING,
            *("refused", principal, address, operation, target),
            outcome=outcome,
            reason=reason,
        )

    def login_failed(self, address: str, protocol: str, method: str, reason: object) -> None:
        """Somebody could not say who they are; `reason` is a sentence without what they showed."""
        self._write(
            logging.WARNING,
            *("login failed", Principal(), address, f"login by {protocol}", None),
            method=method,
            reason=reason,
        )

    def _write(
        self,
        level: int,
        event: str,
        principal: Principal,
        address: str,
        operation: str,
        target: object,
        **more: object,
    ) -> None:
        if not self.is_on:
            return
        # Whom anybody else says that they ask for is their word alone.
        original = "originalPrincipal" if principal.role in self._proxies else "claimedPrincipal"
        fields: dict[str, object] = {
            "principal": principal.role,
            original: principal.original_role,
            "peer": address,
            "operation": operation,
            "target": target,
            **more,
        }
        self._logger.log(level, event, extra={"fields": fields})

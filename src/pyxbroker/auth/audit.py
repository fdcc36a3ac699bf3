"""The audit log: changes, refused requests, and failed logins.

Each is a line of JSON, written by a logger of its own (base/log.py, AuditHandler). All changes are
logged. Failed logins and refusals, which any client can cause, are rate-limited like other lines. A
line never has a body, a credential, or the query of a request, except the numbers and switches that
its endpoint takes.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from pyxbroker.auth.principal import Principal
from pyxbroker.base.log import AUDIT
from pyxbroker.settings.config import Config

WITH_AUTHENTICATION = "withAuthentication"
DONE, DENIED = "done", "denied"  # outcome of a command; for a request it is the status

_NO_ARGUMENTS: Mapping[str, object] = {}


class Audit:
    """The audit log of one broker; if it is off, nothing is written."""

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
        """Log a change that an authorized principal has requested."""
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
        """Log a request that was refused for a missing right."""
        self._write(
            logging.WARNING,
            *("refused", principal, address, operation, target),
            outcome=outcome,
            reason=reason,
        )

    def login_failed(self, address: str, protocol: str, method: str, reason: object) -> None:
        """Log a failed login; `reason` is a sentence without the credentials."""
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
        # Only a proxy role is trusted to name the original principal.
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

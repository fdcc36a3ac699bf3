"""Apache Pulsar's Go package ``pulsaradmin``: its methods by their names, in the program of
``goclient/``.

Arguments and results are what ``encoding/json`` makes of the package's types; a topic and a
namespace are their names, and a field that is not sent (such as a tenant's name) has its name in
Go, as in ``{"Name": "t", "adminRoles": []}``.
"""

from __future__ import annotations

from typing import Any

from harness.go_program import Program

_LIMIT_S = 30.0
_HANDLE = 1


class Refused(Exception):
    """What the broker answered, as the package understood it."""

    def __init__(self, what: str, code: int, reason: str) -> None:
        super().__init__(f"{what}: {code} {reason}")
        self.code = code
        self.reason = reason


class GoAdmin:
    """A client of one broker's REST; to be closed."""

    def __init__(self, web_url: str) -> None:
        self._program = Program()
        self._program.ask("new_admin", 0, {"url": web_url}, _LIMIT_S, make=_HANDLE)

    def methods(self) -> dict[str, list[str]]:
        """The methods of each group."""
        found: dict[str, list[str]] = self._program.ask("admin_methods", _HANDLE, {}, _LIMIT_S)
        return found

    def call(self, group: str, method: str, *arguments: Any) -> Any:
        """What the method gives: a value, None, or a list of several.

        Raises ``Refused`` when the broker refused, and another error when the package could do
        nothing with the answer.
        """
        asked = {"group": group, "method": method, "arguments": arguments}
        answer = self._program.ask("call_admin", _HANDLE, asked, _LIMIT_S)
        if "code" in answer:
            raise Refused(f"{group}.{method}", answer["code"], answer["reason"])
        values = answer["values"]
        return values if len(values) > 1 else values[0] if values else None

    def close(self) -> None:
        """Ends the process."""
        self._program.end()

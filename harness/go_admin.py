"""Apache Pulsar's Go package ``pulsaradmin``: its methods by their names, in the program of
``goclient/``.

Arguments and results are what ``encoding/json`` makes of the package's types; a topic and a
namespace are their names, and a field that is not sent (such as a tenant's name) has its name in
Go, as in ``{"Name": "t", "adminRoles": []}``.
"""

from __future__ import annotations

import json
import subprocess
from typing import Any

from harness.go_build import program

_HANDLE = 1


class Refused(Exception):
    """What the broker answered, as the package understood it."""

    def __init__(self, what: str, code: int, reason: str) -> None:
        super().__init__(f"{what}: {code} {reason}")
        self.code = code
        self.reason = reason


class Failed(Exception):
    """What the package could do nothing with: an argument, or the broker's answer."""


class GoAdmin:
    """A client of one broker's REST; to be closed. One call at a time."""

    def __init__(self, web_url: str) -> None:
        self._process = subprocess.Popen(
            [str(program())], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._ask("new_admin", {"url": web_url}, made=_HANDLE)

    def methods(self) -> dict[str, list[str]]:
        """The methods of each group."""
        found: dict[str, list[str]] = self._ask("admin_methods", {})
        return found

    def call(self, group: str, method: str, *arguments: Any) -> Any:
        """What the method gives: a value, None, or a list of several. Raises Refused, Failed."""
        asked = {"group": group, "method": method, "arguments": arguments}
        answer = self._ask("call_admin", asked)
        if "code" in answer:
            raise Refused(f"{group}.{method}", answer["code"], answer["reason"])
        values = answer["values"]
        return values if len(values) > 1 else values[0] if values else None

    def _ask(self, op: str, args: dict[str, Any], made: int = 0) -> Any:
        assert self._process.stdin is not None and self._process.stdout is not None
        asked = {"id": 1, "op": op, "on": _HANDLE, "as": made, "args": args, "drop": []}
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        # The package itself waits five minutes for an answer at most.
        line = self._process.stdout.readline()
        assert line, f"the Go program ended with {self._process.wait()}"
        answer = json.loads(line)
        if "error" in answer:
            raise Failed(f"{args}: {answer['error']['text']}")
        return answer["ok"]

    def close(self) -> None:
        """Ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        status = self._process.wait(20)
        self._process.stdout.close()
        assert status == 0, f"the Go program ended with {status}"

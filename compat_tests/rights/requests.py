"""What each role is told by REST: refused, in which words, or let in."""

from __future__ import annotations

from collections.abc import Iterable

from harness.brokers import Broker

from compat_tests.answers.ask import Asker
from compat_tests.answers.cases import cases
from compat_tests.answers.differences import Told
from compat_tests.rights.differences import LET_IN, NOT_BUILT
from compat_tests.rights.scene import ADMINS, BY_REST, GRANTS, ROLES, headers_of

REFUSED = (401, 403)


class RightsAsker(Asker):
    """Scenes in which roles have something."""

    def scene(self) -> list[tuple[str, str, bytes | None]]:
        made = [
            (method, path, ADMINS.encode() if path == "/admin/v2/tenants/T" else body)
            for method, path, body in super().scene()
        ]
        for role, where, action in GRANTS:
            of = "namespaces" if where == "ns" else "persistent"
            path = f"/admin/v2/{of}/T/{where}/permissions/{role}"
            made.append(("POST", path, f'["{action}"]'.encode()))
        return made


def told(broker: Broker) -> Iterable[tuple[str, Told]]:
    """What each role is told of each endpoint."""
    asker = RightsAsker(broker)
    asked = [each for each in cases() if each.kind == "good"]
    for title in BY_REST:
        for case, answer in asker.ask(asked, headers_of(*ROLES[title])):
            if answer.status == NOT_BUILT.status:
                answer = NOT_BUILT
            elif answer.status not in REFUSED:
                answer = LET_IN
            yield f"{title} | {case.row}", answer

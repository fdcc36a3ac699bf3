"""What each role is told by REST: refused, in which words, or let in."""

from __future__ import annotations

from collections.abc import Iterable

from harness.brokers import Broker

from compat_tests.answers.ask import Asker
from compat_tests.answers.cases import cases
from compat_tests.answers.differences import Told
from compat_tests.rights.differences import LET_IN, NOT_BUILT
from compat_tests.rights.scene import (
    ADMINS,
    BY_REST,
    GRANTS,
    OF_MISSING,
    OTHER_ADMINS,
    OTHER_TENANT,
    ROLES,
    headers_of,
)

REFUSED = (401, 403)
# Of these the answer is compared, whatever it is.
MISSING = ("no tenant", "no namespace", "no topic", "bad tenant", "bad namespace")


class RightsAsker(Asker):
    """Scenes in which roles have something."""

    def __init__(self, broker: Broker) -> None:
        super().__init__(broker)
        path = f"/admin/v2/tenants/{OTHER_TENANT}"
        assert self._made("PUT", path, OTHER_ADMINS.encode())[0] in (204, 409)

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
    every = list(cases())
    good = [each for each in every if each.kind == "good"]
    for title in BY_REST:
        for case, answer in asker.ask(good, headers_of(*ROLES[title])):
            if answer.status == NOT_BUILT.status:
                answer = NOT_BUILT
            elif answer.status not in REFUSED:
                answer = LET_IN
            yield f"{title} | {case.row}", answer
    missing = [each for each in every if each.kind in MISSING]
    for title in OF_MISSING:
        for case, answer in asker.ask(missing, headers_of(*ROLES[title])):
            yield f"{title} | {case.name}", LET_IN if 0 < answer.status < 400 else answer

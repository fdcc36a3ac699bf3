"""Pulsar's endpoints beside ours: each one is answered, and the page says how."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import AsyncMock

import pytest

from pyxbroker.admin import documents
from pyxbroker.admin.endpoints import RESOURCES, every_endpoint, load
from pyxbroker.admin.not_built import NOT_BUILT, NOT_FOUND, NOT_IMPLEMENTED, OFF, Part, refused
from pyxbroker.admin.pulsar_endpoints import PulsarEndpoint, endpoints
from pyxbroker.admin.request import Request
from pyxbroker.auth.authorization import AUTHENTICATED, SUPERUSER, TENANT_ADMIN, Scope
from pyxbroker.web.endpoint import Endpoint
from pyxbroker.web.errors import HttpError
from pyxbroker.web.request import Body
from pyxbroker.web.router import Router

PAGE = Path(__file__).parent.parent / "docs" / "compatibility.md"
THEIRS = list(endpoints())
OURS = {(row.method, documents.unnamed(row.path)) for _, row in every_endpoint()}
PARTS = (*OFF, *NOT_BUILT)
# Values that parameters of any type take, and that are no literal segment of a path.
VALUES = {"tenant": "0", "namespace": "1", "topic": "2"}


def key(each: PulsarEndpoint) -> tuple[str, str]:
    return each.method, documents.unnamed(each.path)


def found(method: str, path: str) -> Endpoint | None:
    """What the router of the broker finds; None for nothing."""
    body = Body(0, lambda: None)
    request = Request(method, path, "", {}, body)
    try:
        return asyncio.run(Router(RESOURCES, load, refused).find(request))
    except HttpError as error:
        assert error.status == NOT_FOUND, (method, path, error)
        return None


def test_the_table_has_every_endpoint_of_pulsar_once() -> None:
    # 679 methods and paths that 4.2 has, of which two are one with two media types, in two domains.
    assert sum(each.weight for each in THEIRS) == 677
    assert [each for each, count in Counter(map(key, THEIRS)).items() if count > 1] == []


def test_each_of_pulsars_endpoints_is_answered_as_the_table_says() -> None:
    statuses = {
        (method, documents.unnamed(path)): part.status
        for part in PARTS
        for method, path in part.rows()
    }
    for each in THEIRS:
        for domain in ("persistent", "non-persistent"):
            path = re.sub(r"{\w+}", "7", each.path.replace("{domain}", domain))
            row = found(each.method, path)
            if key(each) in OURS:
                assert row is not None and (row.method, documents.unnamed(row.path)) in OURS, each
                assert documents.unnamed(row.path) == documents.unnamed(each.path)
            elif statuses[key(each)] == NOT_FOUND:
                assert row is None, each
            else:
                assert row is not None, each
                assert documents.unnamed(row.path) == documents.unnamed(each.path)
                assert row.answer.status == statuses[key(each)]


@pytest.mark.parametrize("part", PARTS, ids=[part.about for part in PARTS])
def test_what_is_refused_is_pulsars_and_is_not_what_works(part: Part) -> None:
    rows = [(method, documents.unnamed(path)) for method, path in part.rows()]
    assert rows and set(rows) <= set(map(key, THEIRS))
    assert not OURS.intersection(rows)
    assert Counter(
        (method, documents.unnamed(path)) for each in PARTS for method, path in each.rows()
    ) == Counter(set(statuses_of_all()))
    if part.status != NOT_FOUND:
        assert part.reason.endswith(("true.", ".", "false"))


def statuses_of_all() -> list[tuple[str, str]]:
    return [key(each) for each in THEIRS if key(each) not in OURS]


def test_a_refusal_is_a_status_and_a_sentence() -> None:
    for row in refused():
        answer = asyncio.run(answered(row))
        assert answer == (row.answer.status, {"reason": row.answer.about})
        assert answer[0] in {NOT_IMPLEMENTED, *(part.status for part in OFF)}


def test_what_is_not_built_asks_for_a_right_where_it_tells_what_is_there() -> None:
    for row in refused():
        is_told = row.answer.status == NOT_IMPLEMENTED and "{namespace}" in row.path
        assert (row.right == AUTHENTICATED) == (not is_told), row.path
        if is_told:
            assert set(row.right.holders) <= {TENANT_ADMIN, SUPERUSER}
            assert ("{topic}" in row.path) == (row.right.scope in (Scope.TOPIC, Scope.TOPIC_POLICY))


async def answered(row: Endpoint) -> tuple[int, object]:
    there = SimpleNamespace(topics=AsyncMock())
    there.topics.policies.namespace_fields.return_value = {}
    app = cast(Any, SimpleNamespace(broker=there))
    parameters = dict.fromkeys(re.findall(r"\{(\w+)\}", row.path), "x") | {"domain": "persistent"}
    body = Body(0, lambda: None)
    body.end()
    request = Request(row.method, row.path, "", {}, body)
    request.app, request.endpoint, request.parameters = app, row, parameters
    answer = await row.handler(request)
    assert isinstance(answer.body, bytes)
    return answer.status, json.loads(answer.body)


def test_a_row_that_works_is_taken_before_one_that_is_refused() -> None:
    works, *_ = [row for name, row in every_endpoint() if name == "brokers"]
    refusing = works._replace(summary="Refuses.")
    router = Router({"/admin/v2/brokers": ("x",)}, lambda name: [works], lambda: [refusing])
    asked = Request(works.method, works.path, "", {}, Body(0, lambda: None))
    assert asyncio.run(router.find(asked)) is works


def test_the_page_of_compatibility_has_the_table() -> None:
    page = PAGE.read_text()
    written = "python -m pyxbroker.admin.documents docs/compatibility.md writes it"
    assert documents.with_table(page) == page, written


def test_a_page_without_a_place_for_the_table_is_not_written() -> None:
    with pytest.raises(ValueError, match="no <!-- begin"):
        documents.with_table("# Compatibility\n")

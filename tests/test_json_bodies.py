"""Bodies of JSON whose reading would hold the loop: they are refused before they are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.admin.endpoints import every_endpoint
from pyxbroker.base.json_weight import CHUNK_BYTES
from pyxbroker.web import request as web_request
from pyxbroker.web.endpoint import Endpoint
from test_admin_topics import DONE, P, Rest, run

N = "/admin/v2/namespaces/public/default"
S = "/admin/v2/schemas/public/default/t"
SIZE = 1 << 20
LISTS = b'{"a":[' + b"[]," * ((SIZE - 20) // 3) + b"1]}"
HEAVY = "The body has more than {} values and names, of which 64 escapes count as one."
SUBSCRIPTION = f"{P}/t/subscription/s"


@pytest.mark.parametrize(
    ("method", "path", "tokens_max"),
    [
        ("POST", f"{S}/version", 20_000),
        ("POST", f"{S}/schema", 20_000),
        ("POST", f"{S}/compatibility", 20_000),
        ("PUT", f"{SUBSCRIPTION}/properties", 20_000),
        ("PUT", f"{P}/t/properties", 20_000),
        ("PUT", f"{N}/properties", 20_000),
        ("PUT", f"{P}/new", 20_000),
        ("POST", f"{N}/allowedTopicPropertyKeysForMetrics", 20_000),
        ("PUT", "/admin/v2/namespaces/public/new", 100_000),
        ("PUT", "/admin/v2/tenants/new", 20_000),
        ("PUT", "/admin/v2/clusters/new", 20_000),
        ("POST", "/admin/v2/namespaces/grantPermissionsOnTopics", 100_000),
    ],
)
def test_a_body_with_too_many_values_is_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, path: str, tokens_max: int
) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        assert await rest("PUT", SUBSCRIPTION) == DONE
        loads = json.loads
        content = _row(method, path).content
        assert content is not None
        kind, bytes_max = next(iter(content.schemas)), content.bytes_max
        body = LISTS if bytes_max >= SIZE else LISTS[: bytes_max - 20] + b"1]}"

        def checked(text: Any, **more: Any) -> Any:
            assert text != body, "it was read"
            return loads(text, **more)

        monkeypatch.setattr(json, "loads", checked)
        status, answer = await rest(method, path, body, kind)
        assert (status, answer["reason"]) == (400, HEAVY.format(tokens_max))

    run(tmp_path, scenario)


def _row(method: str, path: str) -> Endpoint:
    """That of a path of above: which has the fewest parameters of those that it fits."""
    parts = path.split("/")
    fitting = [
        row
        for _, row in every_endpoint()
        if row.method == method
        and len(ours := row.path.split("/")) == len(parts)
        and all(a == b or a.startswith("{") for a, b in zip(ours, parts, strict=True))
    ]
    return min(fitting, key=lambda row: row.path.count("{"))


def test_half_a_character_is_looked_for_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        looked: list[int] = []
        halves = web_request._SURROGATE

        class Noted:
            def search(self, body: bytes, start: int, end: int) -> Any:
                looked.append(end - start)
                return halves.search(body, start, end)

        monkeypatch.setattr(web_request, "_SURROGATE", Noted())
        size = 4 * CHUNK_BYTES
        whole = b'{"type":"STRING","schema":"' + b"\\u0041" * (size // 6) + b'"}'
        assert (await rest("POST", f"{S}/version", whole))[0] == 200
        assert len(looked) == 5
        assert max(looked) <= CHUNK_BYTES + web_request.SURROGATE_TAIL_BYTES
        start = b'{"type":"STRING","schema":"'
        # Wherever it is, between two pieces, too.
        for before in range(CHUNK_BYTES - 7, CHUNK_BYTES + 2):
            body = start + b"x" * (before - len(start)) + b'\\ud83d"}'
            assert (await rest("POST", f"{S}/version", body))[0] == 400, before

    run(tmp_path, scenario)


def test_the_largest_schemas_are_taken(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        assert await rest("PUT", f"{P}/t") == DONE
        fields = [{"name": f"f{n}", "type": "int", "doc": "d" * 60} for n in range(2_400)]
        record = {"type": "record", "name": "R", "fields": fields}
        properties = {f"k{n}": "v" * 200 for n in range(1_000)}
        escaped = "".join(f"\\u{ord(each):04x}" for each in json.dumps(record))
        one = json.dumps({"type": "AVRO", "properties": properties})[:-1]
        body = f'{one},"schema":"{escaped}"}}'
        assert len(body) > 1 << 20
        status, answer = await rest("POST", f"{S}/schema", body)
        assert (status, answer) == (200, {"version": {"version": 0}})
        both = json.dumps({"key": "int", "value": record})
        of_both = json.dumps({"type": "KEY_VALUE", "schema": both, "properties": {}})
        assert (await rest("POST", f"{S}-both/schema", of_both))[0] == 200

    run(tmp_path, scenario)


def test_halves_of_a_schema_with_a_million_values_are_refused_unread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario(rest: Rest) -> None:
        halves = '{"key":' + LISTS.decode() + ',"value":1}'
        loads = json.loads

        def checked(text: Any, **more: Any) -> Any:
            assert text != halves, "it was read"
            return loads(text, **more)

        monkeypatch.setattr(json, "loads", checked)
        body = json.dumps({"type": "KEY_VALUE", "schema": halves})
        status, answer = await rest("POST", f"{S}/version", body)
        assert (status, answer["reason"]) == (
            422,
            "Invalid schema definition data for KEY_VALUE schema: it has more than 100000 values"
            " and names, of which 64 escapes count as one",
        )

    run(tmp_path, scenario)

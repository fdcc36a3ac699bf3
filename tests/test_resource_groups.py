"""REST of resource groups and who is in them; statuses and texts are Apache Pulsar 4.2.4's."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pyxbroker.broker import resource_groups
from test_admin_topics import DONE, Rest, run
from test_namespaces import A, begin_with
from test_tenants import N

R = "/admin/v2/resourcegroups"
OF_A = f"{A}/resourcegroup"
NONE = dict.fromkeys(
    ("publishRateInMsgs", "publishRateInBytes", "dispatchRateInMsgs", "dispatchRateInBytes"), -1
)
MISSING = (404, "ResourceGroup does not exist")


def test_a_group_is_made_changed_and_deleted(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("GET", R) == (200, [])
        assert await rest.reason("GET", f"{R}/g") == MISSING
        rates = '{"publishRateInMsgs":10,"publishRateInBytes":1000,"unknown":1}'
        assert await rest("PUT", f"{R}/g", rates) == DONE
        told = NONE | {"publishRateInMsgs": 10, "publishRateInBytes": 1000}
        assert await rest("GET", f"{R}/g") == (200, told)
        # What is not said again stays.
        assert await rest("PUT", f"{R}/g", '{"dispatchRateInMsgs":7}') == DONE
        assert await rest("GET", f"{R}/g") == (200, told | {"dispatchRateInMsgs": 7})
        assert await rest("PUT", f"{R}/a%20b", '{"publishRateInMsgs":-5}') == DONE
        assert await rest("GET", R) == (200, ["a b", "g"])
        assert await rest("DELETE", f"{R}/g") == DONE
        assert await rest.reason("DELETE", f"{R}/g") == MISSING
        assert await rest.reason("GET", f"{R}/..") == MISSING

    run(tmp_path, scenario)


@pytest.mark.parametrize(
    ("name", "body", "status"),
    [
        ("g", "null", 400),
        ("g", "", 400),
        ("g", "[]", 400),
        ("g", '{"publishRateInMsgs":"x"}', 400),
        ("g", '{"publishRateInMsgs":true}', 400),
        ("g", '{"publishRateInMsgs":99999999999}', 400),
        ("g", '{"publishRateInBytes":99999999999999999999}', 400),
        ("..", "{}", 412),
        ("a%2Fb", "{}", 412),
        ("x" * 300, "{}", 412),
    ],
)
def test_no_group(tmp_path: Path, name: str, body: str, status: int) -> None:
    async def scenario(rest: Rest) -> None:
        assert (await rest.reason("PUT", f"{R}/{name}", body))[0] == status
        assert await rest("GET", R) == (200, [])

    run(tmp_path, scenario)


def test_a_group_that_a_namespace_is_in_stays(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin_with(rest)
        assert await rest("PUT", f"{R}/g", "{}") == DONE
        assert await rest("GET", OF_A) == (200, None)
        assert await rest.reason("POST", f"{OF_A}/none") == (412, "ResourceGroup does not exist")
        assert await rest("POST", f"{OF_A}/g") == DONE
        answer = await rest.answer("GET", OF_A)
        assert (answer.status, answer.body) == (200, b"g")
        assert (await rest("GET", A))[1]["resource_group_name"] == "g"
        assert await rest.reason("DELETE", f"{R}/g") == (412, "ResourceGroup is in use")
        assert await rest("DELETE", OF_A) == DONE
        assert await rest("GET", OF_A) == (200, None)
        assert "resource_group_name" not in (await rest("GET", A))[1]
        assert await rest("DELETE", f"{R}/g") == DONE
        missing = f"{N}/a/none/resourcegroup"
        assert await rest.reason("GET", missing) == (404, "Namespace does not exist")
        assert await rest("PUT", f"{R}/g", "{}") == DONE
        for method, path in (("POST", f"{missing}/g"), ("DELETE", missing)):
            found = await rest.reason(method, path)
            assert found == (404, "Namespace policies does not exist")

    run(tmp_path, scenario)


def test_there_are_no_more_groups_than_there_may_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource_groups, "GROUPS_MAX", 2)

    async def scenario(rest: Rest) -> None:
        answers = await asyncio.gather(*(rest("PUT", f"{R}/g{n}", "{}") for n in range(5)))
        assert sorted(status for status, _ in answers) == [204, 204, 412, 412, 412]
        assert await rest("PUT", f"{R}/g0", '{"publishRateInMsgs":1}') == DONE

    run(tmp_path, scenario)

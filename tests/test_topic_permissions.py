"""REST of what roles may do with topics, and what a Pulsar answers that has no entry filters, no
labels of metrics and no moves of its metadata.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.admin.grant_checks import ENTRIES_MAX
from pyxbroker.admin.resources import grants
from pyxbroker.metadata import paths
from test_admin_topics import DONE, P, Rest, run

N = "/admin/v2/namespaces"
HERE = f"{N}/public/default"
TOPICS = "persistent://public/default"
EACH = ("t", "p", "p-partition-1")


async def begin(rest: Rest) -> None:
    assert await rest("PUT", f"{P}/t") == DONE
    assert await rest("PUT", f"{P}/p/partitions", "2") == DONE


async def of_topics(rest: Rest) -> dict[str, Any]:
    """What the namespace's record grants for topics."""
    found = await rest.broker.node.store.get(paths.namespace_policies("public/default"))
    assert found is not None
    granted: dict[str, Any] = json.loads(found.value).get("auth_policies", {})
    return dict(granted.get("destination_auth", {}))


def test_what_roles_may_do_with_a_topic_is_kept(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        assert await rest("POST", f"{HERE}/permissions/me", '["produce"]') == DONE
        for name in EACH:
            path = f"{P}/{name}/permissions"
            assert await rest("GET", path) == (200, {"me": ["produce"]})
            assert await rest("POST", f"{path}/me", '["consume","produce"]') == DONE
            assert await rest("POST", f"{path}/you", '["sinks"]') == DONE
            both = {"me": ["produce", "consume"], "you": ["sinks"]}
            assert await rest("GET", path) == (200, both)
        # A partition has its own, and loses with the whole.
        assert await rest("DELETE", f"{P}/p/permissions/you") == DONE
        assert await rest("DELETE", f"{P}/p/permissions/nobody") == DONE
        assert await of_topics(rest) == {
            f"{TOPICS}/t": {"me": ["consume", "produce"], "you": ["sinks"]},
            f"{TOPICS}/p": {"me": ["consume", "produce"]},
            f"{TOPICS}/p-partition-1": {"me": ["consume", "produce"]},
        }
        assert await rest("POST", f"{P}/p/permissions/you", '["sinks"]') == DONE
        assert await rest("DELETE", f"{P}/p-partition-1/permissions/me") == DONE
        assert await of_topics(rest) == {
            f"{TOPICS}/t": {"me": ["consume", "produce"], "you": ["sinks"]},
            f"{TOPICS}/p": {"me": ["consume", "produce"], "you": ["sinks"]},
        }

    run(tmp_path, scenario)


def test_what_a_deleted_topic_granted_goes_with_it(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        for name in EACH:
            assert await rest("POST", f"{P}/{name}/permissions/me", '["produce"]') == DONE
        assert await rest("DELETE", f"{P}/t") == DONE
        assert set(await of_topics(rest)) == {f"{TOPICS}/p", f"{TOPICS}/p-partition-1"}
        assert await rest("DELETE", f"{P}/p/partitions") == DONE
        assert await of_topics(rest) == {}
        await begin(rest)
        assert await rest("GET", f"{P}/t/permissions") == (200, {})

    run(tmp_path, scenario)


def test_grants_that_cannot_be_are_refused(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        missing = (404, f"Topic {TOPICS}/none not found")
        asked = (("GET", ""), ("POST", "/me"), ("DELETE", "/me"))
        for method, rest_of in asked:
            path = f"{P}/none/permissions{rest_of}"
            body = '["produce"]' if method == "POST" else ""
            assert await rest.reason(method, path, body) == missing
        for body in ('["fly"]', "{}", "", '"produce"', "[9]", "[[]]"):
            assert (await rest("POST", f"{P}/t/permissions/me", body))[0] == 400
        assert (await rest("POST", f"{P}/t/permissions/{'r' * 1_025}", "[]"))[0] == 400
        assert await of_topics(rest) == {}

    run(tmp_path, scenario)


def test_topics_of_one_namespace_are_granted_together(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)

        async def ask(verb: str, *entries: Any) -> tuple[int, Any]:
            return await rest("POST", f"{N}/{verb}PermissionsOnTopics", json.dumps(list(entries)))

        one = {"topic": f"{TOPICS}/t", "role": "r", "actions": ["produce"]}
        two = {"topic": f"{TOPICS}/p", "role": "s", "actions": ["consume", "produce"]}
        assert await ask("grant", one, two) == DONE
        both = {f"{TOPICS}/t": {"r": ["produce"]}, f"{TOPICS}/p": {"s": ["consume", "produce"]}}
        assert await of_topics(rest) == both
        same = (400, {"reason": "The namespace should be the same"})
        elsewhere = one | {"topic": "persistent://public/other/t"}
        assert await ask("grant", one, elsewhere) == same
        assert await ask("grant") == same
        missing = one | {"topic": f"{TOPICS}/none"}
        assert (await ask("grant", one, missing))[0] == 404
        for wrong in ({"role": "r"}, one | {"topic": "a//b"}, one | {"actions": ["fly"]}, [], 1):
            assert (await ask("grant", wrong))[0] == 400, wrong
        for body in ("{}", "x", ""):
            assert (await rest("POST", f"{N}/grantPermissionsOnTopics", body))[0] == 400
        many = [one] * (ENTRIES_MAX + 1)
        assert (await ask("grant", *many))[0] == 400
        # What is refused changes nothing.
        assert await of_topics(rest) == both
        assert await ask("revoke", {"topic": f"{TOPICS}/t", "role": "r"}) == DONE
        assert await of_topics(rest) == {f"{TOPICS}/p": {"s": ["consume", "produce"]}}

    run(tmp_path, scenario)


def test_rights_on_many_topics_are_taken_away_in_one_look_at_what_is_granted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[str] = []

    class Counting(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            looked_at.append(name)
            return super().__getitem__(name)

    async def scenario(rest: Rest) -> None:
        await begin(rest)

        async def ask(verb: str, entries: list[dict[str, Any]]) -> None:
            answer = await rest("POST", f"{N}/{verb}PermissionsOnTopics", json.dumps(entries))
            assert answer == DONE

        roles = [f"r{i}" for i in range(300)]
        await ask(
            "grant",
            [
                {"topic": f"{TOPICS}/{name}", "role": each, "actions": ["sinks"]}
                for name in EACH
                for each in roles
            ],
        )
        assert await of_topics(rest) == {
            f"{TOPICS}/{name}": {each: ["sinks"] for each in roles} for name in EACH
        }
        monkeypatch.setattr(grants, "dict", Counting, raising=False)
        await ask(
            "revoke",
            [
                *({"topic": f"{TOPICS}/p", "role": each} for each in roles),
                *({"topic": f"{TOPICS}/t", "role": each} for each in roles[1:]),
            ],
        )
        assert await of_topics(rest) == {f"{TOPICS}/t": {"r0": ["sinks"]}}
        assert sorted(looked_at) == sorted(f"{TOPICS}/{name}" for name in EACH)

    run(tmp_path, scenario)


def test_how_subscriptions_are_named_by_roles_is_kept(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        path = f"{HERE}/subscriptionAuthMode"
        assert await rest("GET", path) == (200, "None")
        assert await rest("POST", path, '"Prefix"') == DONE
        assert await rest("GET", path) == (200, "Prefix")
        assert (await rest("GET", HERE))[1]["subscription_auth_mode"] == "Prefix"
        for body in ('"prefix"', "2", "null", ""):
            assert (await rest("POST", path, body))[0] == 400
        assert (await rest("GET", f"{N}/public/none/subscriptionAuthMode"))[0] == 404

    run(tmp_path, scenario)


def test_there_are_no_entry_filters(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await begin(rest)
        empty = "entryFilterNames can't be empty. To remove entry filters use the remove method."
        for base in (HERE, f"{P}/t", f"{P}/p"):
            path = f"{base}/entryFilters"
            assert await rest("GET", path) == DONE
            assert await rest("DELETE", path) == DONE
            assert await rest("POST", path) == DONE
            for body, reason in (
                ('{"entryFilterNames":"a, b"}', "Entry filter 'a' not found"),
                ('{"entryFilterNames":" "}', empty),
                ("{}", empty),
            ):
                assert await rest.reason("POST", path, body) == (400, reason)
            for body in ("[]", '{"entryFilterNames":1}'):
                assert (await rest("POST", path, body))[0] == 400
        applied = await rest("GET", f"{P}/t/entryFilters?applied=true")
        assert applied == (200, {"entryFilterNames": ""})
        for method in ("GET", "POST", "DELETE"):
            assert (await rest(method, f"{P}/none/entryFilters"))[0] == 404
            assert (await rest(method, f"{N}/public/none/entryFilters"))[0] == 404

    run(tmp_path, scenario)


def test_names_for_labels_of_metrics_are_kept(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        path = f"{HERE}/allowedTopicPropertyKeysForMetrics"
        assert await rest("GET", path) == DONE
        assert await rest("POST", path, '["a","b","a"]') == DONE
        assert await rest("GET", path) == (200, ["a", "b"])
        assert (await rest("GET", HERE))[1]["allowed_topic_property_keys_for_metrics"] == ["a", "b"]
        for body in ("{}", "[[]]", "", json.dumps(["x"] * 101)):
            assert (await rest("POST", path, body))[0] == 400
        assert await rest("DELETE", path) == DONE
        assert await rest("GET", path) == DONE
        assert (await rest("GET", f"{N}/public/none/allowedTopicPropertyKeysForMetrics"))[0] == 404

    run(tmp_path, scenario)


def test_the_metadata_stays_where_it_is(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        path = "/admin/v2/metadata/migration"
        assert await rest("GET", f"{path}/status") == (200, {"phase": "NOT_STARTED"})
        assert await rest.reason("POST", f"{path}/start") == (400, "Target URL is required")
        assert (await rest("POST", f"{path}/start?target=zk:x"))[0] == 400
        assert (await rest("POST", "/admin/v2/brokers/shutdown"))[0] == 501

    run(tmp_path, scenario)

"""REST of the clusters of a topic; statuses and texts are Apache Pulsar 4.2.4's, but that of a
cluster that is known and is another one.
"""

from __future__ import annotations

import json
from pathlib import Path

from pyxbroker.admin.resources.topic_replication import NOT_GLOBAL
from test_admin_topics import DONE, P, Rest, run
from test_tenants import HERE, T, begin

PATH = f"{P}/t/replication"
EMPTY = (412, "ClusterIds should not be null or empty")
LOCAL = (
    412,
    "Can not remove local cluster from the local topic-level replication clusters policy",
)
CLUSTER = json.dumps({"serviceUrl": "http://elsewhere:8080"})


async def with_topic(rest: Rest) -> None:
    await begin(rest)
    assert await rest("POST", f"{T}/public", HERE) == DONE
    assert await rest("PUT", f"{P}/t") == DONE


def test_a_topic_may_name_its_own_cluster(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await with_topic(rest)
        assert (await rest("GET", PATH))[0] == 204
        assert await rest("GET", PATH + "?applied=true") == (200, ["standalone"])
        assert await rest("POST", PATH, '["standalone","standalone"]') == DONE
        assert await rest("GET", PATH) == (200, ["standalone"])
        assert (await rest("GET", PATH + "?isGlobal=true"))[0] == 204
        assert await rest("DELETE", PATH) == DONE
        assert (await rest("GET", PATH))[0] == 204

    run(tmp_path, scenario)


def test_a_topic_cannot_name_other_clusters(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        await with_topic(rest)
        for body in ("[]", "null", ""):
            assert await rest.reason("POST", PATH, body) == EMPTY
        assert await rest.reason("POST", PATH, '["other"]') == LOCAL
        both = '["standalone","other"]'
        assert await rest.reason("POST", PATH, both) == (403, "Invalid cluster id: other")
        status, _ = await rest("PUT", "/admin/v2/clusters/other", CLUSTER)
        assert status == 200
        assert await rest.reason("POST", PATH, both) == (
            403,
            "Cluster [other] is not in the list of allowed clusters list for tenant [public]",
        )
        allowed = '{"allowedClusters":["standalone","other"]}'
        assert await rest("POST", "/admin/v2/tenants/public", allowed) == DONE
        assert await rest.reason("POST", PATH, both) == (
            412,
            "A topic is in cluster standalone alone: this broker does not replicate to 'other'.",
        )
        everywhere = await rest.reason("POST", PATH + "?isGlobal=true", '["standalone"]')
        assert everywhere == (412, NOT_GLOBAL)
        assert (await rest("POST", PATH, "7"))[0] == 400
        assert (await rest("GET", PATH))[0] == 204

    run(tmp_path, scenario)


def test_only_a_topic_that_is_there_has_clusters(tmp_path: Path) -> None:
    async def scenario(rest: Rest) -> None:
        none, partition = f"{P}/none/replication", f"{P}/p-partition-0/replication"
        missing = (404, "Topic persistent://public/default/none not found")
        refused = (412, "Not allowed to set/get topic policy for a partition")
        for method, body in (("GET", ""), ("POST", '["standalone"]'), ("DELETE", "")):
            assert await rest.reason(method, none, body) == missing
            assert await rest.reason(method, partition, body) == refused

    run(tmp_path, scenario)

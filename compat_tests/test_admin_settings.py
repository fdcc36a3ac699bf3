"""Dynamic configuration by REST, as in Apache Pulsar: in force at once, and after a restart."""

from __future__ import annotations

import time
from hashlib import sha256
from urllib.parse import quote

import pytest
from harness.brokers import Broker
from harness.web import WebAnswer, seen, web

from compat_tests.conftest import BrokerFactory

PATH = "/admin/v2/brokers/configuration"
NAMESPACES = "/admin/v2/namespaces"


def values(broker: Broker) -> dict[str, str]:
    found: dict[str, str] = web(broker, "GET", f"{PATH}/values").json()
    return found


def set_to(broker: Broker, name: str, value: str) -> None:
    assert broker.request("POST", f"{PATH}/{name}/{value}") == (200, "")
    seen(broker, f"{PATH}/runtime", lambda found: found[name] == value)


def unset(broker: Broker, name: str, value: str) -> None:
    """Return a setting to the value of the start."""
    assert broker.request("DELETE", f"{PATH}/{name}") == (200, "")
    seen(broker, f"{PATH}/runtime", lambda found: found[name] == value)


def forced(broker: Broker, name: str) -> WebAnswer:
    """A namespace with a topic is deleted by force."""
    assert broker.request("PUT", f"{NAMESPACES}/public/{name}") == (204, "")
    assert broker.request("PUT", f"/admin/v2/persistent/public/{name}/t") == (204, "")
    return web(broker, "DELETE", f"{NAMESPACES}/public/{name}?force=true")


def test_a_setting_is_in_force_within_a_second(broker: Broker) -> None:
    assert forced(broker, "kept").status == 405
    set_to(broker, "forceDeleteNamespaceAllowed", "true")
    assert values(broker)["forceDeleteNamespaceAllowed"] == "true"
    time.sleep(1)
    assert forced(broker, "gone").status == 204
    runtime = web(broker, "GET", f"{PATH}/runtime").json()
    assert runtime["forceDeleteNamespaceAllowed"] == "true"
    assert broker.request("DELETE", f"{PATH}/forceDeleteNamespaceAllowed") == (200, "")
    assert "forceDeleteNamespaceAllowed" not in values(broker)


def test_what_can_be_changed_is_listed(broker: Broker) -> None:
    names = web(broker, "GET", PATH).json()
    assert {"forceDeleteNamespaceAllowed", "maxTenants", "dispatcherMaxReadBatchSize"} <= set(names)
    assert "brokerServicePort" not in names
    # Pulsar's 159, all of them and no other.
    listed = " ".join(sorted(names))
    assert (len(names), sha256(listed.encode()).hexdigest()[:16]) == (159, "6dfa506004a1ad23")
    runtime = web(broker, "GET", f"{PATH}/runtime").json()
    assert {"forceDeleteNamespaceAllowed", "maxTenants", "managedLedgerDefaultEnsembleSize"} <= set(
        runtime
    )


def test_all_names_of_pulsars_can_be_set(broker: Broker) -> None:
    before = values(broker)
    runtime = web(broker, "GET", f"{PATH}/runtime").json()
    names = web(broker, "GET", PATH).json()
    # The value in force. With a topic for the changes of its metadata Apache Pulsar changes none.
    shown = {name: runtime.get(name) or "1" for name in names if "SyncEventTopic" not in name}
    asked = {name: value for name, value in shown.items() if "/" not in value}
    assert len(asked) > 150
    for name, value in asked.items():
        assert broker.request("POST", f"{PATH}/{name}/{quote(value)}") == (200, ""), name
    assert values(broker) == before | asked
    for name in asked:
        assert broker.request("DELETE", f"{PATH}/{name}") == (200, ""), name
    assert values(broker) == {name: value for name, value in before.items() if name not in asked}


@pytest.mark.parametrize("name", ["brokerServicePort", "noSuchSetting"])
def test_other_settings_are_refused(broker: Broker, name: str) -> None:
    answers = [
        web(broker, method, path)
        for method, path in (("POST", f"{PATH}/{name}/1"), ("DELETE", f"{PATH}/{name}"))
    ]
    assert [(each.status, each.reason) for each in answers] == [
        (412, "Can't update non-dynamic configuration"),
        (412, "Can't delete non-dynamic configuration"),
    ]


def test_a_setting_survives_a_restart(own_broker: BrokerFactory) -> None:
    broker = own_broker()
    broker.start()
    set_to(broker, "forceDeleteNamespaceAllowed", "true")
    broker.kill()
    broker.start()
    assert values(broker) == {"forceDeleteNamespaceAllowed": "true"}
    assert forced(broker, "gone").status == 204


@pytest.mark.pyxbroker
def test_a_value_that_cannot_be_is_refused_and_changes_nothing(broker: Broker) -> None:
    # Apache Pulsar keeps it, and goes by what it had.
    before = values(broker)
    for name, value in (("maxTenants", "many"), ("forceDeleteTenantAllowed", "yes")):
        answer = web(broker, "POST", f"{PATH}/{name}/{value}")
        assert (answer.status, answer.reason.startswith(" Invalid dynamic-config value")) == (
            *(412, True),
        )
    assert values(broker) == before


@pytest.mark.pyxbroker
def test_passwords_are_not_told(broker: Broker) -> None:
    told = web(broker, "GET", f"{PATH}/runtime").json()
    # The path of a file with a password is none.
    assert not [name for name in told if "assword" in name and not name.endswith("Path")]


@pytest.mark.pyxbroker
def test_limits_and_policies_follow(broker: Broker) -> None:
    set_to(broker, "maxTenants", "1")
    body = {"allowedClusters": ["standalone"]}
    assert web(broker, "PUT", "/admin/v2/tenants/one-too-many", body).status == 412
    unset(broker, "maxTenants", "0")
    assert broker.request("PUT", "/admin/v2/tenants/one-more", body) == (204, "")
    path = "/admin/v2/persistent/public/default/not-made-by-looking/subscription/s"
    set_to(broker, "allowAutoTopicCreation", "false")
    assert web(broker, "PUT", path).status == 412
    unset(broker, "allowAutoTopicCreation", "true")
    assert broker.request("PUT", path) == (204, "")


@pytest.mark.parametrize(
    "keys",
    [
        ("zookeeperServers",),
        # Apache Pulsar's standalone waits for this one, and ends.
        pytest.param(("configurationStoreServers",), marks=pytest.mark.pyxbroker),
    ],
)
def test_the_stores_that_a_file_names_are_passed_over(
    own_broker: BrokerFactory, keys: tuple[str, ...]
) -> None:
    broker = own_broker(settings=dict.fromkeys(keys, "127.0.0.1:1"))
    broker.start()
    assert web(broker, "GET", "/admin/v2/clusters").status == 200

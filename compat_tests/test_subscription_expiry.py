"""A subscription that nobody uses is deleted after as many minutes as the policy says.

It counts in minutes, so `make test` leaves it out; `make compat` runs it.
"""

from __future__ import annotations

import time

import pytest
from harness.brokers import Broker
from harness.go_client import Client as GoClient

from compat_tests.conftest import official_client
from compat_tests.test_rest_answers import DONE, local

BROKER_SETTINGS = {"subscriptionExpiryCheckIntervalInMinutes": "1"}
FOREVER_S = 900.0  # two minutes, on a machine that has nothing else to do


@pytest.mark.minutes
def test_a_subscription_that_nobody_uses_expires_and_one_with_a_consumer_stays(
    broker: Broker, topic: str
) -> None:
    namespace = "/admin/v2/namespaces/public/expiring"
    assert broker.request("PUT", namespace) == DONE
    assert broker.request("POST", f"{namespace}/subscriptionExpirationTime", 1) == DONE
    name = f"persistent://public/expiring/{local(topic)}"
    path = f"/admin/v2/persistent/public/expiring/{local(topic)}/subscription"
    clients = {"python": official_client(broker.url), "go": GoClient(broker.url)}
    for kind, client in clients.items():
        client.subscribe(name, f"{kind}-stays")
        client.subscribe(name, f"{kind}-goes").close()
    closed = time.monotonic()
    names = [f"{kind}-{end}" for kind in clients for end in ("stays", "goes")]

    def left() -> set[str]:
        """The subscriptions that are there: nothing in them is so old, but they are looked for."""
        asked = [(name, f"{path}/{name}/expireMessages/1000000") for name in names]
        return {name for name, at in asked if broker.request("POST", at)[0] != 404}

    assert left() == set(names)
    while left() != {f"{kind}-stays" for kind in clients}:
        assert time.monotonic() - closed < FOREVER_S
        time.sleep(1)
    assert time.monotonic() - closed >= 59, "it was used until then"
    # Who comes back has another one.
    for kind, client in clients.items():
        client.subscribe(name, f"{kind}-goes")
        client.close()

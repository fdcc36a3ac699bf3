"""Policies outlast the process that was told of them: all are set, and then it is killed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pulsar

from compat_tests.conftest import BrokerFactory, ClientFactory
from compat_tests.policy_cases import CASES, GLOBAL, NAMESPACE, TOPIC, Place, case_of, quota, until
from compat_tests.policy_scenes import (
    SCENE_SETTINGS,
    Effect,
    Scene,
    refuses_a_consumer,
    refuses_a_message,
    refuses_a_producer,
    refuses_a_topic,
    with_old_messages,
)
from compat_tests.test_rest_answers import DONE

NAMESPACES = "/admin/v2/namespaces/public"
TOPICS = "/admin/v2/persistent/public"

EFFECTS = (
    Effect(
        "subscription_types", ["Shared"], refuses_a_consumer("exclusive", pulsar.NotAllowedError)
    ),
    Effect("message_bytes_max", 100, refuses_a_message(200)),
    Effect(
        "backlog_size",
        quota("producer_exception", size=1000),
        refuses_a_producer(pulsar.ProducerBlockedQuotaExceededException),
        with_old_messages,
    ),
    Effect(
        "auto_topic_creation",
        {"allowAutoTopicCreation": False},
        refuses_a_topic(pulsar.TopicNotFound),
    ),
)


def test_all_policies_are_there_after_a_kill(own_broker: BrokerFactory) -> None:
    broker = own_broker(settings=SCENE_SETTINGS)
    broker.start()
    places = []
    for level in (NAMESPACE, TOPIC, GLOBAL):
        name = f"policies-of-a-{level}"
        assert broker.request("PUT", f"{NAMESPACES}/{name}") == DONE
        assert broker.request("PUT", f"{TOPICS}/{name}/t") == DONE
        base = f"{NAMESPACES}/{name}" if level == NAMESPACE else f"{TOPICS}/{name}/t"
        places += [Place(broker, case, level, base) for case in CASES if level in case.levels]
    clients = ClientFactory("python", lambda: broker.url)
    scenes = [
        (effect, Scene(broker, clients, effect.policy, level))
        for effect in EFFECTS
        for level in case_of(effect.policy).levels
    ]
    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: each[0].prepare(each[1]), scenes))
    for place in places:
        status, text = place.set(place.case.value)
        assert status in (200, 204), (place.case.name, place.level, text)
    for effect, scene in scenes:
        assert scene.policy.set(effect.value) == DONE
    clients.close()
    broker.kill()
    broker.start()
    for place in places:
        assert place.told() == place.case.expected, (place.case.name, place.level)

    def is_seen_until_it_is_removed(effect: Effect, scene: Scene) -> None:
        scene.client = scene.another_client()
        what = f"{effect.name} of a {scene.policy.level} after a kill"
        until(lambda: effect.is_seen(scene), what)
        assert scene.policy.remove() == DONE
        until(lambda: not effect.is_seen(scene), f"no more: {what}")

    with ThreadPoolExecutor() as pool:
        list(pool.map(lambda each: is_seen_until_it_is_removed(*each), scenes))
    clients.close()

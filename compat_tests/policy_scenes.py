"""One policy at one level, a topic that it holds for, and what clients see of it there."""

from __future__ import annotations

import contextlib
import itertools
import queue
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, NamedTuple

import pulsar
from harness.brokers import Broker

from compat_tests.conftest import AnyClient, ClientFactory
from compat_tests.policy_cases import NAMESPACE, Place, case_of, until
from compat_tests.test_rest_answers import DONE

EARLIEST = pulsar.InitialPosition.Earliest
SHARED = pulsar.ConsumerType.Shared

NOTHING_COMES_MS = 500
REFUSED_S = 1.5  # a message that is taken is so sooner
SLOW_S = 1.2  # what a rate of RATE in a second makes of COUNT messages takes longer
ACKS_TAKE_S = 0.3  # until a client has sent them
RATE, COUNT = 10, 25
EFFECTS_TOGETHER = 5

SCENE_SETTINGS = {
    # Everything is looked after each second, and by default nothing is done to a topic.
    "backlogQuotaCheckIntervalInSeconds": "1",
    "brokerDeleteInactiveTopicsFrequencySeconds": "1",
    "brokerDeleteInactiveTopicsMaxInactiveDurationSeconds": "3600",
    "preciseTimeBasedBacklogQuotaCheck": "true",
    # A message may come early by a tick.
    "isDelayedDeliveryDeliverAtTimeStrict": "false",
    "managedLedgerMaxUnackedRangesToPersist": "5",
}
"""Of the broker that the scenes are of."""

_NUMBERS = itertools.count(1)


class Scene:
    """A policy of a fresh topic, or of its fresh namespace, and a client.

    It belongs to one thread.
    """

    def __init__(self, broker: Broker, new_client: ClientFactory, policy: str, level: str) -> None:
        self.broker, self.new_client = broker, new_client
        namespace = f"public/policy-{next(_NUMBERS)}"
        self.rest = f"/admin/v2/persistent/{namespace}/t"
        self.topics = f"/admin/v2/persistent/{namespace}"
        namespace_path = f"/admin/v2/namespaces/{namespace}"
        assert broker.request("PUT", namespace_path) == DONE
        assert broker.request("PUT", self.rest) == DONE
        self.topic = f"persistent://{namespace}/t"
        base = namespace_path if level == NAMESPACE else self.rest
        self.policy = Place(broker, case_of(policy), level, base)
        self.client: AnyClient = self.another_client()
        self.kept: list[Any] = []
        self._names = itertools.count(1)

    def another_client(self) -> AnyClient:
        # What is refused for now is asked for again until this time is up.
        return self.new_client(self.broker.url, operation_timeout_seconds=3)

    def fresh(self, kind: str) -> str:
        """A name that nothing has."""
        return f"{kind}-{next(self._names)}"

    def post(self, what: str) -> None:
        method = "PUT" if what == "unload" else "POST"
        status, text = self.broker.request(method, f"{self.rest}/{what}")
        assert status in (200, 204), (what, status, text)

    def subscribe(self, name: str = "s", **options: Any) -> Any:
        return self.client.subscribe(self.topic, name, **({"initial_position": EARLIEST} | options))

    def producer(self, **options: Any) -> Any:
        return self.client.create_producer(
            self.topic, **({"send_timeout_millis": 2_000, "batching_enabled": False} | options)
        )

    def publish(self, count: int, size: int = 10, **options: Any) -> None:
        producer = self.producer(send_timeout_millis=30_000)
        for _ in range(count):
            producer.send(b"x" * size, **options)
        producer.close()


def received(consumer: Any, count: int, wait_ms: int = NOTHING_COMES_MS) -> list[Any]:
    """So many messages, or those that come; none is acknowledged."""
    found: list[Any] = []
    while len(found) < count:
        try:
            found.append(consumer.receive(timeout_millis=wait_ms))
        except pulsar.Timeout:
            break
    return found


def is_refused(error: Any, create: Callable[[], Any]) -> bool:
    """Whether a producer or consumer is refused with this error; else it is closed."""
    try:
        made = create()
    except error:
        return True
    made.close()
    return False


# --- what may be made -----------------------------------------------------------------------------


def with_a_producer(scene: Scene) -> None:
    scene.kept.append(scene.producer())


def with_a_consumer(scene: Scene) -> None:
    scene.kept.append(scene.subscribe("kept", consumer_type=SHARED))


def refuses_a_producer(error: Any) -> Callable[[Scene], bool]:
    return lambda scene: is_refused(error, scene.producer)


def refuses_a_consumer(name: str, error: Any, **options: Any) -> Callable[[Scene], bool]:
    return lambda scene: is_refused(error, lambda: scene.subscribe(name, **options))


def refuses_a_subscription(error: Any) -> Callable[[Scene], bool]:
    """One that is not there yet; if it is made it is deleted."""

    def refuses(scene: Scene) -> bool:
        try:
            scene.subscribe(scene.fresh("new")).unsubscribe()
        except error:
            return True
        return False

    return refuses


def refuses_a_topic(error: Any) -> Callable[[Scene], bool]:
    """One that is not there yet."""

    def refuses(scene: Scene) -> bool:
        name = f"{scene.topic}-{scene.fresh('new')}"
        return is_refused(error, lambda: scene.client.create_producer(name))

    return refuses


def refuses_who_subscribes_again(scene: Scene) -> bool:
    """The same consumer by its name, its number and its address."""
    for _ in range(2):
        client = scene.another_client()
        try:
            client.subscribe(scene.topic, "s", consumer_name="again").close()
        except pulsar.PulsarException:
            return True
        finally:
            client.close()
    return False


def has_partitions(scene: Scene) -> bool:
    """Whether a topic that a client names gets them."""
    name = f"{scene.topic}-{scene.fresh('new')}"
    return len(scene.client.get_topic_partitions(name)) == 3


# --- what is sent and received --------------------------------------------------------------------


def with_old_messages(scene: Scene) -> None:
    """A subscription that has not acknowledged what was published more than a second ago."""
    scene.subscribe().close()
    scene.publish(3, size=1000)
    time.sleep(1.3)


def has_lost_the_first(scene: Scene) -> bool:
    """Whether a subscription has not got the oldest message any more."""
    consumer = scene.subscribe()
    found = received(consumer, 3)
    consumer.close()
    return len(found) < 3


def refuses_a_message(size: int = 10, **options: Any) -> Callable[[Scene], bool]:
    """The Python client sends one that is refused again and again, whatever time it has."""

    def refuses(scene: Scene) -> bool:
        client = scene.another_client()
        producer = client.create_producer(scene.topic, batching_enabled=False)
        done: queue.Queue[Any] = queue.Queue()
        producer.send_async(b"x" * size, lambda result, _: done.put(result), **options)
        try:
            return done.get(timeout=REFUSED_S) != pulsar.Result.Ok
        except queue.Empty:
            return True
        finally:
            client.shutdown()

    return refuses


def cannot_publish(scene: Scene) -> bool:
    """Whether a topic that is opened anew takes no message."""
    # It has no place to be closed in while it cannot be opened.
    scene.broker.request("PUT", f"{scene.rest}/unload")
    try:
        scene.producer().send(b"x")
    except pulsar.PulsarException:
        return True
    return False


def publishes_slowly(scene: Scene) -> bool:
    began = time.monotonic()
    scene.publish(COUNT)
    return time.monotonic() - began > SLOW_S


def receives_slowly(name: str = "") -> Callable[[Scene], bool]:
    def is_slow(scene: Scene) -> bool:
        consumer = scene.subscribe(name or scene.fresh("reads"))
        began = time.monotonic()
        assert len(received(consumer, COUNT, 10_000)) == COUNT
        consumer.close()
        return time.monotonic() - began > SLOW_S

    return is_slow


def with_messages(count: int) -> Callable[[Scene], None]:
    return lambda scene: scene.publish(count)


def stops_at(count: int) -> Callable[[Scene], bool]:
    """Whether a consumer that acknowledges nothing gets so many of the messages, and no more."""

    def stops(scene: Scene) -> bool:
        consumer = scene.subscribe(
            scene.fresh("holds"), consumer_type=SHARED, receiver_queue_size=1
        )
        found = received(consumer, COUNT)
        consumer.close()
        return len(found) == count

    return stops


def stops_at_holes(scene: Scene) -> bool:
    """Whether who has acknowledged every second message gets nothing new."""
    consumer = scene.subscribe(scene.fresh("holes"), consumer_type=SHARED)
    found = received(consumer, COUNT, 10_000)
    assert len(found) >= COUNT
    for message in found[1::2]:
        consumer.acknowledge(message)
    received(consumer, len(found) * 10)
    # Pulsar may have begun to wait for one before.
    scene.publish(1)
    received(consumer, 1)
    scene.publish(1)
    stopped = not received(consumer, 1)
    consumer.close()
    return stopped


def waits(seconds: float) -> Callable[[Scene], bool]:
    """Whether a message that is to come later is not sent at once."""

    def is_late(scene: Scene) -> bool:
        consumer = scene.subscribe(
            scene.fresh("waits"),
            consumer_type=SHARED,
            initial_position=pulsar.InitialPosition.Latest,
        )
        scene.publish(1, deliver_after=timedelta(seconds=seconds))
        found = received(consumer, 1)
        consumer.close()
        return not found

    return is_late


def keeps_what_is_acknowledged(scene: Scene) -> bool:
    consumer = scene.subscribe()
    scene.publish(3)
    for message in received(consumer, COUNT):
        consumer.acknowledge(message)
    time.sleep(ACKS_TAKE_S)
    consumer.close()
    scene.post("unload")
    scene.post("trim")
    reader = scene.client.create_reader(scene.topic, pulsar.MessageId.earliest)
    try:
        reader.read_next(timeout_millis=NOTHING_COMES_MS)
    except pulsar.Timeout:
        return False
    finally:
        reader.close()
    return True


def not_(holds: Callable[[Scene], bool]) -> Callable[[Scene], bool]:
    return lambda scene: not holds(scene)


# --- all levels -----------------------------------------------------------------------------------


class Effect(NamedTuple):
    """What clients see of a policy."""

    policy: str  # a row of pyxbroker.policies.table
    value: Any
    is_seen: Callable[[Scene], bool]
    prepare: Callable[[Scene], object] = lambda scene: None
    about: str = ""  # of several effects of one policy
    is_final: bool = False  # what is done is not undone: another one is prepared to see no more
    levels: tuple[str, ...] = ()  # where not at all at which the policy can be set
    clients: tuple[str, ...] = ("python", "go")

    @property
    def name(self) -> str:
        return self.policy + (self.about and f"-{self.about}")


def seen_until_it_is_removed(broker: Broker, effect: Effect) -> None:
    """Each level and client has a topic of its own, so that they wait at the same time."""

    def at(level: str, kind: str) -> None:
        what = f"{effect.name} of a {level}, by the {kind} client"
        clients = ClientFactory(kind, lambda: broker.url)
        try:
            scene = Scene(broker, clients, effect.policy, level)
            effect.prepare(scene)
            until(lambda: not effect.is_seen(scene), f"not seen before: {what}")
            assert scene.policy.set(effect.value) == DONE, what
            until(lambda: effect.is_seen(scene), f"seen: {what}")
            assert scene.policy.remove() == DONE, what
            if effect.is_final:
                effect.prepare(scene)
            until(lambda: not effect.is_seen(scene), f"seen no more: {what}")
        finally:
            clients.close()

    levels = effect.levels or case_of(effect.policy).levels
    together(at, [(level, kind) for level in levels for kind in effect.clients])


def together(work: Callable[..., None], arguments: Iterable[tuple[Any, ...]]) -> None:
    """Each in a thread of its own; raises the first error."""
    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(work, *each) for each in arguments]:
            done.result()


@contextlib.contextmanager
def looked_at(broker: Broker, effects: Iterable[Effect]) -> Iterator[dict[str, Future[None]]]:
    """What becomes of effects, by their names. They mostly wait, so some are looked at together."""
    with ThreadPoolExecutor(EFFECTS_TOGETHER) as pool:
        yield {each.name: pool.submit(seen_until_it_is_removed, broker, each) for each in effects}
        pool.shutdown(cancel_futures=True)

"""Type stub of load_generator.pyx: the hot path of `pyxbroker perf`."""

from collections.abc import Callable, Iterable

STAMP_MAGIC: bytes
STAMP_SIZE: int
VALUE_MAX_US: int
NO_KEY: int
FIXED_KEY: int
INCREMENTED_KEY: int
RANDOM_KEY: int

def now_ns() -> int:
    """Return CLOCK_MONOTONIC in nanoseconds."""

class Latencies:
    """A histogram of microseconds with 3 significant digits."""

    count: int
    total_us: int
    min_us: int
    max_us: int
    def record(self, us: int, count: int = 1) -> None: ...
    def reset(self) -> None: ...
    def merge(self, other: Latencies) -> None:
        """Add the values of another histogram."""

    def percentiles(self, percents: Iterable[float]) -> list[int]:
        """Return the highest value of the bucket of each percentile; `percents` ascend."""

    def buckets(self) -> list[tuple[int, int]]:
        """Return [(lowest value of a bucket, count)] of buckets with values."""

class LoadStats:
    """Numbers of one group of producers or of consumers."""

    messages: int
    bytes: int
    sent: int
    failures: int
    latencies: Latencies
    since_sent: Latencies
    def take(self) -> tuple[int, int, int]:
        """Return (messages, bytes, failures) since the last call."""

class LoadPayload:
    """The payloads of one group of producers."""

    size: int
    batch_max: int
    entry_bytes_max: int
    codec: int
    def __init__(
        self,
        payload: bytes,
        batch_max: int = 1,
        codec: int = 0,
        compress: Callable[[int, bytes], bytes] | None = None,
    ) -> None: ...

class LoadProducer:
    producer_id: int
    quota: int
    outstanding: int
    outstanding_max: int
    def __init__(
        self,
        producer_id: int,
        name: bytes,
        payload: LoadPayload,
        stats: LoadStats,
        outstanding_max: int,
        quota: int = ...,
        next_sequence_id: int = 0,
        key_mode: int = ...,
        key: bytes = b"",
        key_bound: int = ...,
        seed: int = 1,
    ) -> None: ...
    def schedule(self, first_ns: int, interval_ns: float, window_ns: int = 0) -> None:
        """Send the first message at first_ns, then one each interval_ns (0: at any time)."""

    def stop(self) -> None:
        """Send no further messages."""

    def give_up(self) -> None:
        """Count the messages without receipt as failures."""

class LoadConsumer:
    consumer_id: int
    permits_max: int
    def __init__(
        self, consumer_id: int, stats: LoadStats, permits_max: int, acknowledges: bool = True
    ) -> None: ...

class LoadConnection:
    """The producers and consumers of one connection. Their ids ascend without gaps."""

    is_other_next: bool
    next_due_ns: int
    @property
    def outstanding(self) -> int:
        """Messages of all producers without receipt."""

    def add_producer(self, producer: LoadProducer) -> None: ...
    def add_consumer(self, consumer: LoadConsumer) -> None:
        """Add a consumer, and queue its first FLOW."""

    def produce(self, bytes_max: int, now_ns: int = 0) -> list[bytes | memoryview]:
        """Return the SEND frames that are due as a list of buffers, and set `next_due_ns`.

        They have about bytes_max bytes. The caller calls again until the list is empty.
        """

    def receive(self, data: bytes | bytearray | memoryview, now_ns: int = 0) -> int:
        """Handle the receipts and messages at the start of data; return the bytes consumed.

        Raise ValueError for a malformed frame.
        """

    def fail(self, producer_id: int, sequence_id: int) -> None:
        """Count the entry of a SEND_ERROR as failed."""

    def flush_acks(self) -> None:
        """Queue an ACK for each consumer with messages that are not acknowledged."""

    def take_answers(self) -> bytes:
        """Return the FLOW and ACK frames to send."""

class WakeTimer:
    """A timer with a file descriptor."""

    fd: int
    def close(self) -> None: ...
    def set(self, at_ns: int) -> None:
        """Make the descriptor readable at a time of CLOCK_MONOTONIC; 0: never."""

    def read(self) -> None:
        """Make the descriptor unreadable again."""

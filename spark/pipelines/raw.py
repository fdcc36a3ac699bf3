"""Two sources with the position of each message, as numbers that can be sorted.

`pulsar-raw` is the source `pulsar` with payloads in bytes, whatever their schema, after the
position. `pulsar-decoded` has the connector's columns by the schema after the position.
"""

from __future__ import annotations

from functools import cached_property

from pyxbroker.spark.columns import ALL_USUAL
from pyxbroker.spark.pipelines.arguments import POSITION
from pyxbroker.spark.source import PulsarDataSource
from pyxbroker.spark.values import Bytes, Values


class DecodedTopics(PulsarDataSource):
    """The source `pulsar-decoded`."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-decoded"

    def _requested_columns(self) -> list[str]:
        return [*POSITION, ALL_USUAL]


class RawTopics(DecodedTopics):
    """The source `pulsar-raw`."""

    @classmethod
    def name(cls) -> str:
        return "pulsar-raw"

    @cached_property
    def _values(self) -> Values:
        return Bytes()

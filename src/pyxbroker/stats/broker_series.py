"""The series of /metrics about the broker as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from math import inf
from typing import NamedTuple, Protocol

from pyxbroker.base.histogram import Histogram
from pyxbroker.base.rates import Rates
from pyxbroker.stats import definitions
from pyxbroker.stats.definitions import Stat
from pyxbroker.stats.exposition import Number, braced, escaped, family, head

Rows = list[tuple[str, Number]]


class LoginCounts(Protocol):
    """Decisions of authentication providers since the start."""

    @property
    def succeeded(self) -> Mapping[tuple[str, str], int]:
        """By provider and method."""

    @property
    def failed(self) -> Mapping[tuple[str, str, str], int]:
        """By provider, method and reason."""

    @property
    def expired_tokens(self) -> int: ...

    @property
    def token_minutes(self) -> Histogram: ...


class SchemaCounts(Protocol):
    """Operations on the schemas of one namespace since the start, by the operation's name.

    It also has the fields of definitions.SCHEMA_CHECKS.
    """

    @property
    def done(self) -> Mapping[str, int]: ...

    @property
    def failed(self) -> Mapping[str, int]: ...

    @property
    def seconds(self) -> Mapping[str, float]:
        """Time of the successful operations."""


class WebCounts(Protocol):
    """Requests to the web port since the start. It also has the fields of definitions.WEB."""

    @property
    def responses(self) -> Mapping[str, int]:
        """Counts by class of status."""


class LedgerErrors(NamedTuple):
    """Errors of managed ledgers since the start, by namespace with its domain."""

    add: Mapping[str, int]
    read: Mapping[str, int]


class BrokerStats(NamedTuple):
    """Statistics of a broker about itself."""

    host: str
    numbers: Mapping[str, Number]  # by the fields of definitions.BROKER; some may be absent
    quota_checks: Histogram
    schemas: Mapping[str, SchemaCounts]  # by namespace
    ledger_errors: LedgerErrors
    bundles: Mapping[str, Mapping[str, Number]] = {}  # by name; empty if disabled
    logins: LoginCounts | None = None  # None without authentication
    web: WebCounts | None = None  # None without a web port


class Recent:
    """Growth of counters over the current period and the one before it."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._began: float | None = None
        self._before: Counter[str] = Counter()  # at the start of the last period
        self._current: Counter[str] = Counter()  # at the start of the current period

    def grown(self, now: float, counts: Mapping[str, int]) -> Counter[str]:
        """Return the growth. The first call after the end of a period begins a new one."""
        if self._began is None:
            self._began = now
        elif now - self._began >= self._period_s:
            self._began = now
            self._before, self._current = self._current, Counter(counts)
        return Counter(counts) - self._before


class BrokerSeries:
    """Writes the series of a broker, and keeps the state that rates need."""

    def __init__(self) -> None:
        self._errors: dict[str, Recent] = {}
        self._cache_rates: Rates | None = None

    def text(self, stats: BrokerStats, cluster: str) -> str:
        """Return all series except those of `ledger_errors` and `cache`.

        `cluster` is the label that all of them have.
        """
        return "".join(self._texts(stats, cluster))

    def _texts(self, stats: BrokerStats, cluster: str) -> Iterator[str]:
        place = f'{cluster},broker="{escaped(stats.host)}"'
        for stat in definitions.BROKER:
            if stat.field in stats.numbers:
                label = f"{place},{stat.label}" if stat.label else cluster
                yield _series(stat, label, stats.numbers[stat.field])
        yield histogram(definitions.QUOTA_CHECKS, cluster, stats.quota_checks)
        bundles = {
            f'{place},bundle="{escaped(name)}",metric="bundle"': numbers
            for name, numbers in stats.bundles.items()
        }
        for stat in definitions.BUNDLE if bundles else ():
            rows = [(braced(label), numbers[stat.field]) for label, numbers in bundles.items()]
            yield family(stat.series, stat.help, stat.kind, rows)
        if stats.logins is not None:
            yield from _logins(stats.logins, cluster)
        if stats.web is not None:
            for stat in definitions.WEB:
                yield _series(stat, cluster, getattr(stats.web, stat.field))
            yield _family(
                definitions.WEB_RESPONSES,
                [
                    (braced(f'{cluster},code="{code}"'), count)
                    for code, count in stats.web.responses.items()
                ],
            )
        yield from _schemas(stats.schemas, cluster)

    def ledger_errors(
        self,
        now: float,
        period_s: float,
        errors: LedgerErrors,
        namespaces: Iterable[str],
        cluster: str,
    ) -> str:
        """Return the error series of the managed ledgers.

        `namespaces` (with the domain) have managed ledgers, whether with errors or not.
        """
        text = ""
        for stat in definitions.LEDGER_ERRORS:
            recent = self._errors.setdefault(stat.field, Recent(period_s))
            grown = recent.grown(now, getattr(errors, stat.field))
            text += _family(
                stat,
                [
                    (braced(f'{cluster},namespace="{escaped(name)}"'), grown[name])
                    for name in dict.fromkeys((*namespaces, *grown))
                ],
            )
        return text

    def cache(
        self, now: float, stats: Sequence[Stat], counters: Mapping[str, int], cluster: str
    ) -> str:
        """Return the rates of reads from the cache and of those that missed it."""
        counts = [counters[stat.field] for stat in stats]
        self._cache_rates = self._cache_rates or Rates(now, *counts)
        rates = self._cache_rates.per_second(now, *counts)
        return "".join(
            _series(stat, cluster, rate) for stat, rate in zip(stats, rates, strict=True)
        )


def histogram(stat: Stat, label: str, values: Histogram) -> str:
    """Return the series of a histogram; their labels begin with `label`."""
    return histogram_text(
        stat, label, list(zip(values.bounds, values.counts, strict=True)), values.sum
    )


def histogram_text(
    stat: Stat, label: str, buckets: Sequence[tuple[float, int]], total: float
) -> str:
    """Return the series of a histogram given as pairs of an upper bound and a count."""
    name = stat.series
    text = head(name, stat.help, stat.kind)
    up_to = list(accumulate(count for _, count in buckets))
    for (bound, _), count in zip(buckets, up_to, strict=True):
        shown = "+Inf" if bound == inf else f"{bound:g}"
        le = braced(f'{label},le="{shown}"')
        text += f"{name}_bucket{le}{count}\n"
    labels = braced(label)
    return f"{text}{name}_sum{labels}{total}\n{name}_count{labels}{up_to[-1]}\n"


def _logins(logins: LoginCounts, cluster: str) -> Iterator[str]:
    rows: Rows = [
        (braced(f'{cluster},provider_name="{name}",auth_method="{method}"'), count)
        for (name, method), count in logins.succeeded.items()
    ]
    yield _family(definitions.LOGINS, rows)
    rows = [
        (
            braced(f'{cluster},provider_name="{name}",auth_method="{method}",reason="{reason}"'),
            count,
        )
        for (name, method, reason), count in logins.failed.items()
    ]
    yield _family(definitions.FAILED_LOGINS, rows)
    yield _series(definitions.EXPIRED_TOKENS, cluster, logins.expired_tokens)
    yield histogram(definitions.TOKEN_MINUTES, cluster, logins.token_minutes)


def _schemas(namespaces: Mapping[str, SchemaCounts], cluster: str) -> Iterator[str]:
    if not namespaces:
        return
    counts = {
        braced(f'{cluster},namespace="{escaped(name)}"'): each for name, each in namespaces.items()
    }
    for stat in definitions.SCHEMA_LATENCIES:
        text = head(stat.series, stat.help, stat.kind)
        for label, each in counts.items():
            text += f"{stat.series}_count{label}{each.done[stat.field]}\n"
            text += f"{stat.series}_sum{label}{each.seconds[stat.field] * 1000}\n"
        yield text
    for stat in definitions.SCHEMA_FAILURES:
        yield _family(stat, [(label, each.failed[stat.field]) for label, each in counts.items()])
    for stat in definitions.SCHEMA_CHECKS:
        yield _family(stat, [(label, getattr(each, stat.field)) for label, each in counts.items()])


def _family(stat: Stat, rows: Rows) -> str:
    return family(stat.series, stat.help, stat.kind, rows)


def _series(stat: Stat, label: str, value: Number) -> str:
    return _family(stat, [(braced(label), value)])

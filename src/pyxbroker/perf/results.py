"""Numbers of a run: lines for the terminal, JSON, and files of HdrHistogram."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pyxbroker.base.extras import require
from pyxbroker.load_generator import VALUE_MAX_US, Latencies
from pyxbroker.perf.groups import ProducerGroup
from pyxbroker.perf.load_run import SAMPLE_PERCENTS, GroupNumbers, Sample

PERCENTS = (50.0, 95.0, 99.0, 99.9, 99.99, 99.999)
CURVE = (*range(10, 90, 10), 90.0, 95.0, 97.5, 99.0, 99.5, 99.75, 99.9, 99.95, 99.99, 99.999, 100.0)


class NeedsLibrary(Exception):
    """A library is missing that an extra installs."""


def progress_line(numbers: GroupNumbers, samples: Iterable[Sample]) -> str:
    """Return a line about the last samples of a group, as pulsar-perf prints it."""
    samples = list(samples)
    seconds = sum(each.seconds for each in samples)
    messages = sum(each.messages for each in samples)
    mbit = sum(each.bytes for each in samples) * 8 / 1e6 / seconds
    is_producer = isinstance(numbers.group, ProducerGroup)
    # The samples have percentiles and no histograms: the line has the worst second.
    worst = [max(each.latencies_us[i] for each in samples) for i in range(len(SAMPLE_PERCENTS))]
    line = (
        f"{numbers.group.name}: Throughput {'produced' if is_producer else 'received'}:"
        f" {numbers.messages:8d} msg --- {messages / seconds:10.1f} msg/s --- {mbit:8.1f} Mbit/s"
    )
    if is_producer:
        failures = sum(each.failures for each in samples) / seconds
        line += f" --- failure {failures:.1f} msg/s"
    names = ("med", "95pct", "99pct", "99.9pct", "Max")
    latencies = (f"{name}: {us / 1000:.3f}" for name, us in zip(names, worst, strict=True))
    return f"{line} --- Latency (ms): {' - '.join(latencies)}"


def summary_lines(numbers: GroupNumbers) -> Iterator[str]:
    """Yield the totals of a group, as pulsar-perf prints them."""
    result = group_result(numbers)
    verb = "sent" if isinstance(numbers.group, ProducerGroup) else "received"
    yield (
        f"{numbers.group.name}: Aggregated throughput stats --- {numbers.messages} records {verb}"
        f" --- {result['rate']:.3f} msg/s --- {result['mbit_s']:.3f} Mbit/s"
    )
    if numbers.failures:
        yield f"{numbers.group.name}: {numbers.failures} messages failed"
    if numbers.backlog:
        yield f"{numbers.group.name}: backlog at the end {numbers.backlog} msg"
    yield f"{numbers.group.name}: Aggregated latency stats --- {_texts(result['latency_ms'])}"
    if isinstance(numbers.group, ProducerGroup) and numbers.group.rate:
        times = _texts(result["since_sent_ms"])
        yield f"{numbers.group.name}: Aggregated latency since sending --- {times}"


def _texts(latencies: dict[str, float]) -> str:
    names = {"mean": "mean", "p50": "med", "max": "Max"}
    texts = (
        f"{names.get(name, name.removeprefix('p') + 'pct')}: {value:.3f} ms"
        for name, value in latencies.items()
    )
    return f"Latency: {' - '.join(texts)}"


def group_result(numbers: GroupNumbers) -> dict[str, Any]:
    """Return the numbers of a group for JSON; latencies are milliseconds."""
    seconds = numbers.seconds or 1.0
    latencies = numbers.latencies
    return {
        "name": numbers.group.name,
        "kind": "produce" if isinstance(numbers.group, ProducerGroup) else "consume",
        "seconds": round(numbers.seconds, 3),
        "messages": numbers.messages,
        "bytes": numbers.bytes,
        "failures": numbers.failures,
        "backlog": numbers.backlog,
        "rate": round(numbers.messages / seconds, 3),
        "mbit_s": round(numbers.bytes * 8 / 1e6 / seconds, 3),
        "latency_ms": _milliseconds(latencies),
        "since_sent_ms": _milliseconds(numbers.since_sent),
        "curve": [
            [percent, us / 1000]
            for percent, us in zip(CURVE, latencies.percentiles(CURVE), strict=True)
        ],
        "samples": [
            {
                "at_s": round(each.at_s, 3),
                "rate": round(each.messages / each.seconds, 1),
                "mbit_s": round(each.bytes * 8 / 1e6 / each.seconds, 3),
                "failures": each.failures,
                "p50_ms": each.latencies_us[0] / 1000,
                "p99_ms": each.latencies_us[2] / 1000,
                "max_ms": each.latencies_us[4] / 1000,
            }
            for each in numbers.samples
        ],
    }


def _milliseconds(latencies: Latencies) -> dict[str, float]:
    found = latencies.percentiles(PERCENTS)
    by_name = {f"p{percent:g}": us / 1000 for percent, us in zip(PERCENTS, found, strict=True)}
    mean = latencies.total_us / latencies.count / 1000 if latencies.count else 0.0
    return {"mean": round(mean, 3), **by_name, "max": latencies.max_us / 1000}


def import_hdrhistogram() -> Any:
    """Return the HdrHistogram class and the writer of its logs. Raises NeedsLibrary."""
    require("--histogram-file", "hdrh", error=NeedsLibrary)
    from hdrh.histogram import HdrHistogram
    from hdrh.log import HistogramLogWriter

    return HdrHistogram, HistogramLogWriter


def hdr_histogram(latencies: Latencies) -> Any:
    """Return latencies as an HdrHistogram of microseconds. Raises NeedsLibrary."""
    made = import_hdrhistogram()[0](1, VALUE_MAX_US, 3)
    for value, count in latencies.buckets():
        made.record_value(value, count)
    return made


def write_histogram_log(path: Path, numbers: GroupNumbers) -> None:
    """Write the latencies of a group in the log format of HdrHistogram, in microseconds.

    Raises NeedsLibrary and OSError.
    """
    writer_class = import_hdrhistogram()[1]
    histogram = hdr_histogram(numbers.latencies)
    end_ms = int(time.time() * 1000)
    begin_ms = end_ms - int(numbers.seconds * 1000)
    histogram.set_start_time_stamp(begin_ms)
    histogram.set_end_time_stamp(end_ms)
    with path.open("w") as file:
        writer = writer_class(file)
        writer.output_comment(f"[Latencies of {numbers.group.name} in microseconds]")
        writer.output_log_format_version()
        # The library's own function for this line fails: it calls a method that does not exist.
        writer.output_comment(f"[StartTime: {begin_ms / 1000:f} (seconds since epoch)]")
        writer.output_legend()
        writer.output_interval_histogram(histogram, max_value_unit_ratio=1)

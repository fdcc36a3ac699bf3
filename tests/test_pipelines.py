"""Jobs of Spark's on topics, as far as they go without Spark; the rest is in compat_tests."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from pyxbroker.cli import main
from pyxbroker.spark.errors import NotReachable, PulsarSparkError, WrongOption
from pyxbroker.spark.pipelines import PIPELINES, plots
from pyxbroker.spark.pipelines.audit import Difference, _renamed
from pyxbroker.spark.pipelines.job import explain
from pyxbroker.spark.pipelines.page import Page, size
from pyxbroker.spark.pipelines.progress import LOG_INTERVAL_S, Progress
from pyxbroker.spark.pipelines.reasons import plain_reason
from pyxbroker.spark.pipelines.replay import Bucket, Checkpoint, Slice, cut
from pyxbroker.spark.pipelines.streams import duration
from pyxbroker.spark.pipelines.topic_stats import (
    Backlog,
    Snapshot,
    TopicStats,
    compare,
    sum_partitions,
)

NOBODY = "pulsar://127.0.0.1:1"


class Ran(NamedTuple):
    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """`pyxbroker pipeline`, in this process."""

    def call(*arguments: str) -> Ran:
        status = 0
        try:
            main(["pipeline", *arguments])
        except SystemExit as ended:
            status = int(ended.code or 0)
        return Ran(status, *capsys.readouterr())

    return call


def test_jobs_are_listed_and_the_command_line_does_not_import_pyspark(run: Run) -> None:
    listed = run("list")
    assert listed.status == 0
    assert [line.split()[0] for line in listed.out.splitlines()] == list(PIPELINES)
    program = (
        "import sys\nfrom pyxbroker.cli import main\n"
        "try: main(['pipeline', 'run', 'audit', '--help'])\n"
        "except SystemExit: print('pyspark' in sys.modules, 'pyarrow' in sys.modules)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert ran.stdout.splitlines()[-1] == "False False"


@pytest.mark.parametrize("name", PIPELINES)
def test_each_job_explains_itself(run: Run, name: str) -> None:
    shown = run("run", name, "--help")
    assert shown.status == 0
    assert f"Usage: pyxbroker pipeline run {name} [OPTIONS]" in shown.out
    assert "Example:" in shown.out and "--master" in shown.out


URL = ("--service-url", NOBODY)
SOURCE = (*URL, "--topic", "a")


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("archiv",), "No such command 'archiv'; did you mean archive?"),
        (("archive", *SOURCE), "the following arguments are required: --to"),
        (("archive", *SOURCE, "--to", "x", "--format", "orc"), "invalid choice: 'orc'"),
        (("archive", *SOURCE, "--to", "x", "--every", "often"), "'often' is not a time span"),
        (("archive", *SOURCE, "--to", "x", "--partition-by", "key"), "'key' is not one of topic,"),
        (("archive", *SOURCE, "--to", "x", "--option", "a"), "'a': expected NAME=VALUE."),
        (("archive", *SOURCE, "--to", "x", "--option", "topc=a"), "there is no option topc:"),
        (("archive", *URL, "--to", "x"), "give one of topic, topics and topicsPattern"),
        (("archive", *SOURCE, "--to", "x", "--start", "now"), "startingOffsets is 'now'"),
        (("archive", *SOURCE, "--to", "x", "--format", "delta"), "--checkpoint is required"),
        (("archive", *SOURCE, "--to", "x"), f"no broker answers at {NOBODY}"),
        (("replay", *URL, "--from", "x", "--to", "a//b"), "argument --to: 'a/' is not a"),
        (("replay", *URL, "--from", "x", "--since", "noon"), "'noon' is not a time"),
        (("replay", *URL, "--from", "x", "--slice", "0"), "'0' is not a number of messages."),
        (("replay", *URL, "--from", "x", "--to", "a"), f"no broker answers at {NOBODY}"),
        (
            ("aggregate", *SOURCE, "--to", "b", "--checkpoint", "c"),
            f"no broker answers at {NOBODY}",
        ),
        (("aggregate", *SOURCE, "--to", "b"), "arguments are required: --checkpoint"),
        (("analytics", *URL), "arguments are required: --admin-url"),
        (
            ("analytics", *URL, "--admin-url", "http://127.0.0.1:1"),
            f"no broker answers at {NOBODY}",
        ),
        (("audit", *SOURCE), "arguments are required: --other-service-url"),
        (
            ("audit", *SOURCE, "--other-service-url", NOBODY, "--compare", "all"),
            "'all' is not one of value, key,",
        ),
        (
            (
                *("audit", *SOURCE, "--other-service-url", NOBODY),
                *("--other-topic", "b", "--other-topic", "c"),
            ),
            "--other-topic has to be given once for each --topic",
        ),
        (("audit", *SOURCE, "--other-service-url", NOBODY), f"no broker answers at {NOBODY}"),
    ],
)
def test_what_is_wrong_is_one_sentence_and_status_2(
    run: Run, arguments: tuple[str, ...], sentence: str
) -> None:
    ran = run("run", *arguments)
    assert ran.status == 2 and ran.out == ""
    last = ran.err.splitlines()[-1]
    assert sentence in last and "Traceback" not in ran.err
    assert last.startswith(("Error: ", "pyxbroker: "))


def test_who_does_not_speak_pulsar_is_told(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"pulsar://127.0.0.1:{server.getsockname()[1]}"
        patience = "pulsar.client.operationTimeoutMs=300"
        ran = run(
            *("run", "archive", "--service-url", url, "--topic", "a", "--to", "x"),
            *("--option", patience),
        )
    assert ran.status == 2
    assert ran.err == f"pyxbroker: {url} did not answer in time.\n"


# --- errors of Spark's ----------------------------------------------------------------------------


def test_errors_of_python_workers_are_told_by_their_own_sentence() -> None:
    trace = (
        "[STREAM_FAILED] Query [id = 1] terminated with exception: An exception was thrown from a"
        ' Python worker\n  File "x.py", line 1, in read\n'
        "pyxbroker.spark.errors.NotReachable: the broker at pulsar://a:1 is gone: reset\n"
        "\tat org.apache.spark.Something(Some.scala:1)"
    )
    kind = type("StreamingQueryException", (Exception,), {"__module__": "pyspark.errors"})
    told = explain(kind(trace))
    assert told == ("the broker at pulsar://a:1 is gone: reset", 2, True)
    lost = trace.replace("NotReachable", "DataLost")
    assert explain(kind(lost)) == ("the broker at pulsar://a:1 is gone: reset", 1, True)
    other = explain(kind("[DIVIDE_BY_ZERO] Division by zero.\n\tat java"))
    assert other == ("Spark failed: [DIVIDE_BY_ZERO] Division by zero.", 1, False)
    assert explain(WrongOption("no")) == ("no", 2, True)
    assert explain(NotReachable("no")) == ("no", 2, True)
    assert explain(PulsarSparkError("no")) == ("no", 1, True)
    assert explain(ValueError("a bug")) is None


def test_an_error_of_sparks_analysis_is_told_without_its_class_and_state() -> None:
    told = "[UNRESOLVED_COLUMN.X] `nosuch` cannot be resolved. SQLSTATE: 42703; line 1\n'Filter"
    assert plain_reason(Exception(told)) == "`nosuch` cannot be resolved"
    assert plain_reason(Exception("")) == "Exception"


# --- progress -------------------------------------------------------------------------------------


def test_progress_is_plain_lines_now_and_then_where_no_terminal_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    progress = Progress("job")
    progress.show("one")
    progress.show("two")  # too early
    now += LOG_INTERVAL_S
    progress.show("one")  # as before
    progress.show("three")
    progress.print_line("done")
    assert capsys.readouterr().err == "job: one\njob: three\njob: done\n"


def test_progress_is_one_line_that_is_written_over_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "12")
    progress = Progress("job")
    progress.show("123456789")
    progress.print_line("all is done")
    assert capsys.readouterr().err == "\r\x1b[Kjob: 123456\r\x1b[Kjob: all is done\n"


@pytest.mark.parametrize(
    ("text", "span"),
    [("10 seconds", "10 seconds"), (" 1 day ", "1 day"), ("5 ms", None), ("1", None)],
)
def test_time_spans(text: str, span: str | None) -> None:
    if span is None:
        with pytest.raises(ArgumentTypeError, match="not a time span"):
            duration(text)
    else:
        assert duration(text) == span


# --- replay ---------------------------------------------------------------------------------------


def test_slices_follow_each_other_within_a_topic() -> None:
    buckets = [
        Bucket("a", 1, 99, 100),
        Bucket("a", 1, 150, 60),
        Bucket("a", 2, 99, 100),
        Bucket("a", 2, 120, 5),
        Bucket("b", 7, 3, 4),
    ]
    assert list(cut(buckets, 150)) == [
        Slice("a", (-1, -1), (1, 150), 160),
        Slice("a", (1, 150), (2, 120), 105),
        Slice("b", (-1, -1), (7, 3), 4),
    ]
    assert list(cut([], 1)) == []


def replay_of(place: Path, to: str = "t") -> Namespace:
    given = {"from": "archive", "to": to, "topic": [], "since": None, "until": None}
    return Namespace(**given, service_url="pulsar://a:1", checkpoint=str(place))


def test_a_checkpoint_knows_what_was_sent_and_of_which_replay_it_is(tmp_path: Path) -> None:
    place = tmp_path / "new" / "checkpoint"
    Checkpoint(replay_of(place)).set_done("a", (3, 17))
    assert Checkpoint(replay_of(place)).done == {"a": (3, 17)}
    with pytest.raises(WrongOption, match="is of another replay, whose to is 't' and not 'other'"):
        Checkpoint(replay_of(place, to="other"))
    (place / "replay.json").write_text('{"replay": {}, "done": {"a": 1}}')
    with pytest.raises(WrongOption, match="is not a checkpoint of a replay"):
        Checkpoint(replay_of(place))
    (tmp_path / "file").write_text("")
    with pytest.raises(WrongOption, match=r"--checkpoint .*file"):
        Checkpoint(replay_of(tmp_path / "file"))


# --- audit ----------------------------------------------------------------------------------------


def test_differences_are_told_in_a_sentence() -> None:
    both = Difference(None, 12_001, "0:1:0", "7:1", ["value", "key"])
    assert str(both) == (
        "message 12,001, at 0:1:0 here and at 7:1 there, differs in its value and key"
    )
    assert str(Difference(None, 3, "0:1", None, [])) == (
        "message 3, at 0:1 here, is missing there: the topic has ended"
    )
    assert str(Difference("'k'", 3, None, "0:1", [])) == (
        "message 3 of 'k', at 0:1 there, is missing here: the topic has ended"
    )


def test_topics_of_the_other_side_have_the_names_of_this_one() -> None:
    given = Namespace(topic=["a", "x"], other_topic=["b", "y-partition-1"])
    prefix = "persistent://public/default/"
    topics = [f"{prefix}{each}" for each in ("b-partition-3", "b", "y-partition-1", "c")]
    assert list(_renamed(given, topics).values()) == [
        f"{prefix}{each}" for each in ("a-partition-3", "a", "x", "c")
    ]


# --- analytics ------------------------------------------------------------------------------------


def test_pages_show_what_strangers_named_as_text() -> None:
    page = Page("<title>", "a & b")
    page.section("one", "")
    page.table(("<head>",), [("<script>", 1_234, 0.5, None)])
    page.plot(plots.bars([("<b>" + "x" * 60, 3), ("", 0)], "messages"))
    page.plot(plots.columns([(str(each), each) for each in range(100)], "messages"))
    page.plot(plots.bars([], "messages") + plots.columns([], "messages"))
    text = page.html()
    for word in ("<script>", "<head>", "<b>", "<title><title>"):
        assert word not in text.replace("<html lang", "").replace("<head><meta", "")
    assert "<td>1,234</td><td>0.50</td><td></td>" in text
    plotted = re.findall(r"<svg.*?</svg>", text, re.S)
    assert len(plotted) == 2, "without rows nothing is drawn"
    for each in plotted:
        ElementTree.fromstring(each)


def test_a_table_without_rows_says_why() -> None:
    page = Page("title", "about")
    page.table(("topic",), [], "No message has a key.")
    text = page.html()
    assert "<p>No message has a key.</p>" in text and "<table>" not in text


def test_bytes_are_told_as_people_read_them() -> None:
    assert [size(each) for each in (0, 1023, 1536, 5 << 30, 3 << 42)] == [
        *("0 B", "1,023 B", "1.5 KiB", "5.0 GiB", "12.0 TiB")
    ]


def snapshot_of(at_s: float, messages: int, backlog: int) -> Snapshot:
    subscription = {"msgBacklog": backlog, "msgOutCounter": 0, "consumers": [{}]}
    stats = {
        **{"msgInCounter": messages, "bytesInCounter": messages * 10, "msgOutCounter": 0},
        **{"storageSize": 99, "publishers": [], "subscriptions": {"s": subscription}},
    }
    internal = {"ledgers": [{}], "cursors": {"s": {"totalNonContiguousDeletedMessagesRange": 4}}}
    return Snapshot(at_s, {"t": stats}, {"t": internal})


def test_what_grows_between_two_looks_is_a_rate() -> None:
    (topic,) = compare(snapshot_of(10, 100, 50), snapshot_of(20, 300, 20))
    assert (topic.rate_in, topic.bytes_in, topic.storage, topic.ledgers) == (20, 200, 99, 1)
    (backlog,) = topic.backlogs
    assert (backlog.entries, backlog.growth, backlog.consumers, backlog.holes) == (20, -3, 1, 4)
    # A topic that another broker has now counts from 0 again.
    (topic,) = compare(snapshot_of(10, 100, 0), snapshot_of(20, 5, 0))
    assert topic.rate_in == 0
    wrong = Snapshot(20, {"t": {"subscriptions": json.loads("{}")}}, {"t": {}})
    with pytest.raises(PulsarSparkError, match="invalid statistics of topics"):
        compare(snapshot_of(10, 0, 0), wrong)


def test_partitions_are_summed_as_their_topic() -> None:
    def partition(topic: str, subscriptions: tuple[str, ...]) -> TopicStats:
        backlogs = [Backlog(topic, each, 2, 10, 1.5, 0.5, 3) for each in subscriptions]
        return TopicStats(topic, 4.0, 40.0, 2.0, 100, 1, 2, backlogs)

    whole = "persistent://public/default/t"
    alone = partition("persistent://public/default/u", ())
    parts = [partition(f"{whole}-partition-{n}", ("a", "b")[n:]) for n in range(2)]
    found, other = sum_partitions([*parts, alone])
    assert other == alone
    assert found == TopicStats(
        *(whole, 8.0, 80.0, 4.0, 200, 2, 2),
        [Backlog(whole, "a", 2, 10, 1.5, 0.5, 3), Backlog(whole, "b", 2, 20, 3.0, 1.0, 6)],
    )

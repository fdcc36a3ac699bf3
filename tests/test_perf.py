"""`pyxbroker perf`: options, scenarios, results and the page; none of them needs a broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hdrh.histogram import HdrHistogram
from hdrh.log import HistogramLogReader

from pyxbroker.cli import main
from pyxbroker.load_generator import VALUE_MAX_US
from pyxbroker.perf.groups import ConsumerGroup, ProducerGroup
from pyxbroker.perf.link import _share
from pyxbroker.perf.load_run import SAMPLE_PERCENTS, GroupNumbers, Sample
from pyxbroker.perf.page import page
from pyxbroker.perf.results import group_result, progress_line, summary_lines, write_histogram_log
from pyxbroker.perf.scenario import BadScenario, load, parse, shipped

TOPIC = "persistent://public/default/orders"


def numbers() -> GroupNumbers:
    """Two seconds of a group."""
    made = GroupNumbers(ProducerGroup((TOPIC,), "shops"))
    for us in (1000, 2000, 3000, 4000):
        made.latencies.record(us)
    made.seconds, made.messages, made.bytes, made.failures = 2.0, 4, 4000, 1
    for at_s, messages in ((1.0, 3), (2.0, 1)):
        latencies = tuple(messages * 1000 for _ in SAMPLE_PERCENTS)
        made.samples.append(Sample(at_s, 1.0, messages, messages * 1000, 0, latencies))
    return made


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the last line of a command's error; its status is that of wrong usage."""
    with pytest.raises(SystemExit) as ended:
        main(["perf", *arguments])
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


# --- results ------------------------------------------------------------------------------------


def test_totals_are_those_of_all_seconds() -> None:
    found = group_result(numbers())
    assert (found["rate"], found["mbit_s"], found["failures"]) == (2.0, 0.016, 1)
    latency = found["latency_ms"]
    assert (latency["mean"], latency["max"]) == (2.5, 4.0)
    assert latency["p50"] == pytest.approx(2, rel=0.001)
    assert [each["rate"] for each in found["samples"]] == [3, 1]
    assert json.loads(json.dumps(found)) == found


def test_lines_have_the_rate_and_the_worst_second() -> None:
    line = progress_line(numbers(), numbers().samples)
    assert "shops: Throughput produced:" in line
    assert " 2.0 msg/s" in line and "99pct: 3.000" in line
    lines = list(summary_lines(numbers()))
    assert "4 records sent --- 2.000 msg/s" in lines[0]
    assert lines[1] == "shops: 1 messages failed"
    assert "Max: 4.000 ms" in lines[2]


def test_the_page_has_curves_and_no_markup_of_names() -> None:
    result: dict[str, Any] = {"title": "a <b>", "groups": [group_result(numbers())]}
    result["groups"][0]["name"] = "<script>"
    text = page([result])
    assert text.count("<svg") == text.count("</svg>") == 3
    assert text.count("<polyline") == 3
    assert "<script" not in text and "<b>" not in text


def test_the_page_of_a_group_without_messages_is_empty_curves() -> None:
    empty = group_result(GroupNumbers(ConsumerGroup((TOPIC,))))
    assert page([{"title": "none", "groups": [empty]}]).count("<svg") == 3


@pytest.mark.parametrize(("total", "parts"), [(10, 3), (2, 5), (500, 500)])
def test_a_number_of_messages_is_divided_without_loss(total: int, parts: int) -> None:
    shares = [_share(total, parts, index) for index in range(parts)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_the_library_reads_the_log(tmp_path: Path) -> None:
    write_histogram_log(tmp_path / "log", numbers())
    reader = HistogramLogReader(str(tmp_path / "log"), HdrHistogram(1, VALUE_MAX_US, 3))
    found = reader.get_next_interval_histogram()
    assert found.get_total_count() == 4
    assert [found.get_value_at_percentile(each) for each in (50, 100)] == [2000, 4001]
    assert found.get_end_time_stamp() - found.get_start_time_stamp() == 2000
    reader.close()


# --- scenarios ----------------------------------------------------------------------------------


def test_the_iot_scenario_has_500_keyed_producers_and_20_key_shared_consumers() -> None:
    assert "iot-telemetry" in shipped()
    scenario = load("iot-telemetry")
    consumers, producers = scenario.at(2000.0)
    assert isinstance(consumers, ConsumerGroup) and isinstance(producers, ProducerGroup)
    assert (consumers.count, consumers.type) == (20, "Key_Shared")
    assert (producers.count, producers.size, producers.batch_messages) == (500, 128, 1)
    assert (producers.keys, producers.rate) == ("producer", 2000)
    assert scenario.steps[0] == 0.0 and len(scenario.steps) > 2


def test_defaults_and_short_names_of_a_file() -> None:
    scenario = parse("mine", "groups: [{kind: producers, topics: orders, rate: 10}]")
    assert scenario.at(99.0) == list(scenario.groups)
    (group,) = scenario.groups
    assert isinstance(group, ProducerGroup)
    assert (group.topics, group.rate, scenario.steps) == ((TOPIC,), 10.0, (0.0,))


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("seconds: 1\ngroups: [", "not valid YAML: line 2: "),
        ("[]", "no mapping|not a mapping"),
        ("steps: [max]", "no groups"),
        ("groups: []\nwarm_up: 3", "unknown name 'warm_up'"),
        ("groups: [{kind: producer, topics: a}]", "kind 'producer'"),
        ("groups: [{kind: producers}]", "group 1.*topics"),
        ("groups: [{kind: producers, topics: a, siez: 3}]", "'siez'; did you mean size"),
        (
            "groups: [{kind: producers, topics: a, count: 0}]",
            "count is 0; expected a whole",
        ),
        (
            "groups: [{kind: producers, topics: a, rate: -1}]",
            "rate is -1; expected max or",
        ),
        ("groups: [{kind: producers, topics: a, keys: random}]", "batching: false"),
        (
            "groups: [{kind: consumers, topics: a, type: Keyed}]",
            "type is 'Keyed'; expected one of",
        ),
        ("groups: [{kind: consumers, topics: 'persistent://a'}]", "group 1"),
        ("steps: [fast]\ngroups: [{kind: consumers, topics: a}]", "steps is 'fast'; expected max"),
        ("steps: []\ngroups: [{kind: consumers, topics: a}]", "expected a list of rates"),
        ("seconds: .nan\ngroups: [{kind: consumers, topics: a}]", "seconds is nan; expected"),
        ("groups: [{kind: producers, topics: a, batching: 'no'}]", "expected true or false"),
        ("about: \a", "has characters that YAML forbids"),
    ],
)
def test_an_error_in_a_file_is_named(text: str, sentence: str) -> None:
    with pytest.raises(BadScenario, match=sentence):
        parse("mine", text)


def test_a_scenario_that_does_not_exist_is_named_with_those_that_do(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit):
        main(["perf", "scenario", "run", "iot"])
    assert "iot is neither a scenario (iot-telemetry) nor a file" in capsys.readouterr().err


def test_a_file_that_is_no_text_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SystemExit):
        main(["perf", "scenario", "run", str(tmp_path / "mine.yaml")])
    assert "mine.yaml is not valid YAML: it is not text." in capsys.readouterr().err


def test_the_list_has_each_scenario(capsys: pytest.CaptureFixture[str]) -> None:
    main(["perf", "scenario", "list"])
    assert "iot-telemetry  Telemetry of 500 devices." in capsys.readouterr().out


# --- options ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("produce", "a", "-txn"), "-txn is not built"),
        (("produce", "a", "--payload-file=x"), "--payload-file is not built"),
        (("consume", "a", "-r", "5"), "-r is not built"),
        (("read", "a", "-ioThreads", "2"), "-ioThreads is not built"),
        (("latency", "a", "-d", "2"), "-d is not built"),
        (("produce", "a", "--rat", "5"), "did you mean --rate"),
        (("produce", "a", "-n", "0"), "argument -n/--num-producers"),
        (("produce", "a", "-mk", "random"), "--disable-batching"),
        (("produce", "persistent://a"), "persistent://a"),
        (("produce", "a", "b", "-t", "3"), "--num-topics is 3"),
        (("produce", "a", "-u", "http://x"), "http://x"),
        (("consume", "a", "-n", "2"), "--subscription-type Shared"),
        (("consume", "a", "-ss", "x,y", "-ns", "3"), "--num-subscriptions is 3"),
        (("consume", "a", "-ss", ""), "--subscriptions has no name"),
        (("read", "a", "-m", "first"), "'first'"),
        (("latency",), "TOPIC"),
        (("produce", "a", "-r", "fast"), "'fast' is not max, or a number"),
        (("consume", "a", "-time", "nan"), "'nan' is not a number"),
    ],
)
def test_a_wrong_option_is_refused_with_a_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], sentence: str
) -> None:
    assert sentence in refusal(capsys, *arguments)


@pytest.mark.parametrize("option", ["--json", "--html", "--histogram-file"])
def test_a_file_that_cannot_be_written_ends_the_command_before_the_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], option: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["perf", "produce", "a", "-u", "pulsar://127.0.0.1:1", option, str(tmp_path)])
    assert ended.value.code == 1
    assert f"{tmp_path} cannot be written: Is a directory." in capsys.readouterr().err


def test_a_missing_library_is_named_with_its_extra(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "sys.modules['hdrh'] = sys.modules['yaml'] = None\n"
        "from pyxbroker.cli import main\n"
        "main(sys.argv[1:])\n"
    )
    for arguments in (
        ["produce", "a", "--histogram-file", str(tmp_path / "x")],
        ["scenario", "run", "iot-telemetry"],
    ):
        command = [sys.executable, "-c", program, "perf", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "pip install 'pyxbroker[perf]'" in done.stderr


def test_the_help_imports_no_load_generator() -> None:
    program = (
        "import sys\n"
        "from pyxbroker.cli import main\n"
        "try:\n"
        "    main(['perf', '--help'])\n"
        "except SystemExit:\n"
        "    print(*sys.modules)\n"
    )
    command = [sys.executable, "-c", program]
    modules = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {"pyxbroker.load_generator", "uvloop", "google.protobuf", "yaml"} & set(modules)

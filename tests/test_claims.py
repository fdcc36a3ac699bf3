"""What docs/ promises has a test or a command beside it, and what is beside it exists.

A sentence with one of the words of PROMISE says how the broker behaves whatever happens, so it
carries a reference: an entry of the appendix "Evidence" at the end of its page, which quotes some
words of it and names tests or commands, or a test or command in backticks of its own. A row of a
table counts as a sentence. A table of figures has the command that makes it in the paragraph before
or behind it, or in its own heading. Prose has no footnotes.
"""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import pytest
from harness import page_blocks as page_code

from pyxbroker.base import limits, log_limits
from pyxbroker.bookie import space
from pyxbroker.broker.commands import handlers, seek, topic_list
from pyxbroker.broker.dispatch import chunks, read_trouble
from pyxbroker.ledger import retries
from pyxbroker.metadata import zookeeper
from pyxbroker.mledger import cursor_ledger
from pyxbroker.settings.config import SCHEMA
from pyxbroker.web import connection as web_connection
from pyxbroker.web import endpoint, request_parser

ROOT = Path(__file__).parent.parent
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md"])

PROMISE = re.compile(
    r"\b(same|never|always|at most|no more than|no less than|cannot|exactly|guarantee[sd]?"
    r"|every|none)\b",
    re.IGNORECASE,
)

# Pages that the program writes from its tables, with what shows the promises in them, by the first
# code of a row or the beginning of a sentence: names of tests have no place in a broker.
WRITTEN: dict[str, dict[str, str]] = {
    "configuration.md": {
        "isDelayedDeliveryDeliverAtTimeStrict": "tests/test_delayed_delivery.py::"
        "test_unless_times_are_strict_it_may_come_early_by_a_tick",
        "keepAliveIntervalSeconds": "tests/test_cli.py::"
        "test_who_is_silent_is_asked_unless_that_is_off",
        "maxClientStateSizeInMBPerConnection": "tests/test_client_memory.py::"
        "test_a_connection_opens_no_more_than_its_memory_allows",
        "maxBatchAckStateSizeInMB": "tests/test_ackset.py::"
        "test_batches_have_a_limit_over_all_sets_and_who_has_little_goes_on",
        "maxConcurrentTopicLoadRequest": "tests/test_topics.py::"
        "test_topics_are_opened_a_few_at_a_time",
        "defaultRetentionSizeInMB": "tests/test_trimming.py::"
        "test_retention_keeps_what_is_young_and_within_its_size",
        "keySharedLookAheadMsgInReplayThresholdPerSubscription": "tests/"
        "test_key_shared_dispatch.py::test_the_look_ahead",
        "managedLedgerMaxUnackedRangesToPersist": "tests/test_cursor.py::"
        "test_a_million_holes_survive_a_kill",
        "autoSkipNonRecoverableData": "tests/test_read_trouble.py::"
        "test_a_longer_run_stops_the_subscription_until_it_can_be_read",
        "shutdownOnJournalFailure": "tests/test_cli.py::"
        "test_a_failed_journal_ends_the_process_only_when_asked",
        "diskReserveSizeMB": "tests/test_space.py::"
        "test_the_reserve_is_made_where_there_is_space_and_no_larger_than_an_eighth",
    },
    "policies.md": {
        "While a record cannot be read": "tests/test_inactive_topics.py::"
        "test_policies_that_cannot_be_read_delete_nothing",
        "look_ahead_per_subscription_max": "tests/test_key_shared_dispatch.py::test_the_look_ahead",
        "delay_strict": "tests/test_delayed_delivery.py::"
        "test_unless_times_are_strict_it_may_come_early_by_a_tick",
    },
}
NOT_BUILT = "*Not implemented yet.*"

# Numbers of the program that pages repeat, with the words in which they do.
NUMBERS: list[tuple[str, object, object, str]] = [
    ("compatibility.md", limits.TENANT_BYTES_MAX, 256, "| tenant, namespace | 256 bytes each |"),
    ("compatibility.md", limits.NAMESPACE_BYTES_MAX, 256, "| tenant, namespace | 256 bytes each |"),
    ("compatibility.md", limits.CLUSTER_BYTES_MAX, 256, "| `clusterName` | 256 bytes |"),
    ("compatibility.md", limits.TOPIC_BYTES_MAX, 1_024, "without `-partition-N` | 1,024 bytes |"),
    ("compatibility.md", limits.SUBSCRIPTION_BYTES_MAX, 1_024, "consumer | 1,024 bytes each |"),
    ("compatibility.md", limits.PRODUCER_BYTES_MAX, 1_024, "consumer | 1,024 bytes each |"),
    ("compatibility.md", limits.CONSUMER_BYTES_MAX, 1_024, "consumer | 1,024 bytes each |"),
    ("compatibility.md", limits.PROPERTIES_MAX, 1_000, "| 1,000; a key 1,024 bytes, a value 64"),
    ("compatibility.md", limits.PROPERTY_KEY_BYTES_MAX, 1_024, "a key 1,024 bytes, a value 64"),
    ("compatibility.md", limits.PROPERTY_VALUE_BYTES_MAX, 64 << 10, "a value 64 KiB, all of them"),
    ("compatibility.md", limits.PROPERTIES_BYTES_MAX, 256 << 10, "all of them 256 KiB |"),
    ("compatibility.md", limits.CLIENT_VERSION_BYTES_MAX, 1_024, "of a client | 1,024 bytes |"),
    ("compatibility.md", limits.TEXT_BYTES_MAX, 64 << 10, "text of a command | 64 KiB |"),
    ("compatibility.md", limits.CHUNK_UUID_BYTES_MAX, 1_088, "chunked message | 1,088 bytes;"),
    ("compatibility.md", limits.PARTITIONS_MAX, 100_000, "partitions of a topic | 100,000,"),
    (
        "compatibility.md",
        limits.PARTITIONS_SUBSCRIPTIONS_MAX,
        1_000_000,
        "to further partitions together | 1,000,000",
    ),
    (
        "compatibility.md",
        limits.PARTITIONS_PROPERTIES_BYTES_MAX,
        256 << 20,
        "into partitions, together | 256 MiB",
    ),
    ("compatibility.md", topic_list.WATCHERS_MAX, 1_000, "at most 1,000 watchers of topics"),
    ("compatibility.md", handlers.COMMANDS_MAX, 1_000, "with 1,000 commands under way"),
    ("compatibility.md", chunks.MESSAGES_MAX, 1_000, "a Shared subscription knows 1,000, and"),
    ("compatibility.md", chunks.PLACES_MAX, 20_000, "and 20,000 chunks of all of them"),
    ("compatibility.md", seek.SEEK_MAX_S, 25.0, "waits for it, 25 s at most"),
    ("compatibility.md", read_trouble.LOST_IN_A_ROW_MAX, 64, "up to 64 in a row"),
    ("compatibility.md", read_trouble.RETRY_STOPPED_S, 30.0, "which is tried every 30 s"),
    ("reliability.md", read_trouble.LOST_IN_A_ROW_MAX, 64, "more than 64 consecutive entries"),
    ("reliability.md", read_trouble.RETRY_STOPPED_S, 30.0, "It checks again every 30 s"),
    (
        "reliability.md",
        retries.RETRY_FOR_S,
        10.0,
        "The broker retries for up to 10 s, then answers",
    ),
    ("reliability.md", retries.RETRY_MAX_S, 1.0, "The broker retries at most a second later"),
    (
        "reliability.md",
        SCHEMA["dispatcherReadFailureBackoffMaxTimeInMs"].default,
        1_000,
        "The broker retries at most a second later",
    ),
    ("operations.md", log_limits.WINDOW_S, 10.0, "one such line every ten seconds"),
    ("operations.md", log_limits.PEER_LINES_MAX, 3, "at most three of a cause's lines"),
    (
        "operations.md",
        log_limits.LINES_PER_SECOND_MAX,
        100,
        "at most a hundred lines and about 128",
    ),
    ("operations.md", log_limits.BYTES_PER_SECOND_MAX, 128 << 10, "about 128 KiB in a second"),
    ("operations.md", log_limits.CHARACTERS_MAX, 1_024, "at most 1,024 characters"),
    ("operations.md", log_limits.LINE_BYTES_MAX, 8 << 10, "a line 8 KiB"),
    ("operations.md", log_limits.TRACEBACK_LINES_MAX, 100, "a traceback a hundred lines and 32"),
    ("operations.md", log_limits.TRACEBACK_BYTES_MAX, 32 << 10, "a hundred lines and 32 KiB"),
    ("operations.md", space.SHARE_MAX, 0.25, "at most a quarter of the disk"),
    ("operations.md", space.RESERVE_SHARE, 8, "at most an eighth of the disk"),
    ("operations.md", space.MARGIN, 1.25, "when there is a quarter more than is needed"),
    ("operations.md", request_parser.URL_BYTES_MAX, 8 << 10, "(8 KiB of URL,"),
    ("operations.md", request_parser.HEAD_BYTES_MAX, 16 << 10, "16 KiB of headers)"),
    ("operations.md", web_connection.BODY_TIMEOUT_S, 30.0, "30 s for its body"),
    ("operations.md", endpoint.BODY_BYTES_MAX, 1 << 20, "its body (1 MiB)"),
    ("operations.md", web_connection.KEEP_ALIVE_TIMEOUT_S, 75.0, "is closed after 75 s"),
    ("metadata.md", zookeeper.REQUESTS_IN_FLIGHT_MAX, 128, "While 128 requests are in"),
    ("formats.md", cursor_ledger.CHANGES_BYTES_MIN, 64 << 10, "(at least 64 KiB)"),
    ("formats.md", cursor_ledger.CHANGES_MAX, 10_000, "or are 10,000 entries"),
]

CODE_SPAN = re.compile(r"`([^`]+)`")
FOOTNOTE = re.compile(r"\[\^[\w-]+\]")
APPENDIX = "Evidence"
QUOTE = r'"(?:`[^`]*`|[^"`])*"'
ENTRY = re.compile(rf"- ({QUOTE}(?:, {QUOTE})*): (.+)")
GROUP = re.compile(r"\*\*(.+)\*\*")
SENTENCE_END = re.compile(r"(?<=[.!?])[)*\"]*\s+(?=[A-Z`*\"(\[])")
FIGURE = re.compile(r"[~<]?\d[\d.,]*\b")

# What a reference looks like: a file of tests or a function of it, a module's command line, a verb
# of make, one of the tests that a table of docs/metadata.md or docs/reliability.md names alone.
TEST = re.compile(r"((?:tests|compat_tests|torture|bench)/[\w/]+\.(?:py|c|sh))(?:::(\w+))?")
MODULE = re.compile(r"python -m ([\w.]+)((?: .*)?)")
VERB = re.compile(r"make ([a-z]+)((?: .*)?)")
TOOL = re.compile(r"(?:strace|perf) .+")
NAMED_TEST = re.compile(r"(test_\w+)(\.\.\.|\[[\w-]+\])?")
REFERENCES = (TEST, MODULE, VERB, TOOL, NAMED_TEST)


class Block(NamedTuple):
    """A paragraph, an item of a list, or a row of a table."""

    page: str
    line: int
    text: str
    section: str = ""
    """The heading above it."""

    @property
    def is_row(self) -> bool:
        return self.text.startswith("|")

    @property
    def is_evidence(self) -> bool:
        return self.section == APPENDIX

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


class Entry(NamedTuple):
    """An entry of an appendix."""

    section: str
    """The section that it is about."""
    quotes: list[str]
    text: str
    """The tests and commands."""


def blocks_of(text: str, page: str) -> Iterator[Block]:
    """The blocks of a page, code left out. A heading is a block without text."""
    lines: list[str] = []
    begin = 0
    is_fenced = False
    section = ""
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        words = line.strip()
        is_fence = words.startswith("```")
        is_code = is_fenced or is_fence
        is_fenced ^= is_fence
        is_heading = words.startswith("#") and not is_code
        is_end = is_code or is_heading or not words or words.startswith("<!--")
        if lines and (is_end or re.match(r"[-*] |\d+\. |\|", words)):
            yield Block(page, begin, " ".join(lines), section)
            lines.clear()
        if is_heading:
            section = words.lstrip("# ")
            yield Block(page, number, "", section)
        if not is_end:
            begin = begin if lines else number
            lines.append(words)


def code_as_x(text: str) -> str:
    """Code spans with other letters: a word in a command promises nothing, and ends nothing."""
    return CODE_SPAN.sub(lambda found: f"`{'x' * len(found[1])}`", text)


def sentences_of(block: Block) -> list[str]:
    if block.is_row:
        return [block.text]
    ends = [found.end() for found in SENTENCE_END.finditer(code_as_x(block.text))]
    return [block.text[a:b].strip() for a, b in pairwise([0, *ends, len(block.text)])]


def promises_of(block: Block) -> list[str]:
    """The sentences of a block that promise something."""
    if block.is_evidence or NOT_BUILT in block.text:
        return []
    return [each for each in sentences_of(block) if PROMISE.search(code_as_x(each))]


@cache
def page_blocks(path: Path) -> list[Block]:
    return list(blocks_of(path.read_text(), path.name))


def plain(text: str) -> str:
    """A text as its readers see it: without emphasis and the targets of links."""
    parts = re.split(r"(`[^`]+`)", text)
    parts[::2] = [part.replace("*", "") for part in parts[::2]]
    return " ".join(re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", "".join(parts)).split())


@cache
def evidence_of(path: Path) -> list[Entry]:
    """The entries of a page's appendix, each below the name of the section that it is about."""
    found = []
    section = ""
    for block in page_blocks(path):
        if block.is_evidence and (group := GROUP.fullmatch(block.text)):
            section = group[1]
        elif block.is_evidence and block.text.startswith("- "):
            entry = ENTRY.fullmatch(block.text)
            assert entry, f"{block}: no entry: {block.text}"
            quotes = [quote[1:-1] for quote in re.findall(QUOTE, entry[1])]
            found.append(Entry(section, quotes, entry[2]))
    return found


def entries_about(text: str, section: str, path: Path) -> list[Entry]:
    """The entries of the appendix that quote a part of a text of a section."""
    words = plain(text)
    return [
        entry
        for entry in evidence_of(path)
        if entry.section == section and any(quote in words for quote in entry.quotes)
    ]


def references_of(text: str) -> list[str]:
    """The tests and commands among the code of a text."""
    spans = CODE_SPAN.findall(text)
    return [span for span in spans if any(kind.fullmatch(span) for kind in REFERENCES)]


def is_shown(sentence: str, section: str, heads: dict[str, list[str]], path: Path) -> bool:
    """Whether a promise has a test or a command beside it, or at the head of its table."""
    around = [sentence, *heads.get(sentence, [])]
    if any(references_of(text) or entries_about(text, section, path) for text in around):
        return True
    shown = WRITTEN.get(path.name, {})
    first_code = CODE_SPAN.search(sentence)
    is_row = sentence.startswith("|")
    return any(
        (is_row and first_code is not None and first_code[1] == key) or sentence.startswith(key)
        for key in shown
    )


# --- what is written ----------------------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_promise_has_a_test_or_a_command_beside_it(path: Path) -> None:
    heads = {
        row.text: [before, rows[0].text] for before, rows, _ in tables_of(path) for row in rows
    }
    bare = [
        f"{block}: {sentence}"
        for block in page_blocks(path)
        for sentence in promises_of(block)
        if not is_shown(sentence, block.section, heads, path)
    ]
    assert not bare, "\n" + "\n".join(bare)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_an_entry_of_the_evidence_quotes_its_section_and_names_a_test_or_a_command(
    path: Path,
) -> None:
    blocks = page_blocks(path)
    texts: dict[str, str] = {}
    for block in blocks:
        if not block.is_evidence:
            texts[block.section] = f"{texts.get(block.section, '')}\n{plain(block.text)}"
    troubles = [
        f"{entry.section}: {quote!r} is {texts.get(entry.section, '').count(quote)} times there"
        for entry in evidence_of(path)
        for quote in entry.quotes
        if texts.get(entry.section, "").count(quote) != 1
    ]
    troubles += [
        f"{entry} names none" for entry in evidence_of(path) if not references_of(entry.text)
    ]
    assert not troubles, "\n" + "\n".join(troubles)
    assert [str(block) for block in blocks if FOOTNOTE.search(code_as_x(block.text))] == []
    headings = [block.section for block in blocks if not block.text]
    assert APPENDIX not in headings[:-1], "it is the last section"


@pytest.mark.parametrize(("page", "value", "expected", "words"), NUMBERS)
def test_numbers_are_those_of_the_program(
    page: str, value: object, expected: object, words: str
) -> None:
    assert value == expected, "the page has to change with it"
    text = " ".join((ROOT / "docs" / page).read_text().split())
    assert words in text


def tables_of(path: Path) -> Iterator[tuple[str, list[Block], str]]:
    """The tables of a page, each with the block before it and the one behind it."""
    blocks = page_blocks(path)
    start = None
    for index, block in enumerate([*blocks, Block(path.name, 0, "")]):
        if block.is_row:
            start = index if start is None else start
        elif start is not None:
            yield blocks[start - 1].text, blocks[start:index], block.text
            start = None


def has_figures(rows: list[Block]) -> bool:
    """Whether most of a table's cells are numbers; that of a format begins with an offset."""
    if re.match(r"\| *(offset|field|exit status) ", rows[0].text):
        return False
    cells = [cell.strip() for row in rows[2:] for cell in row.text.strip("| ").split("|")[1:]]
    return sum(FIGURE.match(cell) is not None for cell in cells) * 2 > len(cells)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_a_table_of_figures_names_the_command_that_makes_it(path: Path) -> None:
    bare = []
    for before, rows, behind in tables_of(path):
        texts = (before, rows[0].text, behind)
        entries = [each for text in texts for each in entries_about(text, rows[0].section, path)]
        around = " ".join((*texts, *(entry.text for entry in entries)))
        kinds = (MODULE, VERB, TOOL)
        commands = [span for span in references_of(around) if any(k.fullmatch(span) for k in kinds)]
        if has_figures(rows) and not commands:
            bare.append(f"{rows[0]}: {rows[0].text}")
    assert not bare, "\n" + "\n".join(bare)


# --- what is beside it --------------------------------------------------------------------------


@cache
def functions_of(path: str) -> frozenset[str]:
    text = (ROOT / path).read_text()
    if path.endswith(".py"):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
        return frozenset(each.name for each in ast.walk(ast.parse(text)) if isinstance(each, kinds))
    return frozenset(re.findall(r"^(?:static )?\w+ \*?(\w+)\(", text, re.MULTILINE))


@cache
def all_tests() -> frozenset[str]:
    files = [file for room in ("tests", "compat_tests", "torture") for file in room_files(room)]
    return frozenset(name for file in files for name in functions_of(file))


def room_files(room: str) -> list[str]:
    return [path.relative_to(ROOT).as_posix() for path in (ROOT / room).glob("test_*.py")]


@cache
def help_of(module: str) -> str:
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{module}: {done.stderr}"
    return done.stdout


def trouble_of_module(module: str, arguments: str) -> str | None:
    """Why `python -m` of a module with these arguments cannot be given; None when it can."""
    if importlib.util.find_spec(module) is None:
        return f"there is no module {module}"
    if not module.startswith(("bench", "torture", "pyxbroker.cli")):
        return None  # of others: pytest, venv
    for word in re.findall(r"--[\w-]+|(?<= )[a-z][\w-]+", arguments.partition("  ")[0]):
        if not re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", help_of(module)):
            return f"{module} does not know {word}"
    return None


def trouble_of(reference: str) -> str | None:
    """Why a reference leads nowhere; None when it does not."""
    if found := TEST.fullmatch(reference):
        path, name = found.groups()
        if not (ROOT / path).is_file():
            return f"there is no file {path}"
        return None if name is None or name in functions_of(path) else f"{path} has no {name}"
    if found := MODULE.fullmatch(reference):
        return trouble_of_module(*found.groups())
    if found := VERB.fullmatch(reference):
        arguments = re.sub(r"\w+='[^']*'", "", found[2])
        verbs = re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
        wanted = [found[1], *re.findall(r"(?<= )[a-z]+(?![\w=])", arguments.partition("  ")[0])]
        unknown = [verb for verb in wanted if verb not in verbs]
        return f"make has no {unknown[0]}" if unknown else None
    if found := NAMED_TEST.fullmatch(reference):
        name, more = found.groups()
        if any(each.startswith(name) if more == "..." else each == name for each in all_tests()):
            return None
        return f"no test is called {reference}"
    return None


def code_lines_of(path: Path) -> Iterator[str]:
    """The lines of a page's blocks of code."""
    for block in page_code.blocks_of(path):
        for line in block.text.splitlines():
            yield line.strip().partition("#")[0].strip()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_tests_and_commands_that_a_page_names_exist(path: Path) -> None:
    named = {span for block in page_blocks(path) for span in references_of(block.text)}
    for line in code_lines_of(path):
        named |= {line} if MODULE.fullmatch(line) or VERB.fullmatch(line) else set()
    for shown in WRITTEN.get(path.name, {}).values():
        named |= {*shown.split()}
    troubles = [trouble for each in sorted(named) if (trouble := trouble_of(each))]
    assert not troubles, "\n" + "\n".join(troubles)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_files_that_a_page_names_exist(path: Path) -> None:
    """Named from the root, or as far as needed: `broker/topics/topic.py`, `dispatcher.py`."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    files = [f"/{name}" for name in listed.split()]
    missing = []
    for block in page_blocks(path):
        for span in CODE_SPAN.findall(block.text):
            name = span.partition("::")[0]
            if re.fullmatch(r"[\w/]+\.(py|pyi|pyx|pxd|c|h|proto)", name) and not any(
                file.endswith(f"/{name}") for file in files
            ):
                missing.append(f"{block}: {span}")
    assert not missing, "\n" + "\n".join(missing)


@cache
def source_text() -> str:
    """The text of the broker's modules, with the parts of a divided string put together."""
    files = [*(ROOT / "src").rglob("*.py"), *(ROOT / "src").rglob("*.pyx")]
    return re.sub(r'"\s*\n\s*f?"', "", "\n".join(file.read_text() for file in files))


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_log_lines_that_a_page_quotes_are_written(path: Path) -> None:
    quoted = set(re.findall(r'event="([^"]+)"', " ".join(path.read_text().split())))
    assert [event for event in sorted(quoted) if f'"{event}"' not in source_text()] == []


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_series_that_a_page_names_are_defined(path: Path) -> None:
    # The names of pytest fixtures look like those of series.
    rooms = (ROOT / "src/pyxbroker" / room for room in ("stats", "testing"))
    defined = " ".join(file.read_text() for room in rooms for file in room.glob("*.py"))
    # tests/test_metric_names.py checks the missing series.
    text, _, _ = path.read_text().partition("## Missing series")
    named = re.findall(r"`((?:bookie|pulsar|pyxbroker|process)_\w+)`", text)
    whole = [re.sub(r"_(sum|count|bucket|total)$", "", name) for name in named]
    assert [name for name in whole if name not in defined] == []


def test_written_promises_are_still_there() -> None:
    for page, shown in WRITTEN.items():
        path = ROOT / "docs" / page
        sentences = [each for block in page_blocks(path) for each in promises_of(block)]
        for key in shown:
            assert any(f"`{key}`" in each or each.startswith(key) for each in sentences), key


# --- the judge ----------------------------------------------------------------------------------


def test_sentences_and_promises_are_found() -> None:
    page = (
        "# Never\n\nFirst: it never fails. It is `never.` so. (Always\nso.) Fine.\n"
        "- Every one\n  waits.\n\n| at most | 3 |\n|---|---|\n```\nnever\n```\n"
        '## Evidence\n\n**Never**\n\n- "it never fails": `make test`\n'
    )
    found = [each for block in blocks_of(page, "p") for each in promises_of(block)]
    assert found == [
        "First: it never fails.",
        "(Always so.)",
        "- Every one waits.",
        "| at most | 3 |",
    ]


def test_the_evidence_of_a_statement_is_found_by_its_words(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    path.write_text(
        '# A\n\nIt *never* fails, see [here](b.md). It always `says "x"`.\n\n'
        "## Evidence\n\n**A**\n\n"
        '- "It never fails, see here", "always `says "x"`": `make test`\n'
    )
    (entry,) = evidence_of(path)
    assert entry == Entry("A", ["It never fails, see here", 'always `says "x"`'], "`make test`")
    for sentence, section, is_found in (
        ("It *never* fails, see [here](b.md).", "A", True),
        ("It *never* fails, see [here](b.md).", "B", False),
        ("It never fails.", "A", False),
    ):
        assert is_shown(sentence, section, {}, path) == is_found


def test_references_that_lead_nowhere_are_found() -> None:
    for good in (
        "tests/test_claims.py::test_references_that_lead_nowhere_are_found",
        "tests/native/test_crc32c.c::test_check_values",
        "python -m bench.run --only pyxbroker --figure unbatched4",
        "make compat BROKER=apache",
        "test_references_that_lead...",
    ):
        assert references_of(f"see `{good}`") == [good]
        assert trouble_of(good) is None
    for bad in (
        "tests/test_claims.py::test_that_is_not_there",
        "tests/test_not_there.py",
        "tests/native/test_crc32c.c::test_not_there",
        "python -m bench.not_there",
        "python -m bench.run --not-there",
        "python -m bench.run --figure nothing",
        "make nothing",
        "test_that_is_not...",
    ):
        assert references_of(f"see `{bad}`") == [bad]
        assert trouble_of(bad) is not None


def test_tables_of_figures_are_told_from_others() -> None:
    rows = ["| a | b | c |", "|---|---|---|", "| x | 1,000 | 2 ms |", "| y | 0.5 | - |"]
    assert has_figures([Block("p", 1, row) for row in rows])
    assert not has_figures([Block("p", 1, row) for row in [*rows[:2], "| x | yes | 2 |"]])

"""The code blocks of the pages do what the pages say (`harness/page_blocks.py` runs them)."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest
from harness.page_blocks import (
    ROOT,
    RUN,
    SHOWN,
    Block,
    BlockFailed,
    Page,
    blocks_of,
    is_as_shown,
    run_isolated,
)

pytestmark = [pytest.mark.pyxbroker, pytest.mark.standalone]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.is_run for block in blocks_of(page))],
    ids=lambda page: page.name,
)
def test_the_blocks_of_a_page_do_what_it_says(page: Path) -> None:
    failed = run_isolated(page)
    assert not failed, failed


def test_each_block_is_run_or_says_why_not() -> None:
    blocks = [block for page in PAGES for block in blocks_of(page)]
    assert [str(block) for block in blocks if block.tag not in (*RUN, *SHOWN)] == []


def test_a_page_whose_block_fails_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```sh\ncurl -sf localhost:8080/status.html\n```\n")
    assert run_isolated(page).startswith("page.md:1: status 22")


def test_a_block_that_prints_something_else_is_found(tmp_path: Path) -> None:
    run = Page(tmp_path)
    for text, expected, is_right in (
        ("$ echo a\na\n$ echo $((3 +\\\n4))\n7\n", None, True),
        ("$ echo a\n$ echo b\nc\n", None, False),
        ("$ false\n", None, False),
        ("echo a", "a", True),
        ("echo a", "b", False),
    ):
        block = Block("page.md", 1, "console" if text.startswith("$") else "sh", "", text)
        with (
            contextlib.nullcontext()
            if is_right
            else pytest.raises(BlockFailed, match=r"page\.md:1")
        ):
            run.run(block, expected)


def test_dots_in_what_a_page_shows_stand_for_any_text() -> None:
    assert is_as_shown("a 1\nb\nc 2\n", "a ...\n...\nc 2")
    assert not is_as_shown("a 1\nb\nc 2\n", "a ...\nb")


def test_blocks_and_their_markers_are_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- background -->\n\n```sh\na\n```\n\n- b\n\n  ```text\n  c\n  ```\n")
    assert [*blocks_of(page)] == [
        Block("page.md", 3, "sh", "background", "a\n"),
        Block("page.md", 9, "text", "", "c\n"),
    ]

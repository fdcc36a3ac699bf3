"""Errors about files name the path: sentences of the storage, and of calls on descriptors."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import Any

import pytest

from pyxbroker.auth.secrets import read_secret, secret_name
from pyxbroker.auth.signing_keys import load_secret_key
from pyxbroker.auth.token import TokenProvider
from pyxbroker.base.directories import sync_directory, write_whole_file
from pyxbroker.base.properties import ConfigError
from pyxbroker.bookie.layout import Layout
from pyxbroker.settings.config import Config

NATIVE = Path(__file__).parent.parent / "src" / "bookie_native"
LAYOUT = Layout(Path("/d"), Path("/d/journal"), Path("/d/ledgers"), None)
WITHOUT_A_FILE = {
    " (and % more like it in the last % s)",  # behind a sentence
    "%u more events were dropped, because they arrived faster than they were read",
    "out of memory",
    "memory is available again",
    "not enough memory to store more; retrying",
    "the write cache can be flushed again",
}


def storage_sentences() -> list[str]:
    """Return the formats of the sentences that the storage makes for the operator."""
    found = []
    for source in sorted(NATIVE.glob("*.c")):
        for call in re.findall(r"\b(?:events_add|snprintf)\((?:.|\n)*?\);\n", source.read_text()):
            if call.startswith(("events_add(events *", "snprintf(name", "snprintf(which")):
                continue
            text = re.sub(r'%016" PRIx64 "', "0" * 16, call)
            found.append("".join(re.findall(r'"((?:[^"\\]|\\.)*)"', text)))
    return found


def test_each_sentence_of_the_storage_leads_to_a_path() -> None:
    sentences = storage_sentences()
    assert len(sentences) > 30
    without = [
        each
        for each in sentences
        if each not in WITHOUT_A_FILE and LAYOUT.path_in(each) is None and not _has_a_name(each)
    ]
    assert without == []


def _has_a_name(sentence: str) -> bool:
    """Return True for a format whose file or directory is an argument."""
    return sentence.startswith(("%s", "directory %s"))


@pytest.mark.parametrize(
    ("sentence", "path"),
    [
        ("entry log 000000000000000a.log cannot be read: x", "ledgers/000000000000000a.log"),
        (
            "journal file 000000000000000a.journal: a write",
            "journal/000000000000000a.journal",
        ),
        ("journal.manifest cannot be read: x", "journal/journal.manifest"),
        ("the manifest of entry logs cannot be read: x", "ledgers/manifest"),
        ("the journal directory cannot be read: x", "journal"),
        ("the ledger directory cannot be read: x", "ledgers"),
    ],
)
def test_a_sentence_has_the_path_of_the_file_that_it_names(sentence: str, path: str) -> None:
    assert LAYOUT.path_in(sentence) == Path("/d") / path
    with_path = LAYOUT.with_paths(sentence)
    assert f"/d/{path} " in with_path or f"/d/{path}:" in with_path
    assert LAYOUT.with_paths(with_path.replace("the ", "")) == with_path.replace("the ", "")


def fail(*arguments: Any) -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_failed_write_or_sync_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for call in ("pwrite", "fsync"):
        with monkeypatch.context() as broken:
            broken.setattr(f"pyxbroker.base.directories.os.{call}", fail)
            with pytest.raises(OSError, match=re.escape(str(tmp_path / "file.tmp"))):
                write_whole_file(tmp_path / "file", b"x")
    monkeypatch.setattr("pyxbroker.base.directories.os.fsync", fail)
    with pytest.raises(OSError, match=re.escape(str(tmp_path))):
        sync_directory(tmp_path)


@pytest.mark.parametrize("form", ["{}", "file://{}", "file:{}"])
def test_a_key_that_cannot_be_read_is_named_with_its_path(tmp_path: Path, form: str) -> None:
    path = tmp_path / "secret.key"
    value = form.format(path)
    with pytest.raises(ConfigError) as raised:
        TokenProvider(Config(tokenSecretKey=value))
    assert str(raised.value) == (
        f"tokenSecretKey: {path} cannot be read: No such file or directory."
    )
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match=re.escape(f"tokenSecretKey ({path}) has 40 bits")):
        TokenProvider(Config(tokenSecretKey=value))


def test_a_path_without_its_file_is_never_taken_for_a_secret_in_base64(tmp_path: Path) -> None:
    folder = tmp_path / "keys"
    folder.mkdir()
    value = str(folder / "key")
    value += "k" * (-len(value) % 4)  # so that it is base64, where no other character is in it
    with pytest.raises(ConfigError, match="cannot be read"):
        read_secret("tokenSecretKey", value)


def test_a_secret_is_never_repeated() -> None:
    for secret in ("/not/base64!", "s3cret!", "data:s3cret", "/s3cretfile"):
        assert secret_name("tokenSecretKey", secret) == "tokenSecretKey"
    with pytest.raises(ConfigError) as raised:
        read_secret("tokenSecretKey", "/s3cret!")
    assert "s3cret" not in str(raised.value)
    with pytest.raises(ConfigError) as raised:
        load_secret_key("tokenSecretKey", b"s3cret")
    assert "s3cret" not in str(raised.value)

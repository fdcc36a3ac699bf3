"""Configuration files of Pulsar's: read as Java reads them, and used as they are."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import wire
from harness.raw import RawConnection

from command_line import complaints, standalone
from pyxbroker.base.properties import ConfigError, read_properties
from pyxbroker.settings import java_keys
from pyxbroker.settings.config import SCHEMA, Config
from pyxbroker.settings.names import (
    ALIASES,
    CONFIGURATION_STORES,
    OLDER,
    STANDALONE_ALIASES,
    WITHOUT_EFFECT,
)

FILES = 300
READER = """
import java.io.*; import java.nio.file.*; import java.util.*;
public class Reader {
    public static void main(String[] files) throws Exception {
        for (String file : files) {
            // In their order, as often as they come.
            List<String> pairs = new ArrayList<>();
            Properties properties = new Properties() {
                public synchronized Object put(Object key, Object value) {
                    pairs.add(hex(key) + "=" + hex(value));
                    return null;
                }
            };
            try (InputStream in = Files.newInputStream(Path.of(file))) {
                properties.load(in);
                System.out.println(String.join(" ", pairs));
            } catch (IllegalArgumentException e) {
                System.out.println("refused");
            }
        }
    }
    static String hex(Object text) {
        StringBuilder found = new StringBuilder();
        for (char c : ((String) text).toCharArray()) found.append(String.format("%04x", (int) c));
        return found.toString();
    }
}
"""
# What means something to the format, and what only looks so.
PIECES = (
    *("\\", "\\\\", "\\\n", "\\\r\n", "\n", "\r", "\r\n", " ", "\t", "\f", "=", ":", "#", "!", "a"),
    *(
        "key",
        "value",
        "1,2",
        "\\u0041",
        "\\u00e4",
        "\\ud83d\\ude00",
        "\\u12",
        "\\t",
        "\\q",
        "\\:",
        "\\=",
    ),
    *("\xe4", "\x85", "\xa0", "\x0b", "\x1c", "\n\n", "\n  # no comment", "\n\\"),
)


@pytest.fixture(scope="module")
def java_reader(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("reader") / "Reader.java"
    place.write_text(READER)
    assert shutil.which("java"), "a JDK is needed: the tests of interop want it, too"
    return place


def of_units(text: str) -> str:
    """As Java counts characters."""
    return text.encode("utf-16-be", "surrogatepass").hex()


@pytest.mark.interop
def test_files_are_read_as_java_reads_them(java_reader: Path, tmp_path: Path) -> None:
    chance = random.Random(10)
    files = []
    for number in range(FILES):
        path = tmp_path / f"{number}.conf"
        path.write_bytes("".join(chance.choices(PIECES, k=chance.randint(1, 40))).encode("latin-1"))
        files.append(path)
    command = ["java", str(java_reader), *map(str, files)]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    assert len(told) == FILES
    refused = 0
    for path, expected in zip(files, told, strict=True):
        try:
            pairs = [(key, value) for _, key, value in read_properties(path)]
        except ConfigError as error:
            # Half a character is one for Java, and can be written nowhere.
            is_half = "half of a surrogate pair" in str(error)
            assert is_half or expected == "refused", path.read_bytes()
            refused += 1
            continue
        found = " ".join(f"{of_units(key)}={of_units(value)}" for key, value in pairs)
        assert found == expected, path.read_bytes()
    assert 0 < refused < FILES // 2


def every_key() -> dict[str, str]:
    """Each key that Pulsar's files may have, with Pulsar's value or ours."""
    values = {key: each[0] for key, each in java_keys.DEFAULTS.items() if each[0] != "*"}
    values |= dict.fromkeys(java_keys.OF_BOOKIES, "1")
    values |= dict.fromkeys((*ALIASES, *STANDALONE_ALIASES, *CONFIGURATION_STORES), "")
    values |= dict.fromkeys(WITHOUT_EFFECT, "1")
    values |= {key: default for key, (_, default) in OLDER.items()}
    for key, row in SCHEMA.items():
        shown = "" if row.default is None else str(row.default)
        values[key] = shown.lower() if isinstance(row.default, bool) else shown
    return values


@pytest.mark.parametrize("older", ["-1", ""])
def test_a_file_with_every_key_of_pulsars_is_used_as_it_is(tmp_path: Path, older: str) -> None:
    values = every_key()
    # Pulsar's own files have older names beside the current ones, with nothing or with -1.
    values |= {"zooKeeperSessionTimeoutMillis": older, "zooKeeperOperationTimeoutSeconds": older}
    assert len(values) > 600
    conf = tmp_path / "broker.conf"
    head = "#\n# Of an aren\u2019t\n#\n\n### --- General --- ###\n\n"
    lines = [f"# About {key}\n# {key}=commented\n{key}={value}\n" for key, value in values.items()]
    conf.write_text(head + "\n".join(lines), "utf-8")
    config = Config.load(conf)
    assert config.changed() == {}
    assert not (config.ignored.wanted or config.ignored.unknown or config.ignored.repeated)
    with standalone(tmp_path / "data", "--config", str(conf)) as broker:
        err = broker.stop()[2]
    assert complaints(err) == []
    [told] = [line for line in err.splitlines() if "settings of Pulsar have no effect here" in line]
    assert f"number={len(config.ignored.at_default)}" in told


def test_a_file_that_wants_more_copies_than_there_are_bookies_is_used_and_told(
    tmp_path: Path,
) -> None:
    """Pulsar's broker.conf wants two, and has no bookie of its own."""
    conf = tmp_path / "broker.conf"
    names = [f"managedLedgerDefault{each}" for each in ("EnsembleSize", "WriteQuorum", "AckQuorum")]
    conf.write_text("".join(f"{name}=2\n" for name in names))
    with standalone(tmp_path / "data", "--config", str(conf)) as broker:
        with RawConnection(broker.broker_port) as raw:
            raw.producer("persistent://public/default/t")
            raw.send(b"x", 0)
            raw.expect(wire.SEND_RECEIPT)
        err = broker.stop()[2]
    [warning] = complaints(err)
    assert "there is one bookie" in warning
    assert all(f"{name}=2" in warning for name in names)


def test_what_java_writes_is_read_again(tmp_path: Path) -> None:
    """As Properties.store() escapes it."""
    conf = tmp_path / "stored.conf"
    conf.write_text(
        "#Mon Nov 23 20:00:00 UTC 2026\nsuperUserRoles=a\\u00e4b\nadvertisedAddress=\\ host\\:1\n"
        "managedLedgerPassword=\\#\\!\\=\\\\\nmetadataStoreUrl=memory\\:h\n"
    )
    config = Config.load(conf)
    assert (config.superUserRoles, config.metadataStoreUrl) == ("a\xe4b", "memory:h")
    assert config.managedLedgerPassword == "#!=\\"
    assert json.dumps(config.advertisedAddress) in ('"host:1"', '" host:1"')


def test_a_line_that_ends_in_two_backslashes_goes_on_with_no_other(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("managedLedgerPassword=a\\\\\nmaxMessageSize=2000\n")
    config = Config.load(conf)
    assert (config.managedLedgerPassword, config.maxMessageSize) == ("a\\", 2000)

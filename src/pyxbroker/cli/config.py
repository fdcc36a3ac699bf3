"""`pyxbroker config`: the sample configuration file and the reference page, from the schema."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence

from pyxbroker.cli import Parser
from pyxbroker.settings import java_keys
from pyxbroker.settings.config import SECTIONS
from pyxbroker.settings.names import (
    ALIASES,
    CONFIGURATION_STORES,
    OLDER,
    OTHERWISE,
    WITHOUT_EFFECT,
)
from pyxbroker.settings.schema import Setting, Value

INTRODUCTION = """\
The keys are Apache Pulsar's and Apache BookKeeper's, with their meanings; Pulsar's own
`broker.conf` and `standalone.conf` can be used as they are.[^files] Later sources win:

1. the default below,
2. the file of `--config FILE`, which is read as Java reads Properties: `key=value`, `key: value`,
   `\\` at the end of a line that goes on, `\\uXXXX` for what ISO-8859-1 does not have,[^properties]
3. environment variables `PULSAR_PREFIX_<key>`, for example `PULSAR_PREFIX_webServicePort=8081`;
   one that has the name of a key without the prefix has no effect: a start warns of it, and is
   refused where the key is one of security and asks for more than is in force,[^bare]
4. options of the command line, such as `--web-port 8081` or `--set webServicePort=8081`.

A key that is not on this page is ignored, and told at start: keys of Pulsar's and BookKeeper's with
the value that they have by themselves in one line, those that ask for something in a warning, and
those that nobody knows in another one, mistyped ones with the key that may have been meant. A value
that cannot be used stops the start with its place, its key and what was expected. Where 0 is no
limit, or off, a negative number means the same, as in Pulsar; where -1 is no limit, so does any
lower number.[^off]

*Dynamic* are the settings that REST changes while a broker runs
(`POST /admin/v2/brokers/configuration/{name}/{value}`). It takes all names that Pulsar takes there;
those without an effect here are at the end of this page.[^dynamic]
"""

STORES = """\
As Pulsar's standalone, this one has a metadata store of its own. A file or an environment that
names another one, with `metadataStoreUrl` or an older name of it, or with {stores},
is passed over with a warning. `--metadata` names another store, for all metadata. In a file
`metadataStoreUrl` counts where it is `embedded:PATH` or `memory:NAME`.[^stores]"""

NOTES = """
[^files]: `tests/test_pulsar_files.py::test_a_file_with_every_key_of_pulsars_is_used_as_it_is`
[^properties]: `tests/test_pulsar_files.py::test_files_are_read_as_java_reads_them`
[^bare]: `tests/test_config.py::test_a_bare_security_variable_refuses_the_start`
[^dynamic]: `compat_tests/test_admin_settings.py::test_all_names_of_pulsars_can_be_set`
[^off]: `tests/test_special_values.py::test_each_value_that_pulsars_files_describe_is_taken`
[^stores]: `tests/test_config.py::test_a_store_that_a_file_names_is_passed_over`
"""

ABOUT = """\
Print every setting with its default and its meaning.

Example:
  pyxbroker config > my.conf      # then change what you need
  pyxbroker standalone --config my.conf
"""


def format_value(value: Value) -> str:
    """The value as it is written in a file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def sample() -> str:
    """A configuration file with every setting at its default, each explained."""
    lines = ["# Settings of pyxbroker. Each line shows a default: delete the # and change it."]
    for title, rows in SECTIONS.items():
        lines += ["", f"### {title}"]
        for key, row in rows.items():
            about = f"{row.doc} ({row.expected()})"
            lines += ["", *(f"# {line}" for line in textwrap.wrap(about, 96))]
            lines.append(f"#{key}={format_value(row.default)}")
    return "\n".join(lines) + "\n"


def markdown() -> str:
    """The reference page of all settings."""
    lines = ["# Settings", "", "Written by `pyxbroker config --markdown`.", "", INTRODUCTION]
    for title, rows in SECTIONS.items():
        lines += [f"\n## {title}\n", "| key | default | meaning |", "|---|---|---|"]
        lines += [_row(key, row) for key, row in rows.items()]
    lines += ["", "## Other names", ""]
    lines += ["These keys are read as the ones beside them.", ""]
    lines += [f"- `{old}`: `{new}`" for old, new in ALIASES.items()]
    lines += ["", "## Deprecated names", ""]
    lines += [
        "Pulsar has newer names for these. They are taken, and a start warns of those that ask"
    ]
    lines += ["for something:", ""]
    lines += [f"- `{older}`: {newer}" for older, (newer, _) in OLDER.items()]
    lines += ["", "`tlsEnabled=true` without a port that speaks TLS refuses the start."]
    lines += ["", "## Metadata stores of files", ""]
    stores = ", ".join(f"`{key}`" for key in sorted(CONFIGURATION_STORES))
    lines += [STORES.format(stores=stores)]
    lines += ["", "## Accepted, without effect", ""]
    lines += ["These are taken silently. What they govern in Pulsar is done another way here:", ""]
    lines += [f"- `{key}`: {why}" for key, why in OTHERWISE.items()]
    lines += ["", "And these are about the insides of the Java programs:", ""]
    words = ", ".join(f"`{key}`" for key in sorted(WITHOUT_EFFECT - OTHERWISE.keys()))
    lines += textwrap.wrap(words, 98, break_long_words=False)
    lines += ["", "## Dynamic, without effect", ""]
    lines += [
        "REST takes these names of Pulsar's, too, lists and stores them; they change nothing:"
    ]
    words = ", ".join(f"`{key}`" for key in sorted(java_keys.STORED))
    lines += ["", *textwrap.wrap(words, 98, break_long_words=False)]
    return "\n".join(lines) + "\n" + NOTES


def _row(key: str, row: Setting) -> str:
    default = format_value(row.default)
    shown = f"`{default}`" if default else "(empty)"
    unit = f" {row.unit}" if row.unit else ""
    choices = f" One of {', '.join(row.choices)}." if row.choices else ""
    dynamic = " *Dynamic.*" if row.dynamic else ""
    return f"| `{key}` | {shown}{unit} | {row.doc}{choices}{dynamic} |"


def command(arguments: Sequence[str]) -> None:
    parser = Parser("config", ABOUT)
    for form, about in (
        ("sample", "A sample file, as without an option."),
        ("markdown", "The reference page."),
    ):
        parser.options.add_argument(
            f"--{form}", dest="form", action="store_const", const=form, help=about
        )
    form = parser.parse(arguments).form
    sys.stdout.write(markdown() if form == "markdown" else sample())

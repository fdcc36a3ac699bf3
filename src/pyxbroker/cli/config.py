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
    STANDALONE_ALIASES,
    WITHOUT_EFFECT,
)
from pyxbroker.settings.schema import Setting, Value

INTRODUCTION = """\
The keys and their meanings are those of Apache Pulsar and Apache BookKeeper. Pulsar's own
`broker.conf` and `standalone.conf` work unchanged. Later sources override earlier ones:

1. the default below;
2. the file given with `--config FILE`, in the format of Java's Properties: `key=value` or
   `key: value`, `\\` at the end of a line to continue it, `\\uXXXX` for characters outside
   ISO-8859-1;
3. environment variables `PULSAR_PREFIX_<key>`, for example `PULSAR_PREFIX_webServicePort=8081`.
   A variable named like a key but without the prefix has no effect, and the broker logs a warning.
   If it is a security setting that asks for more protection than the one in force, the broker
   refuses to start;
4. options of the command line, such as `--web-port 8081` or `--set webServicePort=8081`;
5. dynamic settings that were changed by REST, also after a restart. The broker lists them in a
   warning when it starts.

The broker ignores keys that are not on this page and reports them when it starts. It lists keys of
Pulsar and BookKeeper with their default value in one line, and those with another value in a
warning. A second warning lists unknown keys, each with the key that was probably meant. An invalid
value stops the start with an error that names the place, the key and the accepted values. Where 0
means "no limit" or "off", so does a negative number, as in Pulsar. Where -1 means "no limit", so
does any lower number.

*Dynamic* settings can be changed by REST while a broker runs
(`POST /admin/v2/brokers/configuration/{name}/{value}`). REST accepts all names that Pulsar accepts
there; those without an effect here are listed at the end of this page.
"""

STORES = """\
Like Pulsar's standalone, pyxbroker has a metadata store of its own. If a file or the environment
names another one, with `metadataStoreUrl`, with an older name of it, or with
{stores},
the broker ignores it and logs a warning. `--metadata` selects another store for all metadata. In a
file, `metadataStoreUrl` counts only if it is `embedded:PATH` or `memory:NAME`."""

BOOKKEEPER = """\
These keys of Pulsar, and all keys with the prefix `bookkeeper_` that are not listed above, have no
effect. The log names them, as a warning if they have another value than Pulsar's default.
`pyxbroker broker` refuses to start with `bookkeeperClientAuthenticationPlugin`: it would connect to
bookies without authentication."""

NOTES = """
## Evidence

The statements of this page, and the tests and commands that show them, by section.

**Settings**

- "`broker.conf` and `standalone.conf` work unchanged":
  `tests/test_pulsar_files.py::test_a_file_with_every_key_of_pulsars_is_used_as_it_is`
- "in the format of Java's Properties":
  `tests/test_pulsar_files.py::test_files_are_read_as_java_reads_them`
- "asks for more protection than the one in force, the broker refuses to start":
  `tests/test_config.py::test_a_bare_security_variable_refuses_the_start`
- "The broker lists them in a warning when it starts",
  "REST accepts all names that Pulsar accepts there":
  `compat_tests/test_admin_settings.py::test_all_names_of_pulsars_can_be_set`
- "so does any lower number":
  `tests/test_special_values.py::test_each_value_that_pulsars_files_describe_is_taken`

**Metadata stores named in files**

- "the broker ignores it and logs a warning":
  `tests/test_config.py::test_a_store_that_a_file_names_is_passed_over`
"""

ABOUT = """\
Print every setting with its default and its meaning.

Example:
  pyxbroker config > my.conf      # then change what you need
  pyxbroker standalone --config my.conf
"""


def format_value(value: Value) -> str:
    """Return the text of a value in a configuration file."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


def sample() -> str:
    """Return a configuration file with every setting, its default and its description."""
    lines = ["# Settings of pyxbroker. Each line shows a default: delete the # and change it."]
    for title, rows in SECTIONS.items():
        lines += ["", f"### {title}"]
        for key, row in rows.items():
            about = f"{row.doc} ({row.expected()})"
            lines += ["", *(f"# {line}" for line in textwrap.wrap(about, 96))]
            lines.append(f"#{key}={format_value(row.default)}")
    return "\n".join(lines) + "\n"


def markdown() -> str:
    """Return the reference page of all settings."""
    lines = ["# Settings", "", "Written by `pyxbroker config --markdown`.", "", INTRODUCTION]
    for title, rows in SECTIONS.items():
        lines += [f"\n## {title}\n", "| key | default | meaning |", "|---|---|---|"]
        lines += [_row(key, row) for key, row in rows.items()]
    lines += ["", "## Other names", ""]
    lines += ["Each of these keys sets the key next to it.", ""]
    lines += [f"- `{old}`: `{new}`" for old, new in ALIASES.items()]
    lines += [f"- `{old}`: `{new}`, in standalone" for old, new in STANDALONE_ALIASES.items()]
    lines += ["", "## Deprecated names", ""]
    lines += [
        "Pulsar has newer names for these keys. The broker accepts them and logs a warning if one",
        "has a value other than its default:",
        "",
    ]
    lines += [f"- `{older}`: {newer}" for older, (newer, _) in OLDER.items()]
    lines += ["", "With `tlsEnabled=true` and no TLS port, the broker refuses to start."]
    lines += ["", "## Metadata stores named in files", ""]
    stores = ", ".join(f"`{key}`" for key in sorted(CONFIGURATION_STORES))
    lines += [STORES.format(stores=stores)]
    lines += ["", "## Accepted, without effect", ""]
    lines += ["These keys are accepted silently. Their mechanisms work differently here:", ""]
    lines += [f"- `{key}`: {why}" for key, why in OTHERWISE.items()]
    lines += ["", "The following keys are about internals of the Java programs:", ""]
    words = ", ".join(f"`{key}`" for key in sorted(WITHOUT_EFFECT - OTHERWISE.keys()))
    lines += textwrap.wrap(words, 98, break_long_words=False)
    lines += ["", "## BookKeeper's client, without effect", ""]
    lines += [BOOKKEEPER]
    words = ", ".join(sorted(f"`{key}`" for key in java_keys.DEFAULTS if key.startswith("bookk")))
    lines += ["", *textwrap.wrap(words, 98, break_long_words=False)]
    lines += ["", "## Dynamic, without effect", ""]
    lines += ["REST accepts, lists and stores these names of Pulsar, too. They have no effect:"]
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
        ("sample", "Print a sample file (default)."),
        ("markdown", "Print the reference page."),
    ):
        parser.options.add_argument(
            f"--{form}", dest="form", action="store_const", const=form, help=about
        )
    form = parser.parse(arguments).form
    sys.stdout.write(markdown() if form == "markdown" else sample())

#!/usr/bin/python3
"""Writes settings of the environment into configuration files: apply-config-from-env.py FILE...

A variable with the name of a setting that the file has, also as a comment, replaces its line. A
variable PULSAR_PREFIX_name does the same, and adds the setting if the file does not have it. Values
of passwords, tokens and secrets are not printed.
"""

import os
import re
import sys
from pathlib import Path

PREFIX = "PULSAR_PREFIX_"
LINE = re.compile(r"#?([A-Za-z_][\w.-]*) *=")
SECRET = re.compile(r"password|token|secret", re.IGNORECASE)


def apply(path: Path, environment: "dict[str, str]") -> None:
    """Write the settings into one file."""
    lines = path.read_text("latin-1").splitlines()
    places = {}
    for number, line in enumerate(lines):
        found = LINE.match(line)
        if found and (found[1] not in places or not line.startswith("#")):
            places[found[1]] = number
    for variable, value in sorted(environment.items()):
        name = variable[len(PREFIX) :] if variable.startswith(PREFIX) else variable
        if name not in places and name == variable:
            continue
        value = value.strip()
        shown = "********" if SECRET.search(name) else value
        print(f"[{path}] Applying config {name} = {shown}")
        if name not in places:
            places[name] = len(lines)
            lines.append("")
        lines[places[name]] = f"{name}={value}"
    # As in Java's properties: other characters are \uXXXX.
    path.write_bytes(("\n".join(lines) + "\n").encode("latin-1", "backslashreplace"))


def main() -> None:
    """Apply the environment to the files of the command line."""
    if len(sys.argv) < 2:
        sys.exit(f"Usage: {sys.argv[0]} FILE...")
    for name in sys.argv[1:]:
        apply(Path(name), dict(os.environ))


if __name__ == "__main__":
    main()

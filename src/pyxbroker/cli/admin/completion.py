"""Completion of names in bash, zsh and fish.

The script of a shell runs `pyxbroker admin complete WORDS`, which prints the names that may stand
in place of the last word.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pyxbroker.cli import COMMANDS as TOP
from pyxbroker.cli import Parser, fail
from pyxbroker.cli.admin import COMMANDS, GROUPS, admin_parser
from pyxbroker.cli.admin.running import command_parser, table_of

SCRIPTS = {
    "bash": """\
_pyxbroker() {
    local IFS=$'\\n'
    COMPREPLY=($(pyxbroker admin complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _pyxbroker pyxbroker""",
    "zsh": """\
#compdef pyxbroker
_pyxbroker() {
    local -a names
    names=("${(@f)$(pyxbroker admin complete -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -a names || _files
}
compdef _pyxbroker pyxbroker""",
    "fish": """\
function __pyxbroker_names
    set -l words (commandline -opc) (commandline -ct)
    pyxbroker admin complete -- $words[2..-1] 2>/dev/null
end
complete -c pyxbroker -f -a '(__pyxbroker_names)'""",
}
ABOUT = """\
Print a script that completes the names of groups, commands and options.

  bash: eval "$(pyxbroker admin completion bash)"       in ~/.bashrc
  zsh:  eval "$(pyxbroker admin completion zsh)"        in ~/.zshrc, behind compinit
  fish: pyxbroker admin completion fish | source        in config.fish
"""


def command(name: str, words: Sequence[str]) -> None:
    if name == "complete":
        print("\n".join(names_for([each for each in words if each != "--"])))
        return
    parser = Parser("admin completion", ABOUT, "[OPTIONS] SHELL")
    parser.add_argument("shell", metavar="SHELL", help=f"{', '.join(SCRIPTS)}.")
    shell = parser.parse(words).shell
    if shell not in SCRIPTS:
        fail(f"There is no completion for {shell}; expected {', '.join(SCRIPTS)}.", 2)
    print(SCRIPTS[shell])


def names_for(words: Sequence[str]) -> list[str]:
    """Return what may stand in place of the last word."""
    before, last = (words[:-1], words[-1]) if words else ((), "")
    return [each for each in _names_after(before) if each.startswith(last)]


def _names_after(words: Sequence[str]) -> Iterator[str]:
    if not words:
        yield from TOP
        return
    if words[0] != "admin":
        return
    parser = admin_parser()
    rest = _without_options(parser, words[1:])
    if rest is None:
        return
    if not rest:
        yield from (*GROUPS, *COMMANDS)
        yield from parser.names
    elif rest[0] in GROUPS:
        commands = table_of(rest[0])
        if len(rest) == 1:
            yield from commands
        elif rest[1] in commands:
            yield from command_parser(rest[0], rest[1], commands[rest[1]]).names
    elif rest == ["completion"]:
        yield from SCRIPTS


def _without_options(parser: Parser, words: Sequence[str]) -> list[str] | None:
    """Return the words from the group on; None: the last word is the value of an option."""
    at = 0
    while at < len(words) and words[at].startswith("-"):
        takes_value = parser.takes_value(words[at])
        at += 2 if takes_value and "=" not in words[at] else 1
    return None if at > len(words) else list(words[at:])

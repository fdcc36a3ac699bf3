"""A file of ours as tokens and statements: Python, Cython and C alike, so that an operator is
written once.

It is no parser: it knows strings, comments and brackets, where a statement begins and ends, what is
the condition of an `if`, and in which function that is. What it takes for something else than it is
makes a mutant that does not compile, and another one is drawn.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from dataclasses import dataclass, field
from pathlib import Path

C_TOKEN = re.compile(
    r"""(?P<space>[ \t\f]+|\\\n|//[^\n]*|/\*.*?\*/)
      | (?P<newline>\n)
      | (?P<string>"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*')
      | (?P<number>(?:0[xX][0-9a-fA-F]+|\d+\.?\d*(?:[eE][+-]?\d+)?)[uUlLfF]*)
      | (?P<name>[A-Za-z_]\w*)
      | (?P<op><<=|>>=|\.\.\.|->|\+\+|--|<<|>>|<=|>=|==|!=|&&|\|\||[-+*/%&|^]=|.)""",
    re.VERBOSE | re.DOTALL,
)
PYTHON_TOKEN = re.compile(
    r"""(?P<space>[ \t\f]+|\\\n|\#[^\n]*)
      | (?P<newline>\n)
      | (?P<string>[rRbBuUfF]{0,2}(?:\"\"\"(?:\\.|[^\\])*?\"\"\"|'''(?:\\.|[^\\])*?'''
                   |"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'))
      | (?P<number>0[xX][0-9a-fA-F_]+|\d[\d_]*\.?\d*(?:[eE][+-]?\d+)?)
      | (?P<name>[^\W\d]\w*)
      | (?P<op>\*\*=|//=|<<=|>>=|\.\.\.|->|:=|\*\*|//|<<|>>|<=|>=|==|!=|[-+*/%&|^@]=|.)""",
    re.VERBOSE | re.DOTALL,
)
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")
C_HEADS = ("if", "while", "for", "switch")
LANGUAGES = {".py": "python", ".pyx": "cython", ".c": "c"}


@dataclass(frozen=True)
class Token:
    kind: str  # name, number, string, op
    text: str
    start: int  # offset in the file
    end: int


@dataclass
class Statement:
    """A statement, or the head of one that has a body: `if`, `for`, `def`..."""

    tokens: list[Token]
    is_head: bool
    block: int  # statements of the same block, and no other ones, have this number
    place: int  # its index among the statements of its block
    function: str  # dotted; "" outside of all
    condition: tuple[int, int] | None = None  # of an `if`: where it begins and ends
    is_braced: bool = field(default=True)  # C: not the only statement of a head without braces

    @property
    def start(self) -> int:
        return self.tokens[0].start

    @property
    def end(self) -> int:
        return self.tokens[-1].end

    @property
    def first(self) -> str:
        return self.tokens[0].text


class Source:
    """The text of a file, and its statements in order."""

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self.text = text
        self.language = LANGUAGES[Path(path).suffix]
        self._lines = [0, *(match.end() for match in re.finditer("\n", text))]
        scan = _scan_c if self.language == "c" else _scan_python
        self.statements = scan(text)
        self._firsts = [self.line_of(each.start) for each in self.statements]

    def line_of(self, offset: int) -> int:
        """From 1 on."""
        return bisect_right(self._lines, offset)

    def function_at(self, line: int) -> str:
        """The function that a code object which begins on that line is, or is part of (a lambda).

        A decorator is where its function begins.
        """
        if not self.statements:
            return ""
        index = max(bisect_right(self._firsts, line) - 1, 0)
        while self.statements[index].first == "@" and index + 1 < len(self.statements):
            index += 1
        statement = self.statements[index]
        name = _name_of_definition(statement.tokens) if statement.is_head else ""
        return ".".join(each for each in (statement.function, name) if each)


def depths(tokens: list[Token]) -> list[int]:
    """In how many brackets each token is; a bracket itself is outside of what it encloses."""
    result, depth = [], 0
    for token in tokens:
        if token.kind == "op" and token.text in CLOSING:
            depth -= 1
        result.append(depth)
        if token.kind == "op" and token.text in OPENING:
            depth += 1
    return result


def closing_of(tokens: list[Token], index: int) -> int:
    """The index of the bracket that closes the one at an index."""
    depth = 0
    for at in range(index, len(tokens)):
        if tokens[at].kind == "op":
            depth += (tokens[at].text in OPENING) - (tokens[at].text in CLOSING)
            if depth == 0:
                return at
    return len(tokens) - 1


# --- Python and Cython --------------------------------------------------------------------------


def _logical_lines(text: str) -> list[tuple[int, list[Token]]]:
    """Each with how far it is indented."""
    lines: list[tuple[int, list[Token]]] = []
    tokens: list[Token] = []
    depth = 0
    for match in PYTHON_TOKEN.finditer(text):
        kind = match.lastgroup
        if kind == "newline" and depth == 0 and tokens:
            start = tokens[0].start
            lines.append((start - text.rfind("\n", 0, start) - 1, tokens))
            tokens = []
        if kind in ("space", "newline") or kind is None:
            continue
        tokens.append(Token(kind, match[0], match.start(), match.end()))
        if kind == "op":
            depth += (match[0] in OPENING) - (match[0] in CLOSING)
    return lines


def _name_of_definition(tokens: list[Token]) -> str:
    """The name that a head defines, or ""."""
    words = [token.text for token in tokens]
    if words[0] in ("async", "def", "cdef", "cpdef", "class"):
        for word in ("def", "class"):
            if word in words:
                return words[words.index(word) + 1]
        if words[0] != "async" and "(" in words:  # `async with` and `async for` define nothing
            return words[words.index("(") - 1]
    return ""


def _scan_python(text: str) -> list[Statement]:
    statements: list[Statement] = []
    # What encloses the statement: its indent, the name it defines, its block.
    open_blocks: list[tuple[int, str, int]] = []
    blocks, places = 0, [0]
    for indent, tokens in _logical_lines(text):
        while open_blocks and open_blocks[-1][0] >= indent:
            open_blocks.pop()
        block = open_blocks[-1][2] if open_blocks else 0
        is_head = tokens[-1].text == ":" and tokens[-1].kind == "op"
        function = ".".join(name for _, name, _ in open_blocks if name)
        statement = Statement(tokens, is_head, block, places[block], function)
        places[block] += 1
        if is_head:
            blocks += 1
            places.append(0)
            name = _name_of_definition(tokens)
            open_blocks.append((indent, name, blocks))
            if tokens[0].text in ("if", "elif") and len(tokens) > 2:
                statement.condition = (tokens[1].start, tokens[-2].end)
        statements.append(statement)
    return statements


# --- C --------------------------------------------------------------------------------------------


def _tokens_of_c(text: str) -> list[Token]:
    """Without the lines of the preprocessor."""
    tokens: list[Token] = []
    at_line_start, at = True, 0
    while at < len(text):
        match = C_TOKEN.match(text, at)
        assert match is not None
        kind = match.lastgroup
        if at_line_start and match[0] == "#":
            directive = re.compile(r"(?:\\\n|[^\n])*").match(text, at)
            assert directive is not None
            at = directive.end()
            continue
        at = match.end()
        if kind == "newline":
            at_line_start = True
        elif kind is not None and kind != "space":
            at_line_start = False
            tokens.append(Token(kind, match[0], match.start(), match.end()))
    return tokens


def _scan_c(text: str) -> list[Statement]:
    tokens = _tokens_of_c(text)
    statements: list[Statement] = []
    blocks, places = 0, [0]
    open_blocks = [0]
    function = ""
    braced = True
    begin, index = 0, 0

    def add(last: int, is_head: bool) -> Statement:
        nonlocal begin
        block = open_blocks[-1]
        part = tokens[begin : last + 1]
        statement = Statement(part, is_head, block, places[block], function, None, braced)
        places[block] += 1
        statements.append(statement)
        begin = last + 1
        return statement

    while index < len(tokens):
        word = tokens[index].text
        if index == begin and word in C_HEADS:
            last = closing_of(tokens, index + 1)
            head = add(last, True)
            if word == "if":
                head.condition = (tokens[index + 2].start, tokens[last - 1].end)
            braced = False
            index = last
        elif index == begin and word in ("else", "do"):
            begin, braced = index + 1, False
        elif index == begin and word in ("case", "default"):
            while tokens[index].text != ":":
                index += 1
            begin = index + 1
        elif word == "{" and (
            index == begin or (function == "" and _is_function(tokens, begin, index))
        ):
            if index > begin:
                function = tokens[_name_index(tokens, begin)].text
                add(index - 1, True)
            blocks += 1
            places.append(0)
            open_blocks.append(blocks)
            begin, braced = index + 1, True
        elif word == "}" and index == begin:
            open_blocks.pop()
            begin, braced = index + 1, True
            if len(open_blocks) == 1:
                function = ""
        elif word in OPENING:
            index = closing_of(tokens, index)
        elif word == ";":
            add(index, False)
            braced = True
        index += 1
    return statements


def _name_index(tokens: list[Token], begin: int) -> int:
    """Of the name of a function whose head begins there."""
    index = begin
    while tokens[index + 1].text != "(":
        index += 1
    return index


def _is_function(tokens: list[Token], begin: int, brace: int) -> bool:
    words = [token.text for token in tokens[begin:brace]]
    return "(" in words and "=" not in words and words[-1] == ")"

"""What may be broken: each operator finds the places in a file where it applies, and what stands
there instead. They are the same for the three languages; the words differ.

Left alone is what no test should depend on: lines for the log, assertions, imports, types.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from mutants.sources import Source, Statement, Token, closing_of, depths

LIMIT = re.compile(r"max|limit|capacity|budget|room", re.IGNORECASE)
VERSION = re.compile(r"version|expected|epoch|generation|fence", re.IGNORECASE)
SYNC = re.compile(r"(?:^|_)f?(?:data)?sync(?:_|$)")
LOGGING = re.compile(r"(?:log|logger|events_\w+|print\w*|fprintf|snprintf)$")
INTEGER = re.compile(r"(0[xX][0-9a-fA-F_]+|\d[\d_]*)([uUlL]*)")
ASSIGNMENTS = ("=", "+=", "-=", "*=", "/=", "//=", "%=", "|=", "&=", "^=", "<<=", ">>=")
# A statement that begins with one of these is no call and no assignment of ours.
NO_EXPRESSION = frozenset(
    "import from cimport global nonlocal pass break continue return raise yield assert del if elif"
    " else while for try except finally with class def async cdef cpdef ctypedef @ lambda case goto"
    " static struct enum union typedef const extern inline _Static_assert void unsigned".split()
)
LEFT_ALONE = frozenset(
    "import from cimport @ assert ctypedef _Static_assert typedef extern global".split()
)
DEFINITIONS = frozenset("def cdef cpdef async class ctypedef static".split())
# Whether the arguments come in this order or in that one is nothing, or nothing but a type error.
NO_SWAP = frozenset("min max isinstance issubclass hasattr cast sizeof offsetof".split())


class Edit(NamedTuple):
    operator: str
    start: int
    end: int
    text: str
    function: str


class Words(NamedTuple):
    """How a language says it."""

    nothing: str  # a statement
    negated: str
    never: str
    always: str


WORDS = {
    "c": Words("(void)0;", "!({})", "0 && ({})", "1 || ({})"),
    "python": Words("pass", "not ({})", "False and ({})", "True or ({})"),
}
WORDS["cython"] = WORDS["python"]


def edits(source: Source) -> Iterator[Edit]:
    """Everything that may be broken in a file."""
    for statement in source.statements:
        if _is_left_alone(source, statement):
            continue
        for operator in OF_STATEMENTS:
            yield from operator(source, statement)
    yield from _swapped_statements(source)


def _is_left_alone(source: Source, statement: Statement) -> bool:
    tokens = statement.tokens
    if statement.first in LEFT_ALONE or tokens[0].kind == "string":
        return True
    if LOGGING.match(statement.first) and not statement.is_head:
        return True
    # Type aliases, and what only a type checker reads.
    words = {token.text for token in tokens}
    if words & {"TYPE_CHECKING", "TypeVar", "Literal", "Protocol", "PyModuleDef"}:
        return True
    return source.language == "c" and not statement.function and "(" in words


def _edit(name: str, statement: Statement, start: int, end: int, text: str) -> Edit:
    return Edit(name, start, end, text, statement.function)


def _assignment(tokens: list[Token]) -> int:
    """The index of the operator that assigns, or -1."""
    for index, depth in enumerate(depths(tokens)):
        if depth == 0 and tokens[index].kind == "op" and tokens[index].text in ASSIGNMENTS:
            return index
    return -1


def _is_call(source: Source, statement: Statement) -> bool:
    tokens = [each for each in statement.tokens if each.text != ";"]
    if statement.is_head or not tokens or _assignment(tokens) >= 0:
        return False
    if tokens[0].text == "await":
        tokens = tokens[1:]
    is_name = tokens[0].kind == "name" and tokens[0].text not in NO_EXPRESSION
    return bool(statement.function) and is_name and tokens[-1].text == ")" and len(tokens) > 2


def _is_assignment(source: Source, statement: Statement) -> bool:
    """An assignment that declares nothing."""
    tokens = statement.tokens
    at = _assignment(tokens)
    if statement.is_head or at < 1 or not statement.function or statement.first in NO_EXPRESSION:
        return False
    target = tokens[:at]
    if source.language == "c":
        return _declares_nothing(target)
    return tokens[0].kind == "name" and all(each.text != ":" for each in target)


def _declares_nothing(target: list[Token]) -> bool:
    """`a->b[i]` does not, `int a` and `page *a` do."""
    for one, other in itertools.pairwise(target):
        if (
            other.kind == "name"
            and (one.kind == "name" or one.text == "*")
            and one is not target[0]
        ):
            return False
        if one is target[0] and one.kind == "name" and (other.kind == "name" or other.text == "*"):
            return False
    return True


# --- what is left out -----------------------------------------------------------------------------


def _dropped_statement(source: Source, statement: Statement) -> Iterator[Edit]:
    nothing = WORDS[source.language].nothing
    whole = (statement.start, statement.end, nothing)
    if _is_call(source, statement):
        yield _edit("dropped call", statement, *whole)
    elif _is_assignment(source, statement):
        yield _edit("dropped assignment", statement, *whole)
    elif statement.first == "raise" and len(statement.tokens) > 1:
        yield _edit("dropped refusal", statement, *whole)


def _dropped_sync(source: Source, statement: Statement) -> Iterator[Edit]:
    """A call that makes something durable has happened and went well, as far as anyone knows."""
    tokens = statement.tokens
    if not statement.function or statement.first in DEFINITIONS:
        return
    for index, token in enumerate(tokens[:-1]):
        if token.kind != "name" or not SYNC.search(token.text) or tokens[index + 1].text != "(":
            continue
        first = index
        while first >= 2 and tokens[first - 1].text in (".", "->"):
            first -= 2
        if tokens[first].kind != "name":
            continue  # what is called is what another call returned
        if first > 0 and tokens[first - 1].text == "await":
            first -= 1
        if source.language == "c" and _is_definition(statement, first):
            continue
        last = closing_of(tokens, index + 1)
        text = "0" if source.language != "python" else "None"
        yield _edit("dropped sync", statement, tokens[first].start, tokens[last].end, text)


def _is_definition(statement: Statement, first: int) -> bool:
    """Whether the name at that index is one that is declared here."""
    before = statement.tokens[first - 1] if first else None
    if before is None:
        return statement.is_head
    return before.kind == "name" and before.text != "return"


# --- conditions -----------------------------------------------------------------------------------


def _conditions(source: Source, statement: Statement) -> Iterator[Edit]:
    if statement.condition is None:
        return
    start, end = statement.condition
    text, words = source.text[start:end], WORDS[source.language]
    yield _edit("wrong branch", statement, start, end, words.negated.format(text))
    yield _edit("always", statement, start, end, words.always.format(text))
    never = "ignored condition"
    if LIMIT.search(text):
        never = "removed limit"
    elif VERSION.search(text):
        never = "ignored version"
    yield _edit(never, statement, start, end, words.never.format(text))


CONNECTIVES = {"and": "or", "or": "and", "&&": "||", "||": "&&"}
OPPOSITES = {"==": "!=", "!=": "=="}
NEXT = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
SIGNS = {"+": "-", "-": "+"}


def _comparisons(source: Source, statement: Statement) -> Iterator[Edit]:
    tokens = statement.tokens
    casts = _casts(tokens) if source.language == "cython" else set()
    if not statement.function or (statement.first in DEFINITIONS and statement.is_head):
        return
    for index, token in enumerate(tokens):
        if token.text in CONNECTIVES and token.kind != "string":
            name, text = "wrong connective", CONNECTIVES[token.text]
        elif token.kind != "op" or index in casts:
            continue
        elif token.text in OPPOSITES:
            name, text = "wrong branch", OPPOSITES[token.text]
        elif token.text in NEXT:
            name, text = "off by one", NEXT[token.text]
        elif token.text in SIGNS and index and _ends_operand(tokens[index - 1]):
            name, text = "wrong sign", SIGNS[token.text]
        else:
            continue
        yield _edit(name, statement, token.start, token.end, text)


def _ends_operand(token: Token) -> bool:
    words = ("return", "in", "and", "or", "not", "if", "else", "case", "yield", "await")
    return (token.kind in ("name", "number") and token.text not in words) or token.text in (
        ")",
        "]",
    )


def _casts(tokens: list[Token]) -> set[int]:
    """Which `<` and `>` are those of a cast of Cython."""
    found: set[int] = set()
    for index, token in enumerate(tokens):
        if token.text == "<" and (index == 0 or not _ends_operand(tokens[index - 1])):
            last = index
            while last < len(tokens) and tokens[last].text != ">":
                last += 1
            found |= {index, last}
    return found


# --- values ---------------------------------------------------------------------------------------


def _constants(source: Source, statement: Statement) -> Iterator[Edit]:
    """One more than it should be; in the head of a definition that is a default."""
    for token in statement.tokens:
        match = INTEGER.fullmatch(token.text) if token.kind == "number" else None
        if match is not None:
            text = f"({match[1]}{match[2]} + 1)"
            yield _edit("off by one", statement, token.start, token.end, text)


def _returns(source: Source, statement: Statement) -> Iterator[Edit]:
    tokens = [each for each in statement.tokens if each.text != ";"]
    if statement.first != "return" or len(tokens) < 2:
        return
    start, end = tokens[1].start, tokens[-1].end
    text = source.text[start:end]
    for instead in _instead_of(source, statement, tokens[1:], text):
        yield _edit("replaced return", statement, start, end, instead)


def _instead_of(
    source: Source, statement: Statement, tokens: list[Token], text: str
) -> Iterator[str]:
    logic = {"==", "!=", "<", ">", "<=", ">=", "and", "or", "not", "&&", "||", "!", "in", "is"}
    outer = {t.text for t, depth in zip(tokens, depths(tokens), strict=True) if depth == 0}
    if text in ("True", "False"):
        yield str(text == "False")
    elif outer & logic and not (source.language == "cython" and outer & {"<", ">"}):
        yield WORDS[source.language].negated.format(text)
    elif source.language == "python":
        if text != "None":
            yield "None"
    elif text == "0":
        yield "-1"
    elif text not in ("None", "NULL"):
        yield "0"


def _swapped_arguments(source: Source, statement: Statement) -> Iterator[Edit]:
    tokens = statement.tokens
    if not statement.function or (statement.first in DEFINITIONS and statement.is_head):
        return
    for index, token in enumerate(tokens[:-1]):
        if token.kind != "name" or tokens[index + 1].text != "(" or token.text in NO_SWAP:
            continue
        if LOGGING.match(token.text) or token.text in NO_EXPRESSION or token.text in CONNECTIVES:
            continue
        inner = tokens[index + 2 : closing_of(tokens, index + 1)]
        arguments = _arguments(inner)
        for one, other in itertools.pairwise(arguments):
            first = source.text[one[0].start : one[-1].end]
            second = source.text[other[0].start : other[-1].end]
            if first == second or not (_is_positional(one) and _is_positional(other)):
                continue
            between = source.text[one[-1].end : other[0].start]
            yield _edit(
                *("swapped arguments", statement, one[0].start, other[-1].end),
                second + between + first,
            )


def _arguments(tokens: list[Token]) -> list[list[Token]]:
    arguments: list[list[Token]] = [[]]
    for token, depth in zip(tokens, depths(tokens), strict=True):
        if token.text == "," and depth == 0:
            arguments.append([])
        else:
            arguments[-1].append(token)
    return [each for each in arguments if each]


def _is_positional(argument: list[Token]) -> bool:
    words = {token.text for token in argument}
    return not words & {"=", "for", "lambda"} and argument[0].text not in ("*", "**")


# --- order ----------------------------------------------------------------------------------------


def _swapped_statements(source: Source) -> Iterator[Edit]:
    """Two that follow one another, of which one at least calls something: else the order of two
    assignments is nearly always nothing.
    """
    places = {(each.block, each.place): each for each in source.statements}
    for one in source.statements:
        other = places.get((one.block, one.place + 1))
        if other is None or not one.function or one.function != other.function:
            continue
        if not all(_moves(source, each) for each in (one, other)):
            continue
        first = source.text[one.start : one.end]
        second = source.text[other.start : other.end]
        if first == second or ("(" not in first and "(" not in second):
            continue
        between = source.text[one.end : other.start]
        if "}" in between or "{" in between:
            continue
        text = second + between + first
        yield _edit("swapped order", one, one.start, other.end, text)


def _moves(source: Source, statement: Statement) -> bool:
    if _is_left_alone(source, statement) or not statement.is_braced:
        return False
    return _is_call(source, statement) or _is_assignment(source, statement)


OF_STATEMENTS: tuple[Callable[[Source, Statement], Iterator[Edit]], ...] = (
    _dropped_statement,
    _dropped_sync,
    _conditions,
    _comparisons,
    _constants,
    _returns,
    _swapped_arguments,
)

# How often each is drawn: what has few places and matters much comes as often as the rest.
OPERATORS = {
    "dropped sync": 2,
    "dropped call": 3,
    "dropped assignment": 2,
    "dropped refusal": 2,
    "swapped order": 3,
    "swapped arguments": 2,
    "off by one": 4,
    "wrong branch": 3,
    "wrong connective": 2,
    "wrong sign": 2,
    "always": 2,
    "ignored condition": 2,
    "ignored version": 2,
    "removed limit": 3,
    "replaced return": 3,
}

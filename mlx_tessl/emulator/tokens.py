"""Tokens of preprocessed Metal source."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

_PATTERN = re.compile(
    r"""
      (?P<space>(?:[ \t\r]+|\\?\n|(?:(?<=\n)|\A)\#[^\n]*)+)
    | (?P<string>"(?:\\.|[^"\\\n])*")
    | (?P<character>'(?:\\.|[^'\\\n])*')
    | (?P<name>[A-Za-z_]\w*)
    | (?P<number>\.?\d(?:[eEpP][+-]|[\w.])*)
    | (?P<punctuation>::|->|\+\+|--|<<=|[-+*/%&|^=!<>]=|&&|\|\||<<|\.\.\.|.)
    """,
    re.VERBOSE,
)

_CLOSER = {"(": ")", "{": "}", "[": "]", "[[": "]]"}
_CLOSERS = frozenset(_CLOSER.values())


class SourceError(Exception):
    """The source is not something the rewriter understands."""


@dataclass(slots=True)
class Token:
    kind: str  # string, character, name, number, punctuation
    text: str
    space: str  # what stands before it: blanks, newlines, line markers


class Source:
    """A token list with partners of brackets, on which passes make edits that do not move tokens."""

    def __init__(self, text: str) -> None:
        self.tokens = list(_join_attributes(_lex(text)))
        self.partner = _match_brackets(self.tokens)  # of an opener: its closer
        self.opener = {closer: opener for opener, closer in self.partner.items()}
        self._end = text[len(text.rstrip()) :]
        self._replacement: dict[int, str] = {}
        self._dropped: set[int] = set()

    def __len__(self) -> int:
        return len(self.tokens)

    def text(self, i: int) -> str:
        """Text of token i, empty outside of the source."""
        return self.tokens[i].text if 0 <= i < len(self.tokens) else ""

    def is_name(self, i: int) -> bool:
        return 0 <= i < len(self.tokens) and self.tokens[i].kind == "name"

    def texts(self, start: int, end: int) -> list[str]:
        return [token.text for token in self.tokens[start:end]]

    def after(self, i: int) -> int:
        """The position after token i, or after its closer if it opens a bracket."""
        return self.partner.get(i, i) + 1

    def drop(self, start: int, end: int) -> None:
        self._dropped.update(range(start, end))

    def replace(self, start: int, end: int, text: str) -> None:
        """Put `text` where tokens start..end were."""
        self.drop(start, end)
        self._replacement[start] = text

    def is_dropped(self, i: int) -> bool:
        return i in self._dropped

    def split(self, start: int, end: int, separator: str = ",") -> list[tuple[int, int]]:
        """Ranges between separators that stand outside of brackets and template arguments."""
        parts: list[tuple[int, int]] = []
        depth = 0
        begin = i = start
        while i < end:
            text = self.text(i)
            if text == "<":
                depth += 1
            elif text == ">":
                depth -= 1
            elif text == separator and depth == 0:
                parts.append((begin, i))
                begin = i + 1
            i = self.after(i)
        if begin < end:
            parts.append((begin, end))
        return parts

    def find(self, wanted: str, start: int, end: int) -> int:
        """The first `wanted` outside of brackets and, but for a semicolon, of template arguments; or end."""
        depth = 0
        i = start
        while i < end:
            text = self.text(i)
            if text == wanted and (depth == 0 or wanted == ";"):
                return i
            if text == "<":
                depth += 1
            elif text == ">":
                depth = max(depth - 1, 0)
            i = self.after(i)
        return end

    def render(self) -> str:
        """The edited text; lines stay where they were."""
        pieces: list[str] = []
        for i, token in enumerate(self.tokens):
            pieces.append(token.space)
            if i in self._replacement:
                pieces.append(self._replacement[i])
            elif i not in self._dropped:
                pieces.append(token.text)
        return "".join(pieces) + self._end


def _lex(text: str) -> Iterator[Token]:
    space = ""
    for match in _PATTERN.finditer(text):
        kind = match.lastgroup
        assert kind is not None
        if kind == "space":
            space += match.group()
        else:
            yield Token(kind, match.group(), space)
            space = ""


def _join_attributes(tokens: Iterable[Token]) -> Iterator[Token]:
    """Make `[[` and `]]` one token each; `a[b[i]]` keeps its brackets."""
    given = list(tokens)
    attribute_ends: set[int] = set()
    stack: list[tuple[str, int]] = []
    starts: set[int] = set()
    i = 0
    while i < len(given):
        text = given[i].text
        if text == "[":
            if i + 1 < len(given) and given[i + 1].text == "[" and not given[i + 1].space:
                stack.append(("[[", i))
                i += 2
                continue
            stack.append(("[", i))
        elif text == "]" and stack:
            opener, at = stack.pop()
            if opener == "[[":
                if i + 1 < len(given) and given[i + 1].text == "]":
                    starts.add(at)
                    attribute_ends.add(i)
                    i += 2
                    continue
                stack.append(("[", at))
        i += 1
    skip = False
    for i, token in enumerate(given):
        if skip:
            skip = False
            continue
        if i in starts:
            skip = True
            yield Token("punctuation", "[[", token.space)
        elif i in attribute_ends:
            skip = True
            yield Token("punctuation", "]]", token.space)
        else:
            yield token


def _match_brackets(tokens: list[Token]) -> dict[int, int]:
    partner: dict[int, int] = {}
    stack: list[tuple[str, int]] = []
    for i, token in enumerate(tokens):
        if token.kind != "punctuation":
            continue
        if token.text in _CLOSER:
            stack.append((_CLOSER[token.text], i))
        elif token.text in _CLOSERS:
            if not stack or stack[-1][0] != token.text:
                raise SourceError(f"unbalanced {token.text!r}")
            partner[stack.pop()[1]] = i
    if stack:
        raise SourceError(f"no {stack[-1][0]!r} to close the source")
    return partner

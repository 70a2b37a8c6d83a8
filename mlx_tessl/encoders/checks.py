"""Numbers that callers give."""

from __future__ import annotations

import operator
from typing import Any


def checked_count(name: str, argument: str, value: Any, most: int | None = None) -> int:
    """``value`` as an int of 1 or more, and of ``most`` at most.

    Raises:
        ValueError: It is none; the message begins with ``name`` and names the ``argument``.
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise ValueError(f"[{name}] {argument} is {value!r}; it must be an integer") from None
    if number < 1:
        raise ValueError(f"[{name}] {argument} is {number}; it must be positive")
    if most is not None and number > most:
        raise ValueError(f"[{name}] {argument} is {number}; it must be at most {most}")
    return number

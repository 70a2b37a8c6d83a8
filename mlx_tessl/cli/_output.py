"""Where a command writes its results."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..encoders.files import atomic_write


def check_output(path: Path | None, suffixes: Sequence[str]) -> None:
    """Refuses, before any work, a file that could not be written.

    Raises:
        ValueError: Its suffix is not one of ``suffixes``, or its folder does not exist.
    """
    if path is None:
        return
    if path.suffix not in suffixes:
        raise ValueError(f"--output is {path}; its name must end in {', '.join(suffixes)}")
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(
            f"--output is {path}; " + ("that is a folder" if path.is_dir() else "its folder does not exist")
        )


def write_output(path: Path, write: Callable[[IO[bytes]], None], what: str) -> None:
    """Writes ``path`` atomically, and says so on standard error."""
    with _unwound_by_signals(), atomic_write(path) as file:
        write(file)
    print(f"wrote {what} to {path}", file=sys.stderr)


@contextmanager
def _unwound_by_signals() -> Iterator[None]:
    """A signal that asks the process to end lets the block clean up first.

    Not for longer than the block: while a process waits for others in C++, no Python handler would run.
    """

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    asking = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    try:
        for number in asking:
            signal.signal(number, leave)
        yield
    finally:
        for number in asking:
            signal.signal(number, signal.SIG_DFL)

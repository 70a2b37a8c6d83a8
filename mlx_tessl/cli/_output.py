"""Result files, written whole or not at all."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that becomes ``path`` when the block ends well, and of which nothing is left when it does not."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".part")
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


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
    with atomic_write(path) as file:
        write(file)
    print(f"wrote {what} to {path}", file=sys.stderr)


def json_lines(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One JSON object a line, floats in their shortest exact form."""
    return (json.dumps(record, ensure_ascii=False) + "\n" for record in records)

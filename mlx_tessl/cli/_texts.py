"""The texts a command works on: arguments, a file, or standard input."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "texts", nargs="*", metavar="TEXT", help="texts; without any, lines of --file or standard input"
    )
    parser.add_argument("--file", type=Path, help="read one text a line from this file (- is standard input)")


def read_texts(args: argparse.Namespace) -> list[str]:
    """The texts of :func:`iterate_texts`.

    Raises:
        ValueError: Also when there are none.
    """
    texts = list(iterate_texts(args))
    if not texts:
        raise ValueError(f"{args.file or 'standard input'} has no text in it")
    return texts


def iterate_texts(args: argparse.Namespace) -> Iterator[str]:
    """The texts, in order, lines as they are read. Empty lines are left out; an empty TEXT argument is not.

    A byte order mark is no part of the first.

    Raises:
        ValueError: There are both arguments and a file, or none at all, or the file is not UTF-8 text.
    """
    if args.texts and args.file:
        raise ValueError("give texts as arguments or with --file, not both")
    if args.texts:
        yield from args.texts
        return
    if args.file is None and sys.stdin.isatty():
        raise ValueError("no texts: give them as arguments, with --file, or on standard input")
    try:
        with _opened(args.file) as file:
            for number, line in enumerate(file):
                decoded = line.decode("utf-8-sig" if number == 0 else "utf-8")
                yield from (text for text in decoded.splitlines() if text.strip())
    except UnicodeDecodeError as error:
        raise ValueError(f"{args.file or 'standard input'} is not UTF-8 text: {error}") from error


def _opened(file: Path | None) -> AbstractContextManager[IO[bytes]]:
    if file is None or str(file) == "-":
        return nullcontext(sys.stdin.buffer)
    return file.open("rb")

"""The texts a command works on: arguments, a file, or standard input."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path


def add_text_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "texts", nargs="*", metavar="TEXT", help="texts; without any, lines of --file or standard input"
    )
    parser.add_argument("--file", type=Path, help="read one text a line from this file (- is standard input)")


def read_texts(args: argparse.Namespace) -> list[str]:
    """The texts, in order. Empty lines are left out; an empty TEXT argument is not.

    Raises:
        ValueError: There are both arguments and a file, or none at all, or the file is not UTF-8 text.
    """
    if args.texts and args.file:
        raise ValueError("give texts as arguments or with --file, not both")
    if args.texts:
        return list(args.texts)
    if args.file is None and sys.stdin.isatty():
        raise ValueError("no texts: give them as arguments, with --file, or on standard input")
    try:
        if args.file is None or str(args.file) == "-":
            content = sys.stdin.buffer.read().decode("utf-8")
        else:
            content = args.file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{args.file or 'standard input'} is not UTF-8 text: {error}") from error
    texts = [line for line in content.splitlines() if line.strip()]
    if not texts:
        raise ValueError(f"{args.file or 'standard input'} has no text in it")
    return texts

"""What ``embed`` and ``sparse`` have in common."""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

from ._output import json_lines
from ._texts import add_text_arguments


def add_encoding_arguments(parser: argparse.ArgumentParser, suffixes: str) -> None:
    parser.add_argument("model", metavar="MODEL", help="checkpoint folder or Hugging Face hub id")
    add_text_arguments(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt-name", help="put the model's prompt of this name before each text")
    prompt.add_argument("--prompt", help="put this before each text")
    prompt.add_argument("--query", action="store_true", help="the texts are queries: take the model's query prompt")
    prompt.add_argument("--document", action="store_true", help="the texts are documents: take their prompt")
    parser.add_argument("--batch-size", type=int, default=32, help="most texts of a batch (default: %(default)s)")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long instead of refusing them")
    parser.add_argument("--json", action="store_true", help="print JSON lines")
    parser.add_argument("--output", type=Path, help=f"write to this file instead; its name ends in {suffixes}")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def encoder_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords of an encoder's constructor."""
    return {"too_long": "truncate" if args.truncate else "error"}


def encode(encoder: Any, texts: list[str], args: argparse.Namespace, **options: Any) -> Any:
    """Encodes with the prompt that ``args`` names and a progress bar on standard error."""
    options |= {"batch_size": args.batch_size, "show_progress_bar": sys.stderr.isatty() and not args.quiet}
    method = encoder.encode_query if args.query else encoder.encode_document if args.document else encoder.encode
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = method(texts, prompt_name=args.prompt_name, prompt=args.prompt, **options)
    if encoder.truncated:
        count, limit = encoder.truncated, encoder.max_seq_length
        print(f"cut {count} of {len(texts)} texts to {limit} tokens", file=sys.stderr)
    return result


def print_json(records: Iterable[Mapping[str, Any]]) -> None:
    for line in json_lines(records):
        sys.stdout.write(line)


def write_json(file: IO[bytes], records: Iterable[Mapping[str, Any]]) -> None:
    for line in json_lines(records):
        file.write(line.encode())

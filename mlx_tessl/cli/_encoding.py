"""What ``embed`` and ``sparse`` have in common."""

from __future__ import annotations

import argparse
import os
import sys
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx

from ..encoders import encode_to_shards
from ..encoders.base import DOCUMENT_PROMPTS, QUERY_PROMPTS
from ._texts import add_text_arguments, iterate_texts


def add_encoding_arguments(parser: argparse.ArgumentParser, formats: Sequence[str], shard_format: str) -> None:
    suffixes = ", ".join(f".{name}" for name in formats)
    parser.add_argument("model", metavar="MODEL", help="checkpoint folder or Hugging Face hub id")
    add_text_arguments(parser)
    prompt = parser.add_mutually_exclusive_group()
    prompt.add_argument("--prompt-name", help="put the model's prompt of this name before each text")
    prompt.add_argument("--prompt", help="put this before each text")
    prompt.add_argument("--query", action="store_true", help="the texts are queries: take the model's query prompt")
    prompt.add_argument("--document", action="store_true", help="the texts are documents: take their prompt")
    parser.add_argument("--batch-size", type=int, default=128, help="most texts of a batch (default: %(default)s)")
    parser.add_argument("--truncate", action="store_true", help="cut texts that are too long instead of refusing them")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), help="convert the weights to this first")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print JSON lines")
    output.add_argument("--output", type=Path, help=f"write to this file instead; its name ends in {suffixes}")
    output.add_argument("--output-dir", type=Path, help="write shards into this folder; the same command goes on later")
    parser.add_argument("--format", choices=formats, default=shard_format, help="of shards (default: %(default)s)")
    parser.add_argument("--shard-size", type=int, default=16384, help="texts of a shard (default: %(default)s)")


def encoder_options(args: argparse.Namespace) -> dict[str, Any]:
    """Keywords of an encoder's constructor."""
    dtype = getattr(mx, args.dtype) if args.dtype else None
    return {"too_long": "truncate" if args.truncate else "error", "dtype": dtype}


def encode(encoder: Any, texts: list[str], args: argparse.Namespace, **options: Any) -> Any:
    """Encodes with the prompt that ``args`` names and a progress bar on standard error."""
    with _quiet():
        result = encoder.encode(texts, show_progress_bar=_shows_bar(args), **_options(encoder, args), **options)
    _report_truncated(encoder, len(texts))
    return result


def encode_in_parts(encoder: Any, args: argparse.Namespace, **options: Any) -> Iterator[tuple[list[str], Any]]:
    """Texts as they are read, a few thousand at a time, and what they are encoded as."""
    read: deque[str] = deque()
    count = 0

    def texts() -> Iterator[str]:
        for text in iterate_texts(args):
            read.append(text)
            yield text

    bar = _shows_bar(args)
    with _quiet():
        for results in encoder.encode_stream(texts(), show_progress_bar=bar, **_options(encoder, args), **options):
            count += len(results)
            yield [read.popleft() for _ in range(len(results))], results
    if not count:
        raise ValueError(f"{args.file or 'standard input'} has no text in it")
    _report_truncated(encoder, count)


def encode_shards(encoder: Any, args: argparse.Namespace, what: str, **options: Any) -> None:
    """Encodes into the folder ``args.output_dir``, and says so on standard error."""
    total = _count(args)
    if total == 0:
        raise ValueError(f"{args.file} has no text in it")
    with _quiet():
        shards = encode_to_shards(
            encoder,
            iterate_texts(args),
            args.output_dir,
            format=args.format,
            shard_size=args.shard_size,
            total=total,
            show_progress_bar=_shows_bar(args),
            **_options(encoder, args),
            **options,
        )
    if not shards.texts:
        raise ValueError("standard input has no text in it")
    if shards.truncated:
        print(f"cut {shards.truncated} texts to {encoder.max_seq_length} tokens", file=sys.stderr)
    there = len(shards.paths) - shards.written
    rest = f"; {there} were there already or are another process's" if there else ""
    print(f"wrote {shards.written} of {len(shards.paths)} shards of {what} to {args.output_dir}{rest}", file=sys.stderr)


def refuse_several_processes(args: argparse.Namespace) -> None:
    """Processes that ``mlx.launch`` started would all print the same."""
    if not args.output_dir and int(os.environ.get("MLX_RANK", 0)) > 0:
        raise ValueError("several processes share the work only with --output-dir")


def _count(args: argparse.Namespace) -> int | None:
    """How many texts there are; standard input can be read only once."""
    standard_input = not args.texts and (args.file is None or str(args.file) == "-")
    return None if standard_input else sum(1 for _ in iterate_texts(args))


def _options(encoder: Any, args: argparse.Namespace) -> dict[str, Any]:
    name = args.prompt_name
    for asked, names in ((args.query, QUERY_PROMPTS), (args.document, DOCUMENT_PROMPTS)):
        if asked:
            name = next((candidate for candidate in names if candidate in encoder.prompts), None)
    return {"prompt_name": name, "prompt": args.prompt, "batch_size": args.batch_size}


def _shows_bar(args: argparse.Namespace) -> bool:
    return sys.stderr.isatty() and not args.quiet


def _quiet() -> warnings.catch_warnings[None]:
    """Truncation is reported in our own words."""
    return warnings.catch_warnings(action="ignore")


def _report_truncated(encoder: Any, total: int) -> None:
    if encoder.truncated:
        count, limit = encoder.truncated, encoder.max_seq_length
        print(f"cut {count} of {total} texts to {limit} tokens", file=sys.stderr)

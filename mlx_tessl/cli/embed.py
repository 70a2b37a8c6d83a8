"""Embed texts with a BERT sentence encoder.

Texts are arguments, lines of --file, or lines of standard input.
  mlx-tessl embed MODEL "What causes the northern lights?" "A recipe for bread"
  mlx-tessl embed MODEL --file passages.txt --output passages.npy
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..encoders import SentenceEncoder
from ..encoders.sentence import FloatArray
from ._encoding import add_encoding_arguments, encode, encoder_options, print_json, write_json
from ._output import check_output, write_output
from ._style import clip, dim
from ._texts import read_texts

_SUFFIXES = (".npy", ".npz", ".jsonl")


def configure(parser: argparse.ArgumentParser) -> None:
    add_encoding_arguments(parser, ", ".join(_SUFFIXES))
    parser.add_argument("--truncate-dim", type=int, help="keep this many first components")
    parser.add_argument("--no-normalize", action="store_true", help="do not scale embeddings to unit length")


def run(args: argparse.Namespace) -> int:
    check_output(args.output, _SUFFIXES)
    texts = read_texts(args)
    encoder = SentenceEncoder(args.model, truncate_dim=args.truncate_dim, **encoder_options(args))
    embeddings: FloatArray = encode(encoder, texts, args, normalize_embeddings=not args.no_normalize)
    if args.output:
        _write(args, texts, embeddings)
    elif args.json:
        print_json(_records(texts, embeddings))
    else:
        _print(texts, embeddings)
    return 0


def _records(texts: list[str], embeddings: FloatArray) -> Iterator[dict[str, Any]]:
    for text, embedding in zip(texts, embeddings, strict=True):
        yield {"text": text, "embedding": [float(str(x)) for x in embedding]}


def _write(args: argparse.Namespace, texts: list[str], embeddings: FloatArray) -> None:
    writers = {
        ".npy": lambda file: np.save(file, embeddings),
        ".npz": lambda file: np.savez(file, embeddings=embeddings, texts=np.array(texts)),
        ".jsonl": lambda file: write_json(file, _records(texts, embeddings)),
    }
    rows, dimension = embeddings.shape
    write_output(args.output, writers[args.output.suffix], f"{rows} embeddings of {dimension} components")


def _print(texts: list[str], embeddings: FloatArray) -> None:
    for text, embedding in zip(texts, embeddings, strict=True):
        start = " ".join(f"{x:+.4f}" for x in embedding[:6])
        more = dim(f"... of {len(embedding)}") if len(embedding) > 6 else ""
        print(f"{start} {more}  {clip(text, 60)}")

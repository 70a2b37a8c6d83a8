"""Encode texts as weighted words with a BERT masked-LM checkpoint (SPLADE).

Texts are arguments, lines of --file, or lines of standard input.
  mlx-tessl sparse MODEL "What causes the northern lights?"
  mlx-tessl sparse MODEL --file passages.txt --output passages.npz
A .npz file is read by scipy.sparse.load_npz.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from ..encoders import SparseEncoder, SparseVectors
from ._encoding import add_encoding_arguments, encode, encoder_options, print_json, write_json
from ._output import check_output, write_output
from ._style import bold, clip, terms
from ._texts import read_texts

_SUFFIXES = (".npz", ".jsonl")


def configure(parser: argparse.ArgumentParser) -> None:
    add_encoding_arguments(parser, ", ".join(_SUFFIXES))
    parser.add_argument("--max-active-dims", type=int, help="keep this many heaviest words of each text")
    parser.add_argument("--top-k", type=int, default=12, help="words to show of each text (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    check_output(args.output, _SUFFIXES)
    texts = read_texts(args)
    encoder = SparseEncoder(args.model, max_active_dims=args.max_active_dims, **encoder_options(args))
    vectors: SparseVectors = encode(encoder, texts, args)
    if args.output:
        write = (
            vectors.save
            if args.output.suffix == ".npz"
            else lambda file: write_json(file, _records(encoder, texts, vectors))
        )
        mean = len(vectors.values) / max(1, len(vectors))
        write_output(args.output, write, f"{len(vectors)} vectors of {mean:.0f} words on average")
    elif args.json:
        print_json(_records(encoder, texts, vectors))
    else:
        for text, words in zip(texts, encoder.decode(vectors, args.top_k), strict=True):
            print(f"{bold(clip(text, 76))}\n  {terms(words)}")
    return 0


def _records(encoder: SparseEncoder, texts: list[str], vectors: SparseVectors) -> Iterator[dict[str, Any]]:
    for text, vector in zip(texts, vectors, strict=True):
        yield {
            "text": text,
            "words": [encoder.tokenizer.word(i) for i in vector.indices.tolist()] if encoder.tokenizer else None,
            "indices": vector.indices.tolist(),
            "values": [float(str(x)) for x in vector.values],
        }

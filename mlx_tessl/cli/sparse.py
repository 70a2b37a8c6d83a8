"""Encode texts as weighted words with a masked-LM checkpoint (SPLADE): BERT, DistilBERT.

Texts are arguments, lines of --file, or lines of standard input.
  mlx-tessl sparse MODEL "What causes the northern lights?"
  mlx-tessl sparse MODEL --file passages.txt --output passages.npz
  mlx-tessl sparse MODEL --file millions.txt --output-dir shards
An .npz file is read by scipy.sparse.load_npz. A folder of shards survives an interruption: the same command goes on
where it was. Several processes share the work: mlx.launch -n 4 mlx-tessl sparse ...
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

from ..encoders import SparseEncoder, SparseVectors
from ..encoders.files import VECTOR_FORMATS, json_lines, vector_records, write_vectors
from ._encoding import (
    add_encoding_arguments,
    encode,
    encode_in_parts,
    encode_shards,
    encoder_options,
    refuse_several_processes,
)
from ._output import check_output, write_output
from ._style import bold, clip, terms
from ._texts import read_texts


def configure(parser: argparse.ArgumentParser) -> None:
    add_encoding_arguments(parser, VECTOR_FORMATS, "npz")
    parser.add_argument("--max-active-dims", type=int, help="keep this many heaviest words of each text")
    parser.add_argument("--min-weight", type=float, default=0.0, help="keep words above this weight only")
    parser.add_argument("--top-k", type=int, default=12, help="words to show of each text (default: %(default)s)")


def run(args: argparse.Namespace) -> int:
    check_output(args.output, [f".{name}" for name in VECTOR_FORMATS])
    refuse_several_processes(args)
    options = {"max_active_dims": args.max_active_dims, "min_weight": args.min_weight}
    if args.json:
        encoder = _encoder(args)
        for part, found in encode_in_parts(encoder, args, **options):
            print(*json_lines(vector_records(part, found, _word(encoder))), sep="", end="")
        return 0
    if args.output_dir:
        encode_shards(_encoder(args), args, "vectors", **options)
        return 0
    texts = read_texts(args)
    encoder = _encoder(args)
    vectors: SparseVectors = encode(encoder, texts, args, **options)
    if args.output:
        format = args.output.suffix[1:]
        mean = len(vectors.values) / max(1, len(vectors))
        what = f"{len(vectors)} vectors of {mean:.0f} words on average"
        write_output(args.output, lambda file: write_vectors(file, format, texts, vectors, _word(encoder)), what)
    else:
        for text, words in zip(texts, encoder.decode(vectors, args.top_k), strict=True):
            print(f"{bold(clip(text, 76))}\n  {terms(words)}")
    return 0


def _encoder(args: argparse.Namespace) -> SparseEncoder:
    return SparseEncoder(args.model, **encoder_options(args))


def _word(encoder: SparseEncoder) -> Callable[[int], str] | None:
    return encoder.tokenizer.word if encoder.tokenizer else None

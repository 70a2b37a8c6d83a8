"""Embed texts with a sentence encoder: BERT, DistilBERT, EmbeddingGemma.

Texts are arguments, lines of --file, or lines of standard input.
  mlx-tessl embed MODEL "What causes the northern lights?" "A recipe for bread"
  mlx-tessl embed MODEL --file passages.txt --output passages.npy
  mlx-tessl embed MODEL --file millions.txt --output-dir shards
A folder of shards survives an interruption: the same command goes on where it was. Several processes share the work:
  mlx.launch -n 4 mlx-tessl embed MODEL --file millions.txt --output-dir shards
"""

from __future__ import annotations

import argparse

from ..encoders import SentenceEncoder
from ..encoders.files import EMBEDDING_FORMATS, embedding_records, json_lines, write_embeddings
from ..encoders.similarity import FloatArray
from ._encoding import (
    add_encoding_arguments,
    encode,
    encode_in_parts,
    encode_shards,
    encoder_options,
    refuse_several_processes,
)
from ._output import check_output, write_output
from ._style import clip, dim
from ._texts import read_texts


def configure(parser: argparse.ArgumentParser) -> None:
    add_encoding_arguments(parser, EMBEDDING_FORMATS, "npy")
    parser.add_argument("--truncate-dim", type=int, help="keep this many first components")
    parser.add_argument("--no-normalize", action="store_true", help="do not scale embeddings to unit length")


def run(args: argparse.Namespace) -> int:
    check_output(args.output, [f".{name}" for name in EMBEDDING_FORMATS])
    refuse_several_processes(args)
    if args.json:
        encoder = _encoder(args)
        for part, found in encode_in_parts(encoder, args, normalize_embeddings=not args.no_normalize):
            print(*json_lines(embedding_records(part, found)), sep="", end="")
        return 0
    if args.output_dir:
        encode_shards(_encoder(args), args, "embeddings", normalize_embeddings=not args.no_normalize)
        return 0
    texts = read_texts(args)
    embeddings: FloatArray = encode(_encoder(args), texts, args, normalize_embeddings=not args.no_normalize)
    if args.output:
        format = args.output.suffix[1:]
        rows, dimension = embeddings.shape
        what = f"{rows} embeddings of {dimension} components"
        write_output(args.output, lambda file: write_embeddings(file, format, texts, embeddings), what)
    else:
        _print(texts, embeddings)
    return 0


def _encoder(args: argparse.Namespace) -> SentenceEncoder:
    return SentenceEncoder(args.model, truncate_dim=args.truncate_dim, **encoder_options(args))


def _print(texts: list[str], embeddings: FloatArray) -> None:
    for text, embedding in zip(texts, embeddings, strict=True):
        start = " ".join(f"{x:+.4f}" for x in embedding[:6])
        more = dim(f"... of {len(embedding)}") if len(embedding) > 6 else ""
        print(f"{start} {more}  {clip(text, 60)}")

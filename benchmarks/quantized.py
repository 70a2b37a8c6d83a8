"""mt.quantized_matmul against mx.quantized_matmul on the CPU: 4-bit weights in groups of 64, and what both err by.

    python benchmarks/quantized.py --out benchmarks/results/quantized.json
    python benchmarks/quantized.py --plot benchmarks/results/quantized.json

Both are in one process and are timed in turn. Of products with one row 32 are evaluated at once, as a model's are: one
by one, most of their time would be the way through MLX. Errors are those of x [64, 8192] w [1024, 8192].T against
float64 from the very operands, relative to the results' root mean square.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np

Methods = dict[str, Callable[[], object]]

GROUP_SIZE, BITS = 64, 4


@dataclass(frozen=True)
class Case:
    """``products`` times ``[M, K] @ [N, K].T``."""

    M: int
    N: int
    K: int
    products: int = 1

    @property
    def name(self) -> str:
        return f"{self.N} x {self.K}, {self.M} row{'s' * (self.M > 1)}"

    @property
    def operations(self) -> int:
        return 2 * self.products * self.M * self.K * self.N


CASES = tuple(Case(M, N, K, 32 if M == 1 else 1) for N, K in ((3072, 768), (4096, 4096)) for M in (1, 8, 32, 256))


def methods(case: Case) -> Methods:
    import mlx.core as mx

    import mlx_tessl as mt

    mx.set_default_device(mx.cpu)
    rng = np.random.default_rng(0)
    found: Methods = {}
    for name, dtype in (("f32", mx.float32), ("bf16", mx.bfloat16)):
        w = mx.array(rng.standard_normal((case.N, case.K)).astype(np.float32)).astype(dtype)
        packed = mx.quantize(w, GROUP_SIZE, BITS)
        xs = [
            mx.array(rng.standard_normal((case.M, case.K)).astype(np.float32)).astype(dtype)
            for _ in range(case.products)
        ]
        mx.eval(packed, xs)
        for library, op in (("mt", mt.quantized_matmul), ("mx", mx.quantized_matmul)):
            found[f"{library} {name}"] = lambda op=op, xs=xs, packed=packed: mx.eval(
                [op(x, *packed, transpose=True, group_size=GROUP_SIZE, bits=BITS) for x in xs]
            )
    return found


def work(options: argparse.Namespace) -> None:
    cases = [case for case in CASES if options.only in case.name]
    harness.emit({case.name: harness.interleave(methods(case), options.seconds) for case in cases})


def errors() -> dict[str, dict[str, float]]:
    """By dtype and library: the greatest and the root mean square error."""
    import mlx.core as mx

    import mlx_tessl as mt

    mx.set_default_device(mx.cpu)
    M, N, K = 64, 1024, 8192
    rng = np.random.default_rng(0)
    found = {}
    for name, dtype in (("f32", mx.float32), ("bf16", mx.bfloat16)):
        x = mx.array(rng.standard_normal((M, K)).astype(np.float32)).astype(dtype)
        w = mx.array(rng.standard_normal((N, K)).astype(np.float32)).astype(dtype)
        words, scales, biases = mx.quantize(w, GROUP_SIZE, BITS)
        exact = _float64(x) @ _weights(words, scales, biases).T
        for library, op in (("mt", mt.quantized_matmul), ("mx", mx.quantized_matmul)):
            result = op(x, words, scales, biases, transpose=True, group_size=GROUP_SIZE, bits=BITS)
            error = np.abs(_float64(result) - exact) / np.sqrt(np.mean(exact**2))
            found[f"{library} {name}"] = {"greatest": float(error.max()), "rms": float(np.sqrt(np.mean(error**2)))}
    return found


def _float64(x: Any) -> np.ndarray:
    import mlx.core as mx

    return np.array(x.astype(mx.float32)).astype(np.float64)


def _weights(words: Any, scales: Any, biases: Any) -> np.ndarray:
    """scale q + bias, exactly."""
    codes = np.array(words)[..., None] >> np.arange(0, 32, BITS, dtype=np.uint32) & (2**BITS - 1)
    groups = codes.reshape(words.shape[0], -1, GROUP_SIZE).astype(np.float64)
    return (groups * _float64(scales)[..., None] + _float64(biases)[..., None]).reshape(words.shape[0], -1)


def results(options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for case in [case for case in CASES if options.only in case.name]:
        turn = argparse.Namespace(**{**vars(options), "only": case.name})
        samples = harness.alternate(__file__, ["mlx"], turn)[case.name]
        times = {method: harness.summary(seconds) for method, seconds in samples.items()}
        for method, summary in times.items():
            stock = times["mx" + method[2:]]["median"]
            rows.append(
                {
                    "case": case.name,
                    "products": case.products,
                    "method": method,
                    "gflops": round(case.operations / summary["median"] / 1e9, 2),
                    "over_stock": round(stock / summary["median"], 2),
                    "seconds": summary,
                }
            )
    import mlx_tessl as mt

    return {
        "benchmark": "quantized",
        "machine": harness.machine(),
        "versions": harness.versions("mlx-tessl", "mlx", "numpy", "scipy-openblas32"),
        "backend": mt.backend_info()["cpu"],
        "rows": rows,
        "errors": errors(),
    }


def show(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        times = row["seconds"]
        spread = f"{times['p10'] * 1e3:.3f} to {times['p90'] * 1e3:.3f}"
        print(
            f"{row['case']:22} {row['method']:8} {row['gflops']:8.2f} GFLOP/s {row['over_stock']:7.2f} x   {spread} ms"
        )
    for method, error in found["errors"].items():
        print(f"error of {method}: {error['rms']:.2e} rms, {error['greatest']:.2e} at most")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(row["case"] for row in found["rows"]))
    figure, axis = plt.subplots(figsize=(11, 5), layout="constrained")
    for i, method in enumerate(("mt f32", "mt bf16")):
        ratios = [row["over_stock"] for row in found["rows"] if row["method"] == method]
        axis.bar([n + (i - 0.5) * 0.4 for n in range(len(cases))], ratios, 0.4, label=method)
    axis.set(title="times faster than mx.quantized_matmul, 4 bits", yscale="log")
    axis.axhline(10, color="gray", linewidth=1)
    axis.set_xticks(range(len(cases)), cases, rotation=20, ha="right")
    axis.legend()
    figure.suptitle(f"{found['machine']['cpu']}, {found['machine']['cpus']} CPUs")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    harness.main(__doc__, work, results, show, plot)

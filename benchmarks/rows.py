"""Row operations of 8,192 rows of 768 beside the same in stock MLX ops, on the CPU.

python benchmarks/rows.py --out benchmarks/results/rows.json
python benchmarks/rows.py --plot benchmarks/results/rows.json
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import mlx.core as mx

import mlx_tessl as mt

ROWS, WIDTH = 8192, 768
EPS = 1e-6

Methods = dict[str, Callable[[], object]]


def stock_layer_norm(x: mx.array, weight: mx.array, bias: mx.array, residual: mx.array) -> list[mx.array]:
    total = x + residual
    return [mx.fast.layer_norm(total, weight, bias, EPS), total]


def stock_rms_norm(x: mx.array, weight: mx.array, residual: mx.array) -> list[mx.array]:
    total = x + residual
    return [mx.fast.rms_norm(total, weight, EPS), total]


def cases(dtype: mx.Dtype) -> dict[str, Methods]:
    x, residual = (mx.random.normal((ROWS, WIDTH)).astype(dtype) for _ in range(2))
    weight, bias = (mx.random.normal((WIDTH,)).astype(dtype) for _ in range(2))
    mx.eval(x, residual, weight, bias)
    pairs: dict[str, tuple[Callable[[], Any], Callable[[], Any]]] = {
        "layer_norm, residual": (
            lambda: mt.layer_norm(x, weight, bias, EPS, residual=residual),
            lambda: stock_layer_norm(x, weight, bias, residual),
        ),
        "rms_norm, residual": (
            lambda: mt.rms_norm(x, weight, EPS, residual=residual),
            lambda: stock_rms_norm(x, weight, residual),
        ),
        "softmax": (lambda: mt.softmax(x), lambda: mx.softmax(x, axis=-1, precise=True)),
        "swiglu": (lambda: mt.swiglu(x, residual), lambda: x * mx.sigmoid(x) * residual),
    }
    return {name: {"mt": evaluated(ours), "mx": evaluated(stock)} for name, (ours, stock) in pairs.items()}


def evaluated(build: Callable[[], Any]) -> Callable[[], object]:
    return lambda: mx.eval(build())


def work(options: argparse.Namespace) -> None:
    mx.set_default_device(mx.cpu)
    samples: harness.Samples = {}
    for name, dtype in (("f32", mx.float32), ("bf16", mx.bfloat16)):
        for case, methods in cases(dtype).items():
            if options.only in f"{case}, {name}":
                samples[f"{case}, {name}"] = harness.interleave(methods, options.seconds)
    harness.emit(samples)


def results(options: argparse.Namespace) -> dict[str, Any]:
    samples = harness.alternate(__file__, ["all"], options)
    rows = []
    for case, methods in samples.items():
        facts = {method: harness.summary(seconds) for method, seconds in methods.items()}
        over_stock = facts["mx"]["median"] / facts["mt"]["median"]
        rows.append({"case": case, "over_stock": round(over_stock, 2), "seconds": facts})
    return {
        "benchmark": "rows",
        "shape": [ROWS, WIDTH],
        "machine": harness.machine(),
        "versions": harness.versions("mlx-tessl", "mlx"),
        "backend": mt.backend_info()["cpu"],
        "rows": rows,
    }


def show(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        ours = row["seconds"]["mt"]
        print(f"{row['case']:28} {1e3 * ours['median']:7.2f} ms  {row['over_stock']:6.2f}x stock")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axis = plt.subplots(figsize=(6, 3.5), layout="constrained")
    bars = axis.barh([row["case"] for row in found["rows"]], [row["over_stock"] for row in found["rows"]])
    axis.bar_label(bars, fmt="%.1f")
    axis.set(xlabel="times stock MLX", title=f"{found['machine']['cpu']}, {found['machine']['cpus']} CPUs")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    harness.main(__doc__, work, results, show, plot)

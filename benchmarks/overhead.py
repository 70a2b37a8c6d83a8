"""What one op costs before it computes: a node of the graph, a plan, and the way through an evaluation.

    python benchmarks/overhead.py --out benchmarks/results/overhead.json

Nodes are built and dropped; plans are made in C++, for a GPU that need not be there; an evaluation is of one element.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness
import mlx.core as mx

import mlx_tessl as mt
from mlx_tessl import _ext

PLANS_PER_SAMPLE = 1000
PLANNED = {"large": (4096, 4096, 4096), "ragged": (1000, 1001, 1003), "one row": (1, 4096, 4096)}  # M, N, K


def nodes() -> dict[str, Callable[[], object]]:
    x, weight = mx.ones((128, 256)), mx.ones((512, 256))
    b, bias, scale = weight.T, mx.ones((512,)), mx.ones((256,))
    mx.eval(x, weight, b, bias, scale)
    return {
        "mt.matmul": lambda: mt.matmul(x, b),
        "mt.matmul bias gelu": lambda: mt.matmul(x, b, bias=bias, activation="gelu"),
        "mt.linear bias": lambda: mt.linear(x, weight, bias),
        "mx.matmul": lambda: mx.matmul(x, b),
        "mx.addmm": lambda: mx.addmm(bias, x, b),
        "mx.fast.rms_norm": lambda: mx.fast.rms_norm(x, scale, 1e-5),
    }


def evaluations() -> dict[str, Callable[[], object]]:
    a = mx.ones((1, 1))
    scale = mx.ones((1,))
    mx.eval(a, scale)
    return {
        "mt.matmul": lambda: mx.eval(mt.matmul(a, a)),
        "mx.matmul": lambda: mx.eval(mx.matmul(a, a)),
        "mx.fast.rms_norm": lambda: mx.eval(mx.fast.rms_norm(a, scale, 1e-5)),
    }


def plans(seconds: float) -> dict[str, list[float]]:
    """Of a product with bias, in float16, for each way there is to compute it."""
    samples: dict[str, list[float]] = {}
    for gpu, macos in (("m1", "14.0"), ("m5", "26.4")):
        for name, (m, n, k) in PLANNED.items():
            call = _ext.plan.Matmul(
                "float16",
                _ext.plan.Operand([m, k]),
                _ext.plan.Operand([k, n]),
                bias=_ext.plan.Operand([n]),
                gpu=gpu,
                macos=macos,
            )
            count = max(3, int(seconds / (call.seconds_to_plan(PLANS_PER_SAMPLE) * PLANS_PER_SAMPLE)))
            samples[f"matmul, {gpu}, {name}"] = [call.seconds_to_plan(PLANS_PER_SAMPLE) for _ in range(count)]
    return samples


def work(options: Any) -> None:
    mx.set_default_device(mx.cpu)
    harness.emit(
        {
            "node": harness.interleave(nodes(), options.seconds),
            "plan": plans(options.seconds),
            "evaluation": harness.interleave(evaluations(), options.seconds),
        }
    )


def results(options: Any) -> dict[str, Any]:
    samples = harness.alternate(__file__, ["all"], options)
    return {
        "benchmark": "overhead",
        "machine": harness.machine(),
        "versions": harness.versions("mlx-tessl", "mlx"),
        "rows": [
            {"case": case, "method": method, "seconds": harness.summary(seconds)}
            for case, methods in samples.items()
            for method, seconds in methods.items()
        ],
    }


def show(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        times = row["seconds"]
        spread = f"{times['p10'] * 1e6:.2f} to {times['p90'] * 1e6:.2f}"
        print(f"{row['case']:12} {row['method']:24} {times['median'] * 1e6:8.2f} us   {spread} us")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    names = [f"{row['case']}: {row['method']}" for row in found["rows"]]
    figure, axis = plt.subplots(figsize=(9, 6), layout="constrained")
    axis.barh(names, [row["seconds"]["median"] * 1e6 for row in found["rows"]])
    axis.invert_yaxis()
    axis.set(xscale="log", xlabel="microseconds", title="Cost of one op before it computes")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    harness.main(__doc__, work, results, show, plot)

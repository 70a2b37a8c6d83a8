"""mt.attention against mx.fast.scaled_dot_product_attention and torch's, on the CPU, and the memory that it takes.

    python benchmarks/attention.py --torch-python PYTHON --out benchmarks/results/attention.json
    python benchmarks/attention.py --plot benchmarks/results/attention.json

PYTHON has torch. Each library is a process, because their threads would compete, and they take turns case by case;
stock MLX, which takes seconds a call, has one turn. A call is what a user waits for: building, evaluating and freeing
the result.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np

Methods = dict[str, Callable[[], object]]


@dataclass(frozen=True)
class Case:
    """One call; ``gradients`` when its gradients are taken too, ``lengths`` when rows end at different keys."""

    name: str
    B: int
    heads: int
    kv_heads: int
    Tq: int
    Tk: int
    D: int
    causal: bool = False
    lengths: bool = False
    gradients: bool = False
    stock: bool = True  # whether stock MLX is waited for

    @property
    def operations(self) -> float:
        """Products alone: 4 a score forward, 14 with gradients, which make the scores again."""
        scores = self.B * self.heads * self.Tq * self.Tk * (0.5 if self.causal else 1)
        return scores * self.D * (14 if self.gradients else 4)

    @property
    def scale(self) -> float:
        return float(self.D**-0.5)

    def arrays(self) -> list[np.ndarray]:
        rng = np.random.default_rng(0)
        sizes = ((self.heads, self.Tq), (self.kv_heads, self.Tk), (self.kv_heads, self.Tk))
        return [rng.standard_normal((self.B, *size, self.D)).astype(np.float32) for size in sizes]

    def row_lengths(self) -> np.ndarray:
        return np.linspace(self.Tk // 4, self.Tk, self.B).astype(np.int32)


CASES = (
    Case("causal, D 64", 1, 8, 8, 2048, 2048, 64, causal=True, stock=False),
    Case("causal, D 128", 1, 8, 8, 2048, 2048, 128, causal=True),
    Case("causal, D 256", 1, 8, 8, 2048, 2048, 256, causal=True),
    Case("gradients, D 128", 1, 8, 8, 2048, 2048, 128, causal=True, gradients=True, stock=False),
    Case("gradients, D 256", 1, 8, 8, 2048, 2048, 256, causal=True, gradients=True, stock=False),
    Case("texts of 128, D 32", 32, 12, 12, 128, 128, 32, lengths=True),
    Case("decode, 4096 keys", 4, 16, 4, 1, 4096, 128),
)

MEMORY = """
import mlx.core as mx, mlx_tessl as mt
q, k, v = (mx.random.normal((1, 1, {T}, {D})) for _ in range(3))
f = lambda q, k, v: mt.attention(q, k, v, scale={D}**-0.5, mask="causal", stream=mx.cpu)
mx.eval(f(q[:, :, :64], k[:, :, :64], v[:, :, :64]))
peak = lambda: int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1])
before = peak()
mx.eval(mx.vjp(f, [q, k, v], [q])[1] if {gradients} else f(q, k, v))
print(peak() - before)
"""


def mlx_methods(case: Case) -> Methods:
    import mlx.core as mx

    import mlx_tessl as mt

    mx.set_default_device(mx.cpu)
    lengths = mx.array(case.row_lengths()) if case.lengths else None
    mask = "causal" if case.causal else None

    def ours(q: mx.array, k: mx.array, v: mx.array) -> mx.array:
        return mt.attention(q, k, v, scale=case.scale, mask=mask, lengths=lengths)

    def call(operands: list[mx.array]) -> Callable[[], object]:
        if case.gradients:
            return lambda: mx.eval(mx.vjp(ours, operands, [operands[0]]))
        return lambda: mx.eval(ours(*operands))

    methods: Methods = {}
    for name, dtype in (("f32", mx.float32), ("bf16", mx.bfloat16)):
        operands = [mx.array(x).astype(dtype) for x in case.arrays()]
        mx.eval(operands)
        methods[f"mt {name}"] = call(operands)
    return methods


def stock_methods(case: Case) -> Methods:
    import mlx.core as mx

    mx.set_default_device(mx.cpu)
    q, k, v = (mx.array(x) for x in case.arrays())
    mask: Any = "causal" if case.causal else None
    if case.lengths:
        mask = (mx.arange(case.Tk) < mx.array(case.row_lengths())[:, None])[:, None, None]
    mx.eval(q, k, v)
    return {"mx f32": lambda: mx.eval(mx.fast.scaled_dot_product_attention(q, k, v, scale=case.scale, mask=mask))}


def torch_methods(case: Case) -> Methods:
    import torch

    lengths = torch.tensor(case.row_lengths())
    visible = (torch.arange(case.Tk) < lengths[:, None])[:, None, None] if case.lengths else None

    def call(operands: list[Any]) -> Callable[[], object]:
        def forward() -> Any:
            return torch.nn.functional.scaled_dot_product_attention(
                *operands,
                attn_mask=visible,
                is_causal=case.causal,
                scale=case.scale,
                enable_gqa=case.heads != case.kv_heads,
            )

        def forward_alone() -> None:
            with torch.no_grad():
                forward()

        def gradients() -> None:
            leaves = [x.requires_grad_(True) for x in operands]
            torch.autograd.grad(forward(), leaves, operands[0].detach())

        return gradients if case.gradients else forward_alone

    dtypes = {"f32": torch.float32} if case.gradients else {"f32": torch.float32, "bf16": torch.bfloat16}
    return {f"torch {name}": call([torch.tensor(x).to(dtype) for x in case.arrays()]) for name, dtype in dtypes.items()}


WORKERS = {"mlx": mlx_methods, "torch": torch_methods, "stock": stock_methods}


def work(options: Any) -> None:
    harness.emit(
        {
            case.name: harness.interleave(WORKERS[options.worker](case), options.seconds)
            for case in CASES
            if options.only == case.name
        }
    )


def samples_of(case: Case, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of one call by method, the workers taking turns over this case alone."""
    turns = argparse.Namespace(**{**vars(options), "only": case.name})
    workers = ["mlx"] + ["torch"] * bool(options.torch_python)
    samples = harness.alternate(__file__, workers, turns, {"torch": options.torch_python})[case.name]
    if case.stock:
        turns.rounds = 1
        samples |= harness.alternate(__file__, ["stock"], turns)[case.name]
    return samples


def peak_growth(T: int, D: int, gradients: bool) -> float:
    """MiB that a process grows by over its operands, which count where an evaluation made them."""
    script = MEMORY.format(T=T, D=D, gradients=gradients)
    return int(subprocess.run([sys.executable, "-c", script], capture_output=True, check=True).stdout) / 1024


def results(options: Any) -> dict[str, Any]:
    rows = []
    for case in CASES:
        if options.only not in case.name:
            continue
        samples = samples_of(case, options)
        ours = harness.summary(samples["mt f32"])["median"]
        for method, seconds in samples.items():
            times = harness.summary(seconds)
            rows.append(
                {
                    "case": case.name,
                    "method": method,
                    "gflops": round(case.operations / times["median"] / 1e9, 2),
                    "times_mt_f32": round(ours / times["median"], 3),
                    "seconds": times,
                }
            )
    memory = [
        {"T": T, "D": 256, "gradients": gradients, "mib": round(peak_growth(T, 256, gradients), 1)}
        for gradients in (False, True)
        for T in (2048, 4096, 8192, 16384)
        if options.only in "memory"
    ]
    import mlx_tessl as mt

    return {
        "benchmark": "attention",
        "machine": harness.machine(),
        "versions": harness.versions("mlx-tessl", "mlx"),
        "backend": mt.backend_info()["cpu"],
        "rows": rows,
        "memory": memory,
    }


def show(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        times = row["seconds"]
        spread = f"{times['p10'] * 1e3:.2f} to {times['p90'] * 1e3:.2f} ms"
        print(
            f"{row['case']:26} {row['method']:10} {row['gflops']:8.1f} GFLOP/s {row['times_mt_f32']:7.3f}x   {spread}"
        )
    for row in found["memory"]:
        print(f"T {row['T']:6} D {row['D']} {'with' if row['gradients'] else 'without'} gradients: {row['mib']} MiB")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(row["case"] for row in found["rows"]))
    methods = list(dict.fromkeys(row["method"] for row in found["rows"]))
    speed = {(row["case"], row["method"]): row["gflops"] for row in found["rows"]}
    figure, (axis, memory) = plt.subplots(2, 1, figsize=(12, 8), layout="constrained")
    width = 0.8 / len(methods)
    for i, method in enumerate(methods):
        places = [n + (i - (len(methods) - 1) / 2) * width for n in range(len(cases))]
        axis.bar(places, [speed.get((case, method), 0.0) for case in cases], width, label=method)
    axis.set(yscale="log", ylabel="GFLOP/s")
    axis.set_xticks(range(len(cases)), cases, rotation=20, ha="right")
    axis.legend(ncols=len(methods))
    for gradients in (False, True):
        part = [row for row in found["memory"] if row["gradients"] == gradients]
        label = "forward and gradients" if gradients else "forward"
        memory.plot([row["T"] for row in part], [row["mib"] for row in part], marker="o", label=label)
    memory.set(xlabel="T", ylabel="MiB over the operands, D 256, one head")
    memory.legend()
    figure.suptitle(f"{found['machine']['cpu']}, {found['machine']['cpus']} CPUs")
    figure.savefig(path, dpi=120)


def more_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--torch-python", help="a Python with torch; without it that worker is left out")


if __name__ == "__main__":
    harness.main(__doc__, work, results, show, plot, more_options)

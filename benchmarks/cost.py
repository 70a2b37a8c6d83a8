"""What our kernels do beside MLX's own for the same work, counted by the emulator's meter: no time is measured.

Both run in the emulator from their sources, MLX's from the headers of the installed package (tests/fidelity). Work is
counted at a few tiles and two depths (of K, or keys), and extended to the shape in question: every tile of a whole
number of tiles does the same work, which grows linearly with the depth. Bytes are counted before any cache; what
matmul2d reads of an operand counts once for a threadgroup, for who reads it within is the hardware's affair.

python benchmarks/cost.py --out benchmarks/results/cost.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import mlx.core as mx
import numpy as np

import mlx_tessl as mt
from mlx_tessl.emulator.meter import Meter, Reading

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fidelity.families import gemm, quantized, reduce, sdpa, softmax, steel_attention  # noqa: E402
from tests.fidelity.mlx_kernels import Case  # noqa: E402

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
COUNTED = {
    "device read": lambda r: r.device_read_bytes,
    "device written": lambda r: r.device_written_bytes,
    "threadgroup bytes": lambda r: r.threadgroup_read_bytes + r.threadgroup_written_bytes,
    "matrix flops": lambda r: r.matrix_flops,
    "other flops": lambda r: r.scalar_flops,
    "simd operations": lambda r: r.simd_operations,
    "barriers": lambda r: r.threadgroup_barriers + r.simdgroup_barriers,
}
Counts = dict[str, float]
Shape = tuple[int, int, int]  # M, N, K of a product; heads, queries, keys of attention; rows, 1, columns of rows
Count = Callable[[int, int, int], tuple[str, int, Reading]]  # at a shape: kernel, dispatches, sums


@dataclass(frozen=True)
class Measured:
    """A way to compute something: how it is counted at a shape, and the shapes at which it is counted."""

    name: str
    count: Count
    tiles: tuple[int, int]  # a few whole tiles, with the kernel that the full shape takes
    depths: tuple[int, ...] = (512, 1024)  # two, or the full shape's own


@dataclass(frozen=True)
class Row:
    name: str
    shape: Shape
    ways: tuple[Measured, ...]


def counts_of(reading: Reading) -> Counts:
    return {name: float(count(reading)) for name, count in COUNTED.items()}


def extend(way: Measured, shape: Shape) -> dict[str, Any]:
    """The counts at ``shape``: linear in the depth, in proportion to the number of tiles."""
    M, N, K = shape
    readings = [way.count(*way.tiles, depth) for depth in way.depths]
    kernel, dispatches, first = readings[0]
    assert all(reading[:2] == (kernel, dispatches) for reading in readings)
    low, high = counts_of(first), counts_of(readings[-1][2])
    steps = (K - way.depths[0]) / (way.depths[-1] - way.depths[0]) if len(readings) > 1 else 0.0
    assert len(readings) > 1 or way.depths == (K,)
    factor = M * N / (way.tiles[0] * way.tiles[1])
    counts = {name: factor * (low[name] + (high[name] - low[name]) * steps) for name in COUNTED}
    return {"way": way.name, "kernel": kernel, "dispatches": dispatches, **{n: round(c) for n, c in counts.items()}}


def ours(gpu: str, call: Callable[[int, int, int], Any]) -> Count:
    def count(M: int, N: int, K: int) -> tuple[str, int, Reading]:
        with mt.emulate(gpu, "26.4", check=True) as meter:
            mx.eval(call(M, N, K))
        return meter[0].kernel, len(meter), meter.total()

    return count


def theirs(make: Callable[[int, int, int], Case | tuple[Case, ...]]) -> Count:
    def count(M: int, N: int, K: int) -> tuple[str, int, Reading]:
        made = make(M, N, K)
        cases = (made,) if isinstance(made, Case) else made
        meter = Meter(case.run(case.kernel.source(), check=True) for case in cases)
        return cases[0].kernel.name, len(meter), meter.total()

    return count


def random(*shape: int) -> mx.array:
    values = np.random.default_rng(shape).standard_normal(shape).astype(np.float32)
    array = mx.array(values).astype(mx.bfloat16)
    mx.eval(array)
    return array


def product(**keywords: bool) -> Callable[[int, int, int], mx.array]:
    def call(M: int, N: int, K: int) -> mx.array:
        a, b = random(M, K), random(K, N)
        addends: dict[str, Any] = {}
        if keywords.get("epilogue"):
            addends = {"bias": random(N), "activation": "gelu"}
        if keywords.get("accumulate"):
            addends = {"c": random(M, N), "beta": 1.0}
        mx.eval(*(x for x in addends.values() if isinstance(x, mx.array)))
        return mt.matmul(a, b, stream=mx.cpu, **addends)

    return call


def packed(M: int, N: int, K: int) -> mx.array:
    w, scales, biases = mx.quantize(random(N, K), group_size=64, bits=4)
    x = random(M, K)
    mx.eval(w, scales, biases)
    return mt.quantized_matmul(x, w, scales, biases, stream=mx.cpu)


def attended(D: int, group: int = 1) -> Callable[[int, int, int], mx.array]:
    def call(heads: int, queries: int, keys: int) -> mx.array:
        q, k, v = random(1, heads, queries, D), random(1, heads // group, keys, D), random(1, heads // group, keys, D)
        return mt.attention(q, k, v, scale=D**-0.5, stream=mx.cpu)

    return call


def rows(op: Callable[..., Any], *lines: str) -> Callable[[int, int, int], Any]:
    """An op of rows; `lines` names its other arguments, ``residual`` of the same shape and the others of one row."""

    def call(count: int, _: int, columns: int) -> Any:
        others = {line: random(count, columns) if line == "residual" else random(columns) for line in lines}
        return op(random(count, columns), **others, stream=mx.cpu)

    return call


def rotated(count: int, _: int, columns: int) -> mx.array:
    return mt.rope(random(count, columns), mx.arange(count), mt.rope_inv_freq(columns, 1e4), stream=mx.cpu)


def prefill(D: int) -> tuple[Row, Row]:
    """Attention of whole texts. MLX takes its kernels for 256 columns on request only, but for causal ones on NAX."""
    shape = (8, 2048, 2048)
    on_request = " (on request)" if D == 256 else ""
    return (
        Row(
            f"attention, bfloat16, D = {D}, matrix units (M5 Max)",
            shape,
            (
                Measured("ours", ours("m5-max", attended(D)), (1, 64), (64, 128)),
                Measured(
                    f"MLX NAX{on_request}",
                    theirs(lambda H, Tq, Tk: steel_attention.nax(BFLOAT16, H, H, Tq, Tk, D)),
                    (1, 64),
                    (64, 128),
                ),
            ),
        ),
        Row(
            f"attention, bfloat16, D = {D}, simdgroup_matrix (M4)",
            shape,
            (
                Measured("ours", ours("m4", attended(D)), (1, 64), (64, 128)),
                Measured(
                    f"MLX steel{on_request}",
                    theirs(lambda H, Tq, Tk: steel_attention.steel(BFLOAT16, H, H, Tq, Tk, D)),
                    (1, 64),
                    (64, 128),
                ),
            ),
        ),
    )


def decode(keys: int, depths: tuple[int, int], D: int = 128, group: int = 4) -> Row:
    """One query of 32 heads on 8; on an M4 MLX splits keys from 4096 on, on larger GPUs from 1024 on."""
    return Row(
        f"attention of one query, bfloat16, D = {D}, four heads on one",
        (32, 1, keys),
        (
            Measured("ours", ours("m4", attended(D, group)), (group, 1), depths),
            Measured(
                "MLX, one pass",
                theirs(lambda H, Tq, Tk: sdpa.sdpa_vector(BFLOAT16, H, H // group, Tq, Tk, D, D)),
                (group, 1),
                depths,
            ),
            Measured(
                "MLX, two passes",
                theirs(lambda H, Tq, Tk: sdpa.sdpa_two_passes(BFLOAT16, H, H // group, Tq, Tk, D, 64)),
                (group, 1),
                depths,
            ),
        ),
    )


def of_rows(name: str, columns: int, ours_: Any, theirs_: Callable[[int, int], Case] | None) -> Row:
    """An op of 4096 rows, counted at 8."""
    ways = [Measured("ours", ours("m4", ours_), (8, 1), (columns,))]
    if theirs_ is not None:
        ways.append(Measured("MLX", theirs(lambda M, _, N: theirs_(M, N)), (8, 1), (columns,)))
    return Row(f"{name}, bfloat16", (4096, 1, columns), tuple(ways))


SQUARE = (2048, 2048, 2048)
BATCH = (512, 4096, 4096)
TOKEN = (1, 4096, 4096)

ROWS = (
    Row(
        "bfloat16, matrix units (M5 Max)",
        SQUARE,
        (
            Measured("ours", ours("m5-max", product()), (256, 1280)),
            Measured("ours, bias and gelu", ours("m5-max", product(epilogue=True)), (256, 1280)),
            Measured("ours, beta c", ours("m5-max", product(accumulate=True)), (256, 1280)),
            Measured(
                "MLX NAX",
                theirs(lambda M, N, K: gemm.gemm(True, "nn", BFLOAT16, M, N, K, (64, 128, 256, 2, 4), 2)),
                (256, 256),
            ),
        ),
    ),
    Row(
        "bfloat16, simdgroup_matrix (M4)",
        SQUARE,
        (
            Measured("ours", ours("m4", product()), (256, 192), (64, 128)),
            Measured(
                "MLX steel",
                theirs(lambda M, N, K: gemm.gemm(False, "nn", BFLOAT16, M, N, K, (64, 64, 16, 2, 2))),
                (128, 128),
                (64, 128),
            ),
        ),
    ),
    Row(
        "4 bit, matrix units (M5 Max)",
        BATCH,
        (
            Measured("ours", ours("m5-max", packed), (256, 1280), (128, 256)),
            Measured(
                "MLX NAX",
                theirs(lambda M, N, K: quantized.affine_qmm(BFLOAT16, M, N, K, nax=True)),
                (128, 128),
                (128, 256),
            ),
        ),
    ),
    Row(
        "4 bit, simdgroup_matrix (M4)",
        BATCH,
        (
            Measured("ours", ours("m4", packed), (256, 192), (64, 128)),
            Measured("MLX qmm", theirs(lambda M, N, K: quantized.affine_qmm(BFLOAT16, M, N, K)), (64, 64), (64, 128)),
        ),
    ),
    Row(
        "4 bit, one row",
        TOKEN,
        (
            Measured("ours", ours("m5-max", packed), (1, 64), (1024, 2048)),
            Measured("MLX qmv", theirs(lambda M, N, K: quantized.affine_qmv(BFLOAT16, M, N, K)), (1, 64), (1024, 2048)),
        ),
    ),
    *(row for D in (64, 128, 256) for row in prefill(D)),
    decode(1024, (512, 1024)),
    decode(16384, (2048, 4096)),
    of_rows("softmax", 2048, rows(mt.softmax), lambda M, N: softmax.softmax(False, BFLOAT16, M, N)),
    of_rows("softmax", 32768, rows(mt.softmax), lambda M, N: softmax.softmax(True, BFLOAT16, M, N)),
    of_rows("logsumexp", 32768, rows(mt.logsumexp), lambda M, N: reduce.logsumexp(True, BFLOAT16, M, N)),
    of_rows("row_sum", 2048, rows(mt.row_sum), lambda M, N: reduce.row_reduce("sum", BFLOAT16, M, N)),
    of_rows("rms_norm", 2048, rows(partial(mt.rms_norm, eps=1e-6), "weight"), None),
    of_rows("layer_norm", 2048, rows(partial(mt.layer_norm, eps=1e-6), "weight", "bias"), None),
    of_rows(
        "layer_norm with residual", 2048, rows(partial(mt.layer_norm, eps=1e-6), "weight", "bias", "residual"), None
    ),
    of_rows("rope", 128, rotated, None),
    of_rows("row_max", 2048, rows(mt.row_max), lambda M, N: reduce.row_reduce("max", BFLOAT16, M, N)),
)


def table(results: list[dict[str, Any]]) -> str:
    heads = ["work", "shape", "kernel", "dispatches", *COUNTED]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in results:
        shape = "x".join(map(str, row["shape"]))
        for i, way in enumerate(row["ways"]):
            cells = [row["name"] if i == 0 else "", shape if i == 0 else "", way["way"], str(way["dispatches"])]
            lines.append("| " + " | ".join(cells + [short(way[name]) for name in COUNTED]) + " |")
    return "\n".join(lines)


def short(number: float) -> str:
    """Three digits and a decimal prefix."""
    for prefix in ("", " k", " M", " G", " T"):
        if number < 1000:
            return f"{number:.3g}{prefix}"
        number /= 1000
    return f"{number:.3g} P"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the counts here as JSON")
    parser.add_argument("--only", default="", help="only work whose name contains this")
    options = parser.parse_args()
    results = []
    for row in ROWS:
        if options.only in row.name:
            ways = [extend(way, row.shape) for way in row.ways]
            results.append({"name": row.name, "shape": row.shape, "ways": ways})
            print(table(results[-1:]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()

"""The largest share of its error bound that each op used, by dtype and path: the figures of docs/numerics.md.

The CPU path runs every case of the conformance table (tests/ops/conformance), in every layout, with several seeds. The
Metal kernels run in the emulator: those of the matrix products the fuzz cases that cover each variant (tests/fuzz),
those of attention the problems of their tests (tests/kernels), the others the conformance table.

python benchmarks/numerics.py --out benchmarks/results/numerics.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import sys
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import mlx.core as mx
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzz.cases import Case, kernels, run  # noqa: E402
from tests.kernels import test_attention_kernels as attention_kernels  # noqa: E402
from tests.kernels.attention_problems import Problem  # noqa: E402
from tests.kernels.test_row_kernels import ROW_OPS, emulated  # noqa: E402
from tests.ops import test_attention as attention  # noqa: E402
from tests.ops.conformance import SPECS, OpSpec  # noqa: E402
from tests.ops.conformance import Case as ConformanceCase  # noqa: E402
from tests.ops.conformance.gated_delta import CHUNKS, GATED_DELTA  # noqa: E402
from tests.ops.layouts import LAYOUTS  # noqa: E402
from tests.ops.test_conformance import DTYPES, fixed, make, results, used_fraction  # noqa: E402

Largest = dict[str, dict[str, dict[str, float]]]  # by op, path and dtype


def cpu(largest: Largest, seeds: int = 1) -> None:
    for spec in tqdm(SPECS, desc="cpu"):
        if spec.gives_indices:
            continue
        for case in spec.cases:
            for dtype in DTYPES:
                for layout in LAYOUTS:
                    for seed in range(seeds):
                        inputs = make(case, dtype, layout, seed)
                        outputs = results(spec.op(**inputs, **fixed(case), stream=mx.cpu))
                        note(largest, spec.name, "cpu", dtype, used_fraction(spec, case, inputs, outputs, dtype))


def cpu_gradients_of_attention(largest: Largest) -> None:
    size = (2, 4, 2, 70, 110, 24, 20)
    cases = itertools.product(attention.MASKS, (None, (60, None)), attention.PADDING, attention.EXTRAS, (False, True))
    for case in tqdm(list(cases), desc="gradients"):
        keywords = attention.options(*case, size)
        for dtype, mx_dtype in DTYPES.items():
            for name, used in attention.gradients_used(attention.inputs(size, mx_dtype), keywords).items():
                note(largest, gradient_name(name), "cpu", dtype, used)


def gradient_name(operand: str) -> str:
    """A prefix is computed as keys and values are."""
    return f"attention, d{operand.removeprefix('prefix_')}"


def products(largest: Largest) -> None:
    lines = (ROOT / "tests/fuzz/covering.jsonl").read_text().splitlines()
    for case in tqdm([Case.parse(line) for line in lines], desc="products"):
        path = path_of(kernels(case)) + (", relaxed" if "relaxed" in str(kernels(case)) else "")
        note(largest, case.op, path, case.dtype, run(case))


def attention_shaders(largest: Largest) -> None:
    for problem in tqdm(attention_kernels.forward_problems(), desc="attention"):
        path = attention_path(problem, problem.call().kind)
        for result, used in attention_kernels.forward_used(problem, check=False).items():
            name = "attention" if result == "out" else "attention, log-sum-exp"
            note(largest, name, path, problem.dtype, used)
    for problem in tqdm(attention_kernels.gradient_problems(), desc="gradients"):
        tensorops = any(launch.family.endswith("tensorops") for launch in problem.call().grad_plan().launches)
        path = attention_path(problem, "tensorops" if tensorops else "portable")
        for operand, used in attention_kernels.gradients_used(problem, check=False).items():
            note(largest, gradient_name(operand), path, problem.dtype, used)


def attention_path(problem: Problem, kind: str) -> str:
    return kind + (", relaxed" if kind == "tensorops" and problem.dtype == "float32" else "")


# Ops whose shaders run the conformance table, and on which device.
PORTABLE = ("m1", "14.0")
TABLES = {
    **{name: {"portable": PORTABLE} for name in ROW_OPS - {"argmax", "sample", "kv_store"}},
    **{name: {"portable": PORTABLE} for name in ("gated_delta", "causal_conv1d")},
    "sparse_max_pool": {"portable": PORTABLE, "tensorops": ("m5-pro", "26.4")},
}


def tables(largest: Largest) -> None:
    for spec in tqdm([spec for spec in SPECS if spec.name in TABLES], desc="rows"):
        for path, device in TABLES[spec.name].items():
            cases = [case for case in spec.cases if has_elements(case)]
            if spec is GATED_DELTA:
                cases.append(CHUNKS)
            for case, dtype in itertools.product(cases, DTYPES):
                if path == "tensorops" and dtype == "float32":
                    continue  # exact float32 does not run there
                note(largest, spec.name, path, dtype, used_by_shaders(spec, case, dtype, device))


def has_elements(case: ConformanceCase) -> bool:
    return all(math.prod(shape) > 0 for shape in case.shapes.values())


def used_by_shaders(spec: OpSpec, case: ConformanceCase, dtype: str, device: tuple[str, str]) -> float:
    inputs = make(case, dtype)
    outputs = emulated(spec.op, inputs, fixed(case), device, check=False)
    return used_fraction(spec, case, inputs, outputs, dtype)


def path_of(names: list[str]) -> str:
    """The kind of kernel: split, vector, portable, tensorops, direct, staged, or a format that matmul2d decodes."""
    if any("_reduce_" in name for name in names):
        return "split"
    match = re.search(r"_(vector|portable|tensorops|direct|staged|mxfp4|mxfp8)_", names[-1])
    assert match
    return match[1]


def note(largest: Largest, op: str, path: str, dtype: str, used: float) -> None:
    by_dtype = largest[op][path]
    by_dtype[dtype] = max(by_dtype.get(dtype, 0.0), used)


def table(largest: Largest) -> str:
    lines = ["| op | path | float32 | float16 | bfloat16 |", "|---|---|---|---|---|"]
    for op in sorted(largest):
        for path in sorted(largest[op]):
            shares = largest[op][path]
            cells = [f"{shares[dtype]:.2f}" if dtype in shares else "" for dtype in DTYPES]
            if "int32" in shares:
                cells[0] = cells[0] or "exact (int32)"
            lines.append(f"| `{op}` | {path} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


PARTS: dict[str, Callable[[Largest], None]] = {
    "cpu": cpu,
    "gradients": cpu_gradients_of_attention,
    "products": products,
    "attention": attention_shaders,
    "rows": tables,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the shares here as JSON")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, default=list(PARTS), help="what to measure; all unless told"
    )
    options = parser.parse_args()
    largest: Largest = defaultdict(lambda: defaultdict(dict))
    for part in options.parts:
        if part == "cpu":
            cpu(largest, options.seeds)
        else:
            PARTS[part](largest)
    print(table(largest))
    if options.out:
        # Parts that were not measured stay.
        earlier = json.loads(options.out.read_text()) if options.out.exists() else {}
        for op, paths in earlier.items():
            for path, shares in paths.items():
                largest[op][path] = {**shares, **largest[op][path]}
        options.out.write_text(json.dumps(largest, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

"""The largest share of its error bound that each op used, by dtype and path: the figures of docs/numerics.md.

The CPU path runs every case of the conformance table (tests/ops/conformance), in every layout, with several seeds; the
Metal kernels of the matrix products run the fuzz cases that cover each variant (tests/fuzz), in the emulator.

python benchmarks/numerics.py --out benchmarks/results/numerics.json
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from pathlib import Path

import mlx.core as mx
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzz.cases import Case, kernels, run  # noqa: E402
from tests.ops.conformance import SPECS  # noqa: E402
from tests.ops.layouts import LAYOUTS  # noqa: E402
from tests.ops.test_conformance import DTYPES, fixed, make, results, used_fraction  # noqa: E402

Largest = dict[str, dict[str, dict[str, float]]]  # by op, path and dtype


def cpu(largest: Largest, seeds: int) -> None:
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


def emulated(largest: Largest) -> None:
    lines = (ROOT / "tests/fuzz/covering.jsonl").read_text().splitlines()
    for case in tqdm([Case.parse(line) for line in lines], desc="kernels"):
        path = path_of(kernels(case)) + (", relaxed" if "relaxed" in str(kernels(case)) else "")
        note(largest, case.op, path, case.dtype, run(case))


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the shares here as JSON")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--cpu-only", action="store_true", help="leave the emulator out")
    options = parser.parse_args()
    largest: Largest = defaultdict(lambda: defaultdict(dict))
    cpu(largest, options.seeds)
    if not options.cpu_only:
        emulated(largest)
    print(table(largest))
    if options.out:
        options.out.write_text(json.dumps(largest, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()

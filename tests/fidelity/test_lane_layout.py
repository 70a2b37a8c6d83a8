"""A negative control: matrix units that hand out elements in another order than MLX counts on give wrong products."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from mlx_tessl.emulator import compiler
from mlx_tessl.emulator.runtime import Source

from .families.gemm import gemm
from .mlx_kernels import INCLUDE
from .numerics import FLOAT16

ROW = "const int row = ((quad & 4) | (lane >> 1 & 3)) + (slot >> 2) * 8;"
COLUMN = "const int col = ((quad & 2) | (lane & 1)) * 4 + (slot & 3);"

RETURN = "return {row, col, true};"

# What is planted in fragment_place() of the runtime's layout.h, in place of what was measured: all are permutations.
LAYOUTS = {
    "as measured": {},
    "rows of a lane next to each other": {ROW: "const int row = ((quad & 4) | (lane >> 1 & 3)) * 2 + (slot >> 2);"},
    "neighbours in a column": {RETURN: "return {col, row, true};"},
    "lanes in order": {
        ROW: "const int row = quad + (slot >> 2) * 8;",
        COLUMN: "const int col = (lane & 3) * 4 + (slot & 3);",
    },
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gemm_nax_needs_the_measured_layout(layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "include"
    shutil.copytree(compiler.runtime_directory(), runtime)
    header = runtime / "tensor" / "layout.h"
    text = header.read_text()
    for measured, planted in LAYOUTS[layout].items():
        assert measured in text
        text = text.replace(measured, planted)
    header.write_text(text)
    monkeypatch.setattr(compiler, "runtime_directory", lambda: runtime)

    case = gemm(True, "nn", FLOAT16, 70, 45, 133, (64, 64, 256, 2, 2))
    source = Source(case.kernel.source().path, msl=400, compiler=compiler.Compiler([INCLUDE], cache=tmp_path / "cache"))
    case.run(source)
    is_right = case.results[0].used() <= 1.0
    assert is_right == (not LAYOUTS[layout])
    assert not np.isnan(case.results[0].array.astype(np.float32)).any()

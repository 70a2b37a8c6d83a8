"""Kernels that Apple's compiler compiled, against the same kernels from source: the same bits on the same runtime.

What the two share is the runtime; what differs is the whole way there. It checks the emulator's front end, the
stand-in headers and the host compiler, and not what the runtime makes of an operation.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from mlx_tessl.emulator.compiler import Compiler, Variant
from mlx_tessl.emulator.runtime import Source

from .air import translate
from .air.compiler import AirCompiler
from .air.metallib import Metallib
from .air.wheel import air_modules
from .families import gated_delta, gemm, quantized, sdpa, softmax, steel_attention
from .mlx_kernels import INCLUDE, Case
from .numerics import BFLOAT16, FLOAT16, FLOAT32

TILE = (64, 64, 16, 2, 2)
HEADS = gated_delta.Shape(B=1, T=19, Hk=16, Hv=16, Dk=128, Dv=128)

CASES: dict[str, Callable[[], Case]] = {
    "softmax float16": lambda: softmax.softmax(False, FLOAT16, 3, 133),
    "softmax float32 looped": lambda: softmax.softmax(True, FLOAT32, 2, 4501),
    "sdpa_vector float16": lambda: sdpa.sdpa_vector(FLOAT16, 4, 2, 1, 77, 128, 128),
    "gemm nt float16": lambda: gemm.gemm(False, "nt", FLOAT16, 70, 45, 133, TILE),
    "gemm nn float32 whole tiles": lambda: gemm.gemm(False, "nn", FLOAT32, 128, 64, 64, TILE),
    "gemm_nax nn float16": lambda: gemm.gemm(True, "nn", FLOAT16, 70, 45, 133, (64, 64, 256, 2, 2)),
    "gemm_nax nt float32": lambda: gemm.gemm(True, "nt", FLOAT32, 70, 77, 133, (64, 128, 64, 2, 4)),
    "attention_nax float16 causal": lambda: steel_attention.nax(FLOAT16, 4, 2, 70, 77, 64, 32, True),
    "qmv float16": lambda: quantized.affine_qmv(FLOAT16, 3, 45, 320),
    "qmm float16": lambda: quantized.affine_qmm(FLOAT16, 37, 45, 192),
    "qmm_nax float16": lambda: quantized.affine_qmm(FLOAT16, 70, 77, 192, 64, 4, True),
    "fp_qmm_nax mxfp4 float16": lambda: quantized.fp_qmm_nax("mxfp4", FLOAT16, 70, 77, 192),
    "fp_qmm_nax nvfp4 bfloat16": lambda: quantized.fp_qmm_nax("nvfp4", BFLOAT16, 37, 64, 128),
    "gated_delta chunk float16": lambda: gated_delta.forward("chunk", FLOAT16, HEADS),
    "gated_delta nax float32": lambda: gated_delta.forward("nax", FLOAT32, HEADS),
}


@pytest.fixture(scope="module")
def modules() -> dict[str, Path]:
    """The AIR of every case's kernel; both ways to it are compiled at once, on all cores."""
    cases = [make() for make in CASES.values()]
    found = air_modules(case.kernel.name for case in cases)

    def compile_both(case: Case) -> None:
        kernel = case.kernel
        AirCompiler(case.constants).compile(found[kernel.name], kernel.name, Variant(kernel.msl))
        Compiler([INCLUDE]).compile(*kernel.job(checked=False))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        list(pool.map(compile_both, cases))
    return found


def run_both(name: str, modules: dict[str, Path]) -> tuple[Case, Case]:
    """A case from source and from AIR, both run."""
    from_source, from_air = CASES[name](), CASES[name]()
    kernel = from_air.kernel
    from_source.run(kernel.source())
    from_air.run(Source(modules[kernel.name], msl=kernel.msl, compiler=AirCompiler(from_air.constants)))
    return from_source, from_air


def same_bits(a: Case, b: Case) -> bool:
    return all(x.array.tobytes() == y.array.tobytes() for x, y in zip(a.results, b.results, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_bits_are_the_same(name: str, modules: dict[str, Path]) -> None:
    from_source, from_air = run_both(name, modules)
    assert same_bits(from_source, from_air)
    assert all(result.used() <= 1.0 for result in from_air.results)


def test_one_rounding_less_shows(modules: dict[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(translate, "_unfuse", lambda ir: ir)
    monkeypatch.setenv("MLX_TESSL_CACHE", str(tmp_path))
    assert not same_bits(*run_both("gated_delta chunk float16", modules))


def test_function_constants_are_set_in_air() -> None:
    air = (
        "@_Z1m.MTL_FC_INIT_200_b = internal unnamed_addr addrspace(2) externally_initialized constant i8 undef, "
        'section "air.fc_initializer", align 1'
    )
    assert translate._set_constants(air, {200: True}).startswith("@_Z1m.MTL_FC_INIT_200_b = internal")
    assert " constant i8 1, " in translate._set_constants(air, {200: True})
    assert " constant i8 0, " in translate._set_constants(air, {})


def test_matrices_keep_what_a_lane_holds() -> None:
    widened = "%3 = shufflevector <2 x float> %1, <2 x float> poison, <64 x i32> <i32 0, i32 1, i32 poison, i32 poison>"
    merged = "%4 = shufflevector <64 x float> %3, <64 x float> %2, <64 x i32> <i32 0, i32 65, i32 66, i32 67>"
    taken = "%5 = shufflevector <64 x float> %4, <64 x float> poison, <2 x i32> <i32 1, i32 64>"
    assert translate._narrow_matrices(widened).endswith("poison, <2 x i32> <i32 0, i32 1>")
    assert translate._narrow_matrices(merged).endswith("<2 x float> %2, <2 x i32> <i32 0, i32 3>")
    assert translate._narrow_matrices(taken).endswith("poison, <2 x i32> <i32 1, i32 2>")


def test_something_else_is_no_metallib() -> None:
    with pytest.raises(ValueError, match="not a metallib"):
        Metallib.parse(b"PK" + bytes(100))

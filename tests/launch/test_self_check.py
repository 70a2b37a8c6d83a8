"""Which products of a matrix kernel earn trust: the decision behind the Metal gate, fed with kernels that err."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt
from mlx_tessl import _ext

from ..kernels.mutants import bindings, source_of

Matrix = np.ndarray
M, N, K = 16, 32, 64


def verdict(kernel: Callable[[Matrix, Matrix], Matrix]) -> tuple[bool, str]:
    def product(a: list[float], b: list[float]) -> list[float]:
        out = kernel(np.array(a, np.float32).reshape(M, K), np.array(b, np.float32).reshape(K, N))
        return out.astype(np.float32).ravel().tolist()

    return _ext.check_product(product)


def below_row_8(a: Matrix, b: Matrix, garbage: float) -> Matrix:
    out = a @ b
    out[8:] = garbage
    return out


def one_element(a: Matrix, b: Matrix) -> Matrix:
    out = a @ b
    out[11, 17] += 1
    return out


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize(("gpu", "macos"), [("m5", "26.2"), ("m5-pro", "26.4"), ("m5-max", "27.0")])
def test_the_check_runs_a_tensorops_kernel(dtype: str, gpu: str, macos: str) -> None:
    operands = (_ext.plan.Operand([M, K]), _ext.plan.Operand([K, N]))
    plan = _ext.plan.Matmul(dtype, *operands, relaxed=True, gpu=gpu, macos=macos).plan()
    assert [launch.capability for launch in plan.launches] == ["tensorops"]


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16, mx.float32])
def test_our_tensorops_kernel_is_trusted(dtype: mx.Dtype) -> None:
    pytest.importorskip("ziglang")

    def kernel(a: Matrix, b: Matrix) -> Matrix:
        with mt.emulate(gpu="m5-pro", macos="26.4") as meter:
            out = mt.matmul(mx.array(a).astype(dtype), mx.array(b).astype(dtype), precision="relaxed", stream=mx.cpu)
            mx.eval(out)
        assert "tensorops" in meter[0].kernel
        return np.array(out.astype(mx.float32))

    assert verdict(kernel) == (True, "the self-check product is exact")


CHECKS = [
    pytest.param(gpu, macos, i, id=f"{check[0]} on {gpu}, macOS {macos}")
    for gpu, macos in (("m5-pro", "26.4"), ("m5", "27.0"))
    for i, check in enumerate(_ext.tensorops_checks(gpu, macos))
]


def test_every_family_of_matrix_products_is_checked() -> None:
    families = {
        launch.family
        for *_, plan, _, _, _ in _ext.tensorops_checks("m5", "27.0")
        for launch in plan.launches
        if launch.capability != "portable"
    }
    present = {path.stem for path in mt.kernels_path().glob("*matmul_tensorops*.metal")}
    assert present | {"gated_delta_tensorops"} == families
    assert len(_ext.tensorops_checks("m5", "27.0")) == len(_ext.tensorops_checks("m5", "26.4")) + 1
    assert _ext.tensorops_checks("m4", "27.0") == []


@pytest.mark.parametrize(("gpu", "macos", "index"), CHECKS)
def test_a_plan_of_the_gate_computes_the_product(gpu: str, macos: str, index: int) -> None:
    """The launches and inputs that the gate would run on a Mac."""
    pytest.importorskip("ziglang")
    name, rows, plan, inputs, outputs, holds_kernel = _ext.tensorops_checks(gpu, macos)[index]
    assert holds_kernel, name
    arrays = [np.array(x.view(_integers(x.dtype))) for x in inputs]
    results = [np.zeros(shape, np.uint16 if dtype.size == 2 else np.uint32) for shape, dtype in outputs]
    scratch = [np.zeros(nbytes // 4, np.float32) for nbytes in plan.scratch]
    for launch in plan.launches:
        source_of(launch.family).launch(
            launch.kernel,
            bindings(launch, arrays, results, scratch),
            grid=launch.grid,
            group=launch.group,
            constants=dict(launch.constants),
        )
    dtype = outputs[0][1]
    result = np.array(mx.array(results[0]).view(dtype).astype(mx.float32)).reshape(-1, N)[-rows:]
    assert _ext.check_product(lambda a, b: result.ravel().tolist(), rows) == (True, "the self-check product is exact")
    result[rows - 1, N - 1] += 1
    assert not _ext.check_product(lambda a, b: result.ravel().tolist(), rows)[0]


def _integers(dtype: mx.Dtype) -> mx.Dtype:
    """NumPy has no bfloat16: bits do."""
    return {1: mx.uint8, 2: mx.uint16, 4: mx.uint32}[dtype.size]


def test_a_right_product_is_trusted() -> None:
    assert verdict(lambda a, b: a @ b) == (True, "the self-check product is exact")


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_operands_and_sums_are_exact_in_every_format(dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    kind = np.float16 if dtype == "float16" else ml_dtypes.bfloat16

    def kernel(a: Matrix, b: Matrix) -> Matrix:
        assert (a.astype(kind) == a).all()
        return (a @ b).astype(kind).astype(np.float32)

    assert verdict(kernel)[0]


@pytest.mark.parametrize("garbage", [0.0, np.nan, 1e33])
def test_garbage_from_row_8_on_is_refused(garbage: float) -> None:
    trusted, reason = verdict(lambda a, b: below_row_8(a, b, garbage))
    assert not trusted
    assert "first in row 8" in reason
    assert "of 512 elements" in reason


@pytest.mark.parametrize(
    "kernel",
    [
        lambda a, b: np.zeros((M, N)),
        lambda a, b: one_element(a, b),
        lambda a, b: a[:, :48] @ b[:48],  # the last step of K is lost
        lambda a, b: a[:, :16] @ b[:16] * 4,
        lambda a, b: (a @ b)[::-1],
        lambda a, b: np.roll(a @ b, 1, axis=1),
        lambda a, b: np.roll(a, 1, axis=1) @ b,
        lambda a, b: a.reshape(K, M).T @ b,  # a taken for its transpose
        lambda a, b: a @ b.reshape(N, K).T,
        lambda a, b: np.concatenate([(a @ b)[:, :16]] * 2, axis=1),
    ],
)
def test_a_wrong_product_is_refused(kernel: Callable[[Matrix, Matrix], Matrix]) -> None:
    trusted, reason = verdict(kernel)
    assert not trusted
    assert "in place of" in reason


def test_a_product_of_another_size_is_refused() -> None:
    assert verdict(lambda a, b: (a @ b)[:8]) == (False, "the self-check product has 256 elements, not 512")


def test_a_kernel_that_fails_is_refused_and_told() -> None:
    def fails(a: Matrix, b: Matrix) -> Matrix:
        raise RuntimeError("Unable to build metal library from source")

    trusted, reason = verdict(fails)
    assert not trusted
    assert "could not run" in reason
    assert "Unable to build metal library" in reason

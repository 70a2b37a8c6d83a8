"""What the conformance table does not say about matmul and linear."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    return mx.array(np.random.default_rng(seed).standard_normal(shape).astype(np.float32)).astype(dtype)


def test_beta_zero_never_reads_c() -> None:
    poison = mx.full((5, 7), float("nan"))
    assert mx.array_equal(
        mt.matmul(normal(5, 3), normal(3, 7), poison, beta=0.0), mt.matmul(normal(5, 3), normal(3, 7))
    )


@pytest.mark.parametrize("M", [1, 3, 40, 300])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_nan_and_infinity_spread_as_in_the_plain_product(M: int, dtype: mx.Dtype) -> None:
    a = normal(M, 70, dtype=dtype)
    b = normal(70, 50, seed=1, dtype=dtype)
    a[M // 2, 3] = float("nan")
    b[5, 6] = float("inf")
    b[7, 8] = 0
    a[0, 7] = float("inf")
    result = np.array(mt.matmul(a, b).astype(mx.float32))
    with np.errstate(invalid="ignore"):
        expected = np.array(a.astype(mx.float32)) @ np.array(b.astype(mx.float32))
    assert np.array_equal(np.isnan(result), np.isnan(expected))
    assert np.array_equal(np.isinf(result), np.isinf(expected))


def test_zero_alpha_keeps_nan() -> None:
    a = mx.full((4, 4), float("nan"))
    assert mx.all(mx.isnan(mt.matmul(a, mx.ones((4, 4)), alpha=0.0))).item()


def test_stride_zero_batch_is_read_in_place() -> None:
    a = normal(6, 9, 11)
    b = mx.broadcast_to(normal(11, 5, seed=1), (6, 11, 5))
    assert mx.allclose(mt.matmul(a, b), mx.matmul(a, b), atol=1e-5).item()


def test_many_small_products() -> None:
    a, b = normal(3000, 3, 4), normal(3000, 4, 5, seed=1)
    assert mx.allclose(mt.matmul(a, b), mx.matmul(a, b), atol=1e-5).item()


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        (mx.float16, mx.float32, mx.float32),
        (mx.bfloat16, mx.float16, mx.float32),
        (mx.int32, mx.bfloat16, mx.bfloat16),
    ],
)
def test_mixed_dtypes_promote_as_in_mlx(a: mx.Dtype, b: mx.Dtype, expected: mx.Dtype) -> None:
    result = mt.matmul(mx.ones((3, 4), a), mx.ones((4, 5), b))
    assert result.dtype == expected
    assert mx.all(result == 4).item()


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
@pytest.mark.parametrize("K", [1, 17, 64, 400, 2048])
def test_batch_invariant_rows_keep_their_bits(dtype: mx.Dtype, K: int) -> None:
    x, weight, bias = normal(133, K, dtype=dtype), normal(65, K, seed=1, dtype=dtype), normal(65, seed=2, dtype=dtype)
    together = mt.linear(x, weight, bias, activation="gelu", batch_invariant=True)
    for rows in (slice(0, 1), slice(132, 133), slice(40, 57), slice(7, 130)):
        alone = mt.linear(x[rows], weight, bias, activation="gelu", batch_invariant=True)
        assert mx.array_equal(alone, together[rows]), rows
    stacked = mt.linear(mx.stack([x, x[::-1]]), weight, bias, activation="gelu", batch_invariant=True)
    assert mx.array_equal(stacked[0], together)
    assert mx.array_equal(stacked[1][::-1], together)


def test_repeated_runs_give_the_same_bits() -> None:
    a, b = normal(300, 1000), normal(1000, 200, seed=1)
    first = mt.matmul(a, b)
    assert all(mx.array_equal(mt.matmul(a, b), first) for _ in range(10))


def test_products_of_a_cancelling_sum_are_accumulated_in_float32() -> None:
    """1 + K tiny terms of alternating sign: rounding partial sums to bfloat16 would lose them."""
    K = 4096
    ones = mx.ones((2, K), mx.bfloat16)
    terms = mx.array(np.where(np.arange(K) % 2, -1.0, 1.0078125).astype(np.float32))[:, None].astype(mx.bfloat16)
    assert mt.matmul(ones, terms)[0].item() == 16.0


def test_gradient_reaches_only_what_was_asked() -> None:
    x, w = normal(4, 5), normal(3, 5, seed=1)
    gradient = mx.grad(lambda w: mt.linear(x, w).sum())(w)
    assert mx.allclose(gradient, mx.broadcast_to(x.sum(0), w.shape), atol=1e-6).item()


def test_gradient_keeps_the_dtype() -> None:
    x, w = normal(4, 5, dtype=mx.bfloat16), normal(3, 5, seed=1, dtype=mx.bfloat16)
    gradients = mx.grad(lambda x, w: mt.linear(x, w, activation="gelu").sum(), argnums=(0, 1))(x, w)
    assert [g.dtype for g in gradients] == [mx.bfloat16, mx.bfloat16]


def test_custom_function_and_checkpoint() -> None:
    x, w = normal(4, 5), normal(3, 5, seed=1)

    def loss(w: mx.array) -> mx.array:
        return mt.linear(x, w, activation="silu").square().sum()

    assert mx.allclose(mx.grad(mx.checkpoint(loss))(w), mx.grad(loss)(w)).item()


def test_export_of_the_twin(tmp_path) -> None:
    x, w = normal(4, 5), normal(3, 5, seed=1)
    path = str(tmp_path / "linear.mlxfn")
    with mt.use_reference():
        mx.export_function(path, lambda x: mt.linear(x, w, activation="gelu"), x)
    (result,) = mx.import_function(path)(x)
    assert mx.allclose(result, mt.linear(x, w, activation="gelu"), atol=1e-6).item()


def test_precision_is_part_of_the_primitive() -> None:
    a, b = normal(8, 8), normal(8, 8, seed=1)

    def launches(*precisions: str) -> int:
        total = mx.compile(lambda a, b: sum(mt.matmul(a, b, precision=precision) for precision in precisions))
        with mt.trace() as entries:
            mx.eval(total(a, b))
        return len(entries)

    assert launches("exact", "exact") == 1
    assert launches("exact", "relaxed") == 2

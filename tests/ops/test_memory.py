"""A result that is larger than the machine's memory is refused: memory that is not there would be written."""

from __future__ import annotations

from collections.abc import Callable

import mlx.core as mx
import pytest

import mlx_tessl as mt

MANY = 1 << 20
one_column = mx.broadcast_to(mx.array([[1.0]]), (MANY, 1))
wide = mx.broadcast_to(mx.array(1.0), (MANY, MANY))
bytes_ = mx.broadcast_to(mx.array(1, mx.int8), (MANY, 1))
weight = mx.quantize(mx.ones((2, 64)))


@pytest.mark.parametrize(
    ("call", "op"),
    [
        (lambda: mt.matmul(one_column, one_column.T), "matmul"),
        (lambda: mt.linear(one_column, one_column), "matmul"),
        (lambda: mt.int8_matmul(bytes_, bytes_.T), "int8_matmul"),
        (lambda: mt.swiglu(wide, wide), "gate"),
        (lambda: mt.softmax(wide), "reduction"),
        (lambda: mt.rms_norm(wide, None, 1e-5), "norm"),
        (lambda: mt.kv_store(wide, wide[:1], 0), "kv_store"),
        (
            lambda: mt.quantized_embedding(mx.broadcast_to(mx.array(0), (MANY, 1 << 14)), *weight),
            "quantized_embedding",
        ),
        (
            lambda: mt.attention(
                mx.broadcast_to(mx.array(1.0), (1, 1, MANY, 1)),
                mx.ones((1, 1, 1, 1)),
                mx.broadcast_to(mx.array(1.0), (1, 1, 1, MANY)),
                scale=1.0,
            ),
            "attention",
        ),
    ],
)
def test_too_large(call: Callable[[], mx.array], op: str) -> None:
    with mt.trace() as entries, pytest.raises(ValueError, match=rf"^\[mlx_tessl\.{op}\] a result of shape .* GB"):
        mx.eval(call())
    assert entries == []
    assert mx.array_equal(mt.matmul(mx.ones((2, 3)), mx.ones((3, 2))), 3 * mx.ones((2, 2)))  # all goes on

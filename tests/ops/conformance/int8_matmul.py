"""Exact products of int8."""

from __future__ import annotations

from typing import Any

import numpy as np

import mlx_tessl as mt

from .matmul import ACTIVATIONS
from .spec import Case, Expected, OpSpec, Refusal, Shapes, activate


def int8_matmul_oracle(
    a: np.ndarray,
    b: np.ndarray,
    scale_a: np.ndarray | None = None,
    scale_b: np.ndarray | None = None,
    bias: np.ndarray | float = 0.0,
    *,
    activation: str | None = None,
    **_: Any,
) -> Expected:
    z = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float64)
    if scale_a is not None:
        z = z * (scale_a[..., None] if a.ndim > 1 and b.ndim > 1 else scale_a)
    if scale_b is not None:
        z = z * (scale_b[..., None, :] if scale_b.ndim > 1 and a.ndim > 1 else scale_b)
    return activate(z + bias, activation), np.abs(z) + np.abs(bias)


def codes(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).integers(-128, 128, shape).astype(np.int8)


def _case(name: str, a: tuple[int, ...], b: tuple[int, ...], shapes: Shapes, **keywords: Any) -> Case:
    # Results of the order of 1, so that sines of them, in tests of second gradients, still mean something.
    factor = 2.0**-7 if len(shapes.keys() & {"scale_a", "scale_b"}) == 2 else 2.0**-14
    integers = {"a": codes(*a), "b": codes(*b, seed=1)}
    return Case(name, shapes, keywords, integers, {"scale_a": factor, "scale_b": factor})


INT8_MATMUL = OpSpec(
    name="int8_matmul",
    op=mt.int8_matmul,
    twin=mt.reference.int8_matmul,
    oracle=int8_matmul_oracle,
    # The sum is exact: its conversion, two scales, the bias, and an activation, whose slope is below 1.13.
    roundings=lambda case: 1.13 * 5 + 8,
    cases=(
        _case("scaled", (37, 53), (53, 71), {"scale_a": (37,), "scale_b": (71,), "bias": (71,)}),
        _case("rows_only", (37, 53), (53, 71), {"scale_a": (37,)}),
        _case("columns_only", (37, 53), (53, 71), {"scale_b": (71,)}, activation="silu"),
        _case("one_scale", (9, 20), (20, 11), {"scale_a": (), "bias": (11,)}),
        _case("two_scalars", (9, 20), (20, 11), {"scale_a": (1,), "scale_b": (1,)}, activation="relu"),
        _case("row", (20,), (20, 11), {"scale_a": (1,), "scale_b": (11,)}),
        _case("column", (9, 20), (20,), {"scale_a": (9,)}),
        _case("batched", (3, 9, 20), (3, 20, 11), {"scale_a": (3, 9), "scale_b": (3, 11)}, activation="gelu"),
        _case("shared_b", (3, 9, 20), (20, 11), {"scale_a": (3, 9), "scale_b": (11,), "bias": (11,)}),
        _case("shared_a", (9, 20), (2, 20, 11), {"scale_a": (9,), "scale_b": (2, 11)}),
        _case("gelu_tanh", (9, 20), (20, 11), {"scale_b": (11,), "bias": (11,)}, activation="gelu_tanh"),
        _case("empty_m", (0, 20), (20, 11), {"scale_b": (11,)}),
        _case("empty_k", (9, 0), (0, 11), {"scale_b": (11,), "bias": (11,)}),
        _case("empty_batch", (0, 9, 20), (20, 11), {"scale_b": (11,)}),
    ),
    refusals=(
        Refusal("inner", {}, "share the dimension K", integers={"a": codes(3, 4), "b": codes(5, 6)}),
        Refusal("a_dtype", {"a": (3, 4)}, "a has dtype float32", integers={"b": codes(4, 5)}),
        Refusal("b_dtype", {"b": (4, 5)}, "b has dtype uint8", dtypes={"b": "uint8"}, integers={"a": codes(3, 4)}),
        Refusal(
            "overflow",
            {},
            "K is 131072; a sum could leave int32 beyond 131071",
            integers={"a": np.zeros((1, 131072), np.int8), "b": np.zeros((131072, 1), np.int8)},
        ),
        Refusal("batch", {}, "do not broadcast", integers={"a": codes(2, 3, 4), "b": codes(3, 4, 5)}),
        Refusal("scalar", {}, "a has shape", integers={"a": np.int8(3), "b": codes(4, 5)}),
        Refusal("scale_a", {"scale_a": (5,)}, "scale_a has shape (5)", integers={"a": codes(3, 4), "b": codes(4, 5)}),
        Refusal("scale_b", {"scale_b": (3,)}, "scale_b has shape (3)", integers={"a": codes(3, 4), "b": codes(4, 5)}),
        Refusal("scale_batch", {"scale_a": (2, 3)}, "scale_a has shape", integers={"a": codes(3, 4), "b": codes(4, 5)}),
        Refusal("bias", {"bias": (3,)}, "bias has shape (3)", integers={"a": codes(3, 4), "b": codes(4, 5)}),
        Refusal(
            "int_scale",
            {"scale_a": (3,)},
            "one is int32",
            dtypes={"scale_a": "int32"},
            integers={"a": codes(3, 4), "b": codes(4, 5)},
        ),
        Refusal(
            "activation",
            {},
            "activation is 'tanh'",
            {"activation": "tanh"},
            integers={"a": codes(3, 4), "b": codes(4, 5)},
        ),
    ),
    growing=(),
    variants=ACTIVATIONS,
)

SPECS = (INT8_MATMUL,)

"""What every op must do, as data: an op joins by adding its ``OpSpec`` to ``SPECS``.

``test_conformance.py`` runs each spec over its cases, dtypes, input layouts and transforms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_tessl as mt

from .quantization import AFFINE, FORMATS, MICROSCALED, Format, dequantize, random_scale_codes, random_words

Arrays = dict[str, np.ndarray]
Shapes = dict[str, tuple[int, ...]]
Expected = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class Case:
    """Named arrays by shape, and the keywords and arrays of integers that go with them.

    Arrays are standard normal, times their factor if they have one.
    """

    name: str
    shapes: Shapes
    keywords: dict[str, Any] = field(default_factory=dict)
    integers: Arrays = field(default_factory=dict)
    factors: dict[str, float] = field(default_factory=dict)

    def arrays(self, seed: int = 0) -> Arrays:
        rng = np.random.default_rng(seed)
        arrays = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in self.shapes.items()}
        return {name: x * np.float32(self.factors.get(name, 1.0)) for name, x in arrays.items()}


@dataclass(frozen=True)
class Refusal:
    """Arguments that must raise ``ValueError`` with ``message`` in it, before anything is dispatched."""

    name: str
    shapes: Shapes
    message: str
    keywords: dict[str, Any] = field(default_factory=dict)
    dtypes: dict[str, str] = field(default_factory=dict)
    integers: Arrays = field(default_factory=dict)


@dataclass(frozen=True)
class OpSpec:
    """One op under test.

    ``oracle`` takes float64 arrays and gives the result and the sum of the magnitudes that rounding acts on; a list of
    such pairs for an op with several results. The error allowed is ``roundings(case) * 2^-24`` of that sum, and one
    rounding of the result to its dtype. Where ``gives_indices`` the result is exact, of dtype uint32, and constant to
    derivatives. ``variants`` are keywords that make different ops of the first case. Inputs that are ``growing`` may
    have more members along their first axis, together; ``shapeless`` tells whether shapeless compile is possible.
    """

    name: str
    op: Callable[..., Any]
    twin: Callable[..., Any]
    oracle: Callable[..., Expected | list[Expected]]
    roundings: Callable[[Case], float]
    cases: tuple[Case, ...]
    refusals: tuple[Refusal, ...]
    growing: tuple[str, ...]
    variants: tuple[dict[str, Any], ...] = ({},)
    gives_indices: bool = False
    shapeless: bool = True


def activate(z: np.ndarray, activation: str | None) -> np.ndarray:
    match activation:
        case None:
            return z
        case "relu":
            return np.maximum(z, 0)
        case "silu":
            return z / (1 + np.exp(-z))
        case "gelu":
            return 0.5 * z * (1 + _erf(z * np.sqrt(0.5)))
        case "gelu_tanh":
            return 0.5 * z * (1 + np.tanh(np.sqrt(2 / np.pi) * (z + 0.044715 * z**3)))
    raise AssertionError(activation)


def _erf(x: np.ndarray) -> np.ndarray:
    import math

    return np.vectorize(math.erf, otypes=[np.float64])(x)


def matmul_oracle(
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray | float = 0.0,
    bias: np.ndarray | float = 0.0,
    *,
    alpha: float = 1.0,
    beta: float = 0.0,
    activation: str | None = None,
    **_: Any,
) -> tuple[np.ndarray, np.ndarray]:
    alpha, beta = float(np.float32(alpha)), float(np.float32(beta))
    z = alpha * (a @ b) + beta * c + bias
    magnitude = abs(alpha) * (np.abs(a) @ np.abs(b)) + abs(beta) * np.abs(c) + np.abs(bias)
    return activate(z, activation), magnitude


def linear_oracle(
    x: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | float = 0.0,
    residual: np.ndarray | float = 0.0,
    *,
    activation: str | None = None,
    **_: Any,
) -> tuple[np.ndarray, np.ndarray]:
    y, magnitude = matmul_oracle(x, weight.T, bias=bias, activation=activation)
    return y + residual, magnitude + np.abs(residual)


def _roundings_of_product(case: Case) -> float:
    # gamma_K of the sum, and a few for the epilogue: no activation here has a slope beyond 1.13 or errs by over 4 ulp.
    shape = case.shapes.get("a") or case.shapes["x"]
    return 1.13 * (shape[-1] + 4) + 8


ACTIVATIONS = ({}, *({"activation": name} for name in ("relu", "silu", "gelu", "gelu_tanh")))

MATMUL = OpSpec(
    name="matmul",
    op=mt.matmul,
    twin=mt.reference.matmul,
    oracle=matmul_oracle,
    roundings=_roundings_of_product,
    cases=(
        Case("square", {"a": (64, 64), "b": (64, 64)}),
        Case("ragged", {"a": (37, 53), "b": (53, 71)}),
        Case("one_row", {"a": (1, 300), "b": (300, 65)}),
        Case("one_column", {"a": (65, 300), "b": (300, 1)}),
        Case("inner_one", {"a": (33, 1), "b": (1, 17)}),
        Case("vector_matrix", {"a": (19,), "b": (19, 5)}),
        Case("matrix_vector", {"a": (5, 19), "b": (19,)}),
        Case("batched", {"a": (3, 2, 20, 11), "b": (3, 2, 11, 18)}),
        Case("broadcast_left", {"a": (5, 20, 11), "b": (11, 18)}),
        Case("broadcast_right", {"a": (20, 11), "b": (4, 11, 18)}),
        Case("broadcast_both", {"a": (3, 1, 7, 11), "b": (2, 11, 5)}),
        Case(
            "epilogue",
            {"a": (2, 33, 47), "b": (47, 29), "c": (33, 29), "bias": (29,)},
            {"alpha": 0.7, "beta": -1.3, "activation": "gelu"},
        ),
        Case("relu", {"a": (33, 47), "b": (47, 29)}, {"activation": "relu"}),
        Case("silu", {"a": (33, 47), "b": (47, 29), "bias": (29,)}, {"activation": "silu"}),
        Case("gelu_tanh", {"a": (33, 47), "b": (47, 29)}, {"activation": "gelu_tanh", "alpha": 0.5}),
        Case("beta_zero", {"a": (9, 8), "b": (8, 7), "c": (9, 7)}, {"beta": 0.0}),
        Case("column_c", {"a": (9, 8), "b": (8, 7), "c": (9, 1)}, {"beta": 2.0}),
        Case("batch_invariant", {"a": (37, 53), "b": (53, 71)}, {"batch_invariant": True}),
        Case("exact", {"a": (37, 53), "b": (53, 71)}, {"precision": "exact"}),
        Case("empty_m", {"a": (0, 8), "b": (8, 7)}),
        Case("empty_n", {"a": (9, 8), "b": (8, 0)}),
        Case("empty_k", {"a": (9, 0), "b": (0, 7), "c": (9, 7), "bias": (7,)}, {"beta": 0.5, "activation": "silu"}),
        Case("empty_batch", {"a": (0, 3, 8), "b": (8, 7)}),
    ),
    refusals=(
        Refusal("inner", {"a": (3, 4), "b": (5, 6)}, "share the dimension K"),
        Refusal("batch", {"a": (2, 3, 4), "b": (3, 4, 5)}, "do not broadcast"),
        Refusal("c", {"a": (3, 4), "b": (4, 5), "c": (2, 5)}, "c has shape (2,5)", {"beta": 1.0}),
        Refusal("c_batch", {"a": (3, 4), "b": (4, 5), "c": (2, 3, 5)}, "c has shape", {"beta": 1.0}),
        Refusal("bias", {"a": (3, 4), "b": (4, 5), "bias": (3,)}, "bias has shape (3)"),
        Refusal("scalar", {"a": (), "b": (4, 5)}, "a has shape"),
        Refusal("ndim", {"a": (1,) * 11 + (3, 4), "b": (4, 5)}, "dimensions"),
        Refusal("activation", {"a": (3, 4), "b": (4, 5)}, "activation is 'tanh'", {"activation": "tanh"}),
        Refusal("precision", {"a": (3, 4), "b": (4, 5)}, "precision is 'fast'", {"precision": "fast"}),
        Refusal("int", {"a": (3, 4), "b": (4, 5)}, "promote to int32", dtypes={"a": "int32", "b": "int32"}),
        Refusal("complex", {"a": (3, 4), "b": (4, 5)}, "promote to complex64", dtypes={"a": "complex64"}),
    ),
    growing=("a",),
    variants=ACTIVATIONS,
)

LINEAR = OpSpec(
    name="linear",
    op=mt.linear,
    twin=mt.reference.linear,
    oracle=linear_oracle,
    roundings=_roundings_of_product,
    cases=(
        Case("plain", {"x": (37, 53), "weight": (71, 53)}),
        Case("vector", {"x": (53,), "weight": (71, 53), "bias": (71,)}),
        Case("sequence", {"x": (2, 5, 53), "weight": (71, 53), "bias": (71,)}, {"activation": "gelu"}),
        Case("residual", {"x": (2, 5, 53), "weight": (71, 53), "bias": (71,), "residual": (2, 5, 71)}),
        Case(
            "everything",
            {"x": (4, 53), "weight": (71, 53), "bias": (71,), "residual": (71,)},
            {"activation": "gelu_tanh"},
        ),
        Case("empty", {"x": (0, 53), "weight": (71, 53)}),
    ),
    refusals=(
        Refusal("inner", {"x": (3, 4), "weight": (5, 6)}, "x and weight share the dimension K"),
        Refusal("weight", {"x": (3, 4), "weight": (2, 5, 4)}, "weight has shape"),
        Refusal("bias", {"x": (3, 4), "weight": (5, 4), "bias": (4,)}, "bias has shape"),
        Refusal("residual", {"x": (3, 4), "weight": (5, 4), "residual": (2, 3, 5)}, "residual has shape"),
        Refusal("activation", {"x": (3, 4), "weight": (5, 4)}, "activation is 'swish'", {"activation": "swish"}),
    ),
    growing=("x", "residual"),
    variants=ACTIVATIONS,
)


def _format_of(mode: str, bits: int | None, group_size: int | None) -> Format:
    default_bits, default_group = {"affine": (4, 64), "mxfp4": (4, 32), "mxfp8": (8, 32), "nvfp4": (4, 16)}[mode]
    return Format(mode, bits or default_bits, group_size or default_group)


def quantized_matmul_oracle(
    x: np.ndarray,
    w: np.ndarray,
    scales: np.ndarray,
    biases: np.ndarray | float = 0.0,
    bias: np.ndarray | float = 0.0,
    *,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    activation: str | None = None,
    **_: Any,
) -> Expected:
    weights, magnitudes = dequantize(_format_of(mode, bits, group_size), w, scales, biases)
    if transpose:
        weights, magnitudes = weights.swapaxes(-1, -2), magnitudes.swapaxes(-1, -2)
    z = x @ weights + bias
    return activate(z, activation), np.abs(x) @ magnitudes + np.abs(bias)


def quantized_embedding_oracle(
    ids: np.ndarray,
    w: np.ndarray,
    scales: np.ndarray,
    biases: np.ndarray | float = 0.0,
    *,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
) -> Expected:
    weights, magnitudes = dequantize(_format_of(mode, bits, group_size), w, scales, biases)
    rows = np.where(ids < 0, ids + len(w), ids)
    valid = ((rows >= 0) & (rows < len(w)))[..., None]
    safe = np.where(valid[..., 0], rows, 0)
    return np.where(valid, weights[safe], 0.0), np.where(valid, magnitudes[safe], 0.0)


def _quantized_case(
    name: str, format: Format, x: tuple[int, ...], rows: tuple[int, ...], columns: int, **keywords: Any
) -> Case:
    groups = columns // format.group_size
    shapes: Shapes = {"x": x}
    integers = {"w": random_words(format, rows, columns)}
    if format.affine:
        shapes |= {"scales": (*rows, groups), "biases": (*rows, groups)}
    else:
        integers["scales"] = random_scale_codes(format, rows, groups)
    if "bias" in keywords:
        shapes["bias"] = keywords.pop("bias")
    # Weights of the order of 1, so that sines of the result, in tests of second gradients, still mean something.
    return Case(name, shapes, {**format.keywords, **keywords}, integers, {"scales": 0.5**format.bits})


_AFFINE4 = Format("affine", 4, 64)
_EIGHT_WORDS = {"w": np.zeros((5, 8), np.uint32)}  # 5 rows of 64 values of 4 bits
_PACKED = {"scales": (5, 1), "biases": (5, 1)}

QUANTIZED_MATMUL = OpSpec(
    name="quantized_matmul",
    op=mt.quantized_matmul,
    twin=mt.reference.quantized_matmul,
    oracle=quantized_matmul_oracle,
    # gamma_K of the sum, two roundings of a weight, and a few for the epilogue as in a plain product.
    roundings=lambda case: 1.13 * (case.shapes["x"][-1] + 7) + 8,
    cases=(
        _quantized_case("plain", _AFFINE4, (37, 192), (71,), 192),
        *(_quantized_case(str(f), f, (3, 2 * f.group_size), (11,), 2 * f.group_size) for f in FORMATS),
        *(
            _quantized_case(f"{f}_plain", f, (20, 11), (11,), 3 * f.group_size, transpose=False)
            for f in (Format("affine", 3, 32), Format("affine", 8, 64), *MICROSCALED)
        ),
        _quantized_case("vector", _AFFINE4, (64,), (9,), 64, bias=(9,)),
        _quantized_case("one_row_plain", _AFFINE4, (1, 50), (50,), 128, transpose=False),
        _quantized_case("one_column", _AFFINE4, (9, 64), (1,), 64),
        _quantized_case("sequence", _AFFINE4, (2, 5, 64), (9,), 64, bias=(9,), activation="gelu"),
        _quantized_case("batched", _AFFINE4, (2, 20, 64), (2, 9), 64, activation="silu"),
        _quantized_case("broadcast_left", _AFFINE4, (4, 64), (3, 9), 64, bias=(9,)),
        _quantized_case("broadcast_both", _AFFINE4, (3, 1, 4, 64), (2, 9), 64),
        _quantized_case("batched_plain", _AFFINE4, (2, 1, 9), (2, 9), 64, transpose=False),
        _quantized_case("relu", _AFFINE4, (33, 128), (29,), 128, activation="relu"),
        _quantized_case("gelu_tanh", _AFFINE4, (33, 128), (29,), 128, activation="gelu_tanh", bias=(29,)),
        _quantized_case("empty_m", _AFFINE4, (0, 64), (9,), 64),
        _quantized_case("empty_batch", _AFFINE4, (0, 3, 64), (9,), 64),
    ),
    refusals=(
        Refusal(
            "default_bits",
            {"x": (3, 64), **_PACKED},
            "bits = 4 and group_size = 64; these shapes say that bits * group_size is 512",
            integers={"w": np.zeros((5, 16), np.uint32)},
        ),
        Refusal("inner", {"x": (3, 65), **_PACKED}, "last dimension must be 64", integers=_EIGHT_WORDS),
        Refusal(
            "inner_plain",
            {"x": (3, 64), **_PACKED},
            "must be 5, the rows of w",
            {"transpose": False},
            integers=_EIGHT_WORDS,
        ),
        Refusal("scalar", {"x": (), **_PACKED}, "x has shape", integers=_EIGHT_WORDS),
        Refusal("bits", {"x": (3, 64), **_PACKED}, "bits is 7", {"bits": 7}, integers=_EIGHT_WORDS),
        Refusal("group", {"x": (3, 64), **_PACKED}, "group_size is 16", {"group_size": 16}, integers=_EIGHT_WORDS),
        Refusal("mode", {"x": (3, 64), **_PACKED}, "mode is 'int4'", {"mode": "int4"}, integers=_EIGHT_WORDS),
        Refusal(
            "mxfp4_bits", {"x": (3, 64), **_PACKED}, "bits is 8", {"mode": "mxfp4", "bits": 8}, integers=_EIGHT_WORDS
        ),
        Refusal(
            "nvfp4_group",
            {"x": (3, 64), **_PACKED},
            "group_size is 32",
            {"mode": "nvfp4", "group_size": 32},
            integers=_EIGHT_WORDS,
        ),
        Refusal("w_dtype", {"x": (3, 64), "w": (5, 8), **_PACKED}, "w is float32"),
        Refusal(
            "w_vector",
            {"x": (3, 64), "scales": (1,), "biases": (1,)},
            "w has shape",
            integers={"w": _EIGHT_WORDS["w"][0]},
        ),
        Refusal("no_biases", {"x": (3, 64), "scales": (5, 1)}, "biases is None", integers=_EIGHT_WORDS),
        Refusal(
            "biases", {"x": (3, 64), "scales": (5, 1), "biases": (5, 2)}, "biases has shape", integers=_EIGHT_WORDS
        ),
        Refusal(
            "scales", {"x": (3, 64), "scales": (4, 1), "biases": (4, 1)}, "scales has shape", integers=_EIGHT_WORDS
        ),
        Refusal(
            "scales_batch",
            {"x": (3, 64), **_PACKED},
            "scales has shape",
            integers={"w": np.zeros((2, 5, 8), np.uint32)},
        ),
        Refusal(
            "float_scales", {"x": (3, 64), "scales": (5, 2)}, "takes uint8", {"mode": "mxfp4"}, integers=_EIGHT_WORDS
        ),
        Refusal(
            "fp_biases",
            {"x": (3, 64), "biases": (5, 2)},
            "mode 'mxfp4' has none",
            {"mode": "mxfp4"},
            integers={**_EIGHT_WORDS, "scales": np.zeros((5, 2), np.uint8)},
        ),
        Refusal(
            "int_scales",
            {"x": (3, 64), **_PACKED},
            "scales is int32",
            dtypes={"scales": "int32"},
            integers=_EIGHT_WORDS,
        ),
        Refusal("bias", {"x": (3, 64), **_PACKED, "bias": (64,)}, "bias has shape (64)", integers=_EIGHT_WORDS),
        Refusal(
            "activation", {"x": (3, 64), **_PACKED}, "activation is", {"activation": "tanh"}, integers=_EIGHT_WORDS
        ),
        Refusal("precision", {"x": (3, 64), **_PACKED}, "precision is", {"precision": "fast"}, integers=_EIGHT_WORDS),
        Refusal(
            "complex",
            {"x": (3, 64), **_PACKED},
            "promote to complex64",
            dtypes={"x": "complex64"},
            integers=_EIGHT_WORDS,
        ),
        Refusal(
            "batch",
            {"x": (3, 4, 64), "scales": (2, 5, 1), "biases": (2, 5, 1)},
            "do not broadcast",
            integers={"w": np.zeros((2, 5, 8), np.uint32)},
        ),
        Refusal("ndim", {"x": (1,) * 11 + (3, 64), **_PACKED}, "dimensions", integers=_EIGHT_WORDS),
    ),
    growing=("x",),
    variants=ACTIVATIONS,
)


def _embedding_case(name: str, format: Format, ids: Any, rows: int, columns: int) -> Case:
    table = {"scales": (rows, columns // format.group_size), "biases": (rows, columns // format.group_size)}
    integers = {"ids": np.array(ids, np.int32), "w": random_words(format, (rows,), columns)}
    return Case(name, table, format.keywords, integers)


QUANTIZED_EMBEDDING = OpSpec(
    name="quantized_embedding",
    op=mt.quantized_embedding,
    twin=mt.reference.quantized_embedding,
    oracle=quantized_embedding_oracle,
    roundings=lambda _: 2,
    cases=(
        *(_embedding_case(str(f), f, [[3, 0], [-1, 3]], 5, 2 * f.group_size) for f in AFFINE),
        _embedding_case("scalar", _AFFINE4, 2, 5, 64),
        _embedding_case("no_such_row", _AFFINE4, [0, 5, -6, 4, -5, 2**31 - 1, -(2**31)], 5, 64),
        _embedding_case("empty", _AFFINE4, np.zeros((0, 3)), 5, 64),
    ),
    refusals=(
        Refusal("float_ids", {"ids": (3,), **_PACKED}, "ids is float32", integers=_EIGHT_WORDS),
        Refusal(
            "batched",
            {"scales": (2, 5, 1), "biases": (2, 5, 1)},
            "w has shape (2,5,8)",
            integers={"ids": np.zeros(3, np.int32), "w": np.zeros((2, 5, 8), np.uint32)},
        ),
        Refusal("bits", _PACKED, "bits is 7", {"bits": 7}, integers={"ids": np.zeros(3, np.int32), **_EIGHT_WORDS}),
        Refusal(
            "no_biases", {"scales": (5, 1)}, "biases is None", integers={"ids": np.zeros(3, np.int32), **_EIGHT_WORDS}
        ),
    ),
    growing=("scales",),
)


def _root_mean_square(s: np.ndarray, eps: float) -> np.ndarray:
    return np.sqrt(np.mean(s * s, axis=-1, keepdims=True) + eps)


def rms_norm_oracle(
    x: np.ndarray,
    weight: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    *,
    eps: float,
    weight_offset: float = 0.0,
) -> list[Expected]:
    s = x if residual is None else x + residual
    y = s / _root_mean_square(s, eps) * (1.0 if weight is None else weight + weight_offset)
    results = [(y, np.abs(y))]
    return results if residual is None else [*results, (s, np.abs(x) + np.abs(residual))]


def layer_norm_oracle(
    x: np.ndarray,
    weight: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    residual: np.ndarray | None = None,
    *,
    eps: float,
) -> list[Expected]:
    weight, bias = (1.0 if weight is None else weight), (0.0 if bias is None else bias)
    s = x if residual is None else x + residual
    centered = s - np.mean(s, axis=-1, keepdims=True)
    scale = weight / _root_mean_square(centered, eps)
    magnitude = np.abs(scale) * (np.abs(s) + np.mean(np.abs(s), axis=-1, keepdims=True)) + np.abs(bias)
    results = [(centered * scale + bias, magnitude)]
    return results if residual is None else [*results, (s, np.abs(x) + np.abs(residual))]


def gated_rms_norm_oracle(x: np.ndarray, gate: np.ndarray, weight: np.ndarray, *, eps: float) -> Expected:
    y = x / _root_mean_square(x, eps) * weight * activate(gate, "silu")
    return y, np.abs(y)


def _roundings_of_norm(case: Case) -> float:
    # A sum in four lanes and two accumulators at the worst; 0.2 of it was used at N = 1, 0.05 at N = 1000.
    return 16 + case.shapes["x"][-1] / 8


RMS_NORM = OpSpec(
    name="rms_norm",
    op=partial(mt.rms_norm, eps=1e-5),
    twin=partial(mt.reference.rms_norm, eps=1e-5),
    oracle=partial(rms_norm_oracle, eps=1e-5),
    roundings=_roundings_of_norm,
    cases=(
        Case("plain", {"x": (5, 64), "weight": (64,)}),
        Case("ragged", {"x": (2, 3, 37), "weight": (37,)}),
        Case("offset", {"x": (7, 130), "weight": (130,)}, {"weight_offset": 1.0}),
        Case("no_weight", {"x": (7, 20)}, {"weight": None}),
        Case("residual", {"x": (2, 3, 100), "weight": (100,), "residual": (2, 3, 100)}),
        Case("one_residual", {"x": (4, 3, 12), "weight": (12,), "residual": (3, 1)}),
        Case("vector", {"x": (1000,), "weight": (1000,)}),
        Case("one_column", {"x": (9, 1), "weight": (1,)}),
        Case("empty", {"x": (0, 8), "weight": (8,)}),
    ),
    refusals=(
        Refusal("scalar", {"x": (), "weight": (4,)}, "x has shape ()"),
        Refusal("no_columns", {"x": (3, 0), "weight": (0,)}, "its rows must not be empty"),
        Refusal("weight", {"x": (3, 4), "weight": (3,)}, "weight has shape (3)"),
        Refusal("residual", {"x": (3, 4), "weight": (4,), "residual": (2, 3, 4)}, "residual has shape (2,3,4)"),
        Refusal("eps", {"x": (3, 4), "weight": (4,)}, "eps is -1", {"eps": -1.0}),
        Refusal("eps_nan", {"x": (3, 4), "weight": (4,)}, "eps is nan", {"eps": float("nan")}),
        Refusal("offset", {"x": (3, 4), "weight": (4,)}, "weight_offset is inf", {"weight_offset": float("inf")}),
        Refusal("int", {"x": (3, 4), "weight": (4,)}, "int32", dtypes={"x": "int32", "weight": "int32"}),
        Refusal("ndim", {"x": (1,) * 10, "weight": (1,)}, "1 to 9 dimensions"),
    ),
    growing=("x", "residual"),
    variants=({}, {"weight_offset": 1.0}, {"eps": 1e-2}),
)

LAYER_NORM = OpSpec(
    name="layer_norm",
    op=partial(mt.layer_norm, eps=1e-5),
    twin=partial(mt.reference.layer_norm, eps=1e-5),
    oracle=partial(layer_norm_oracle, eps=1e-5),
    roundings=_roundings_of_norm,
    cases=(
        Case("plain", {"x": (5, 64), "weight": (64,), "bias": (64,)}),
        Case("ragged", {"x": (2, 3, 37), "weight": (37,), "bias": (37,)}),
        Case("no_weight", {"x": (7, 20), "bias": (20,)}, {"weight": None}),
        Case("no_bias", {"x": (7, 20), "weight": (20,)}, {"bias": None}),
        Case("bare", {"x": (7, 20)}, {"weight": None, "bias": None}),
        Case("residual", {"x": (2, 3, 100), "weight": (100,), "bias": (100,), "residual": (2, 3, 100)}),
        Case("one_residual", {"x": (4, 3, 12), "weight": (12,), "bias": (12,), "residual": (12,)}),
        Case("vector", {"x": (1000,), "weight": (1000,), "bias": (1000,)}),
        Case("empty", {"x": (0, 8), "weight": (8,), "bias": (8,)}),
    ),
    refusals=(
        Refusal("no_columns", {"x": (3, 0), "weight": (0,), "bias": (0,)}, "its rows must not be empty"),
        Refusal("weight", {"x": (3, 4), "weight": (1, 4), "bias": (4,)}, "weight has shape (1,4)"),
        Refusal("bias", {"x": (3, 4), "weight": (4,), "bias": (3,)}, "bias has shape (3)"),
        Refusal("residual", {"x": (3, 4), "weight": (4,), "bias": (4,), "residual": (2, 4)}, "residual has shape"),
    ),
    growing=("x", "residual"),
    variants=({}, {"eps": 1e-2}),
)

GATED_RMS_NORM = OpSpec(
    name="gated_rms_norm",
    op=partial(mt.gated_rms_norm, eps=1e-6),
    twin=partial(mt.reference.gated_rms_norm, eps=1e-6),
    oracle=partial(gated_rms_norm_oracle, eps=1e-6),
    roundings=_roundings_of_norm,
    cases=(
        Case("heads", {"x": (2, 3, 4, 128), "gate": (2, 3, 4, 128), "weight": (128,)}),
        Case("ragged", {"x": (5, 37), "gate": (5, 37), "weight": (37,)}),
        Case("one_gate", {"x": (5, 36), "gate": (36,), "weight": (36,)}),
        Case("empty", {"x": (0, 8), "gate": (0, 8), "weight": (8,)}),
    ),
    refusals=(
        Refusal("gate", {"x": (3, 4), "gate": (3, 5), "weight": (4,)}, "gate has shape (3,5)"),
        Refusal("weight", {"x": (3, 4), "gate": (3, 4), "weight": (3,)}, "weight has shape (3)"),
    ),
    growing=("x", "gate"),
    variants=({}, {"eps": 1e-2}),
)


def gate_oracle(activation: str, gate: np.ndarray, x: np.ndarray) -> Expected:
    y = (1 / (1 + np.exp(-gate)) if activation == "sigmoid" else activate(gate, activation)) * x
    # A gate that is a difference of near equals (gelu, left of zero) is bound by its argument.
    return y, np.abs(y) + np.abs(gate * x)


def geglu_oracle(gate: np.ndarray, up: np.ndarray, *, approximate: str = "tanh") -> Expected:
    return gate_oracle("gelu_tanh" if approximate == "tanh" else "gelu", gate, up)


def _gate_cases(gate: str, x: str) -> tuple[Case, ...]:
    return (
        Case("plain", {gate: (5, 64), x: (5, 64)}),
        Case("ragged", {gate: (2, 3, 37), x: (2, 3, 37)}),
        Case("vector", {gate: (5000,), x: (5000,)}),
        Case("one_gate_a_row", {gate: (2, 3, 1), x: (2, 3, 8)}),
        Case("outer", {gate: (4, 1, 6), x: (3, 1)}),
        Case("empty", {gate: (0, 8), x: (0, 8)}),
    )


def _gate_refusals(gate: str, x: str) -> tuple[Refusal, ...]:
    return (
        Refusal("shapes", {gate: (3, 4), x: (2, 4)}, "do not broadcast"),
        Refusal("no_columns", {gate: (3, 0), x: (3, 0)}, "its rows must not be empty"),
        Refusal("int", {gate: (3, 4), x: (3, 4)}, "int32", dtypes={gate: "int32", x: "int32"}),
    )


SIGMOID_GATE = OpSpec(
    name="sigmoid_gate",
    op=mt.sigmoid_gate,
    twin=mt.reference.sigmoid_gate,
    oracle=lambda x, gate: gate_oracle("sigmoid", gate, x),
    roundings=lambda _: 8,
    cases=_gate_cases("gate", "x"),
    refusals=_gate_refusals("gate", "x"),
    growing=("x", "gate"),
)

SWIGLU = OpSpec(
    name="swiglu",
    op=mt.swiglu,
    twin=mt.reference.swiglu,
    oracle=lambda gate, up: gate_oracle("silu", gate, up),
    roundings=lambda _: 8,
    cases=_gate_cases("gate", "up"),
    refusals=_gate_refusals("gate", "up"),
    growing=("gate", "up"),
)

GEGLU = OpSpec(
    name="geglu",
    op=mt.geglu,
    twin=mt.reference.geglu,
    oracle=geglu_oracle,
    roundings=lambda _: 8,
    cases=(*_gate_cases("gate", "up"), Case("exact", {"gate": (5, 64), "up": (5, 64)}, {"approximate": "none"})),
    refusals=(
        *_gate_refusals("gate", "up"),
        Refusal("approximate", {"gate": (3, 4), "up": (3, 4)}, "approximate is 'erf'", {"approximate": "erf"}),
    ),
    growing=("gate", "up"),
    variants=({}, {"approximate": "none"}),
)


def rope_oracle(
    x: np.ndarray,
    positions: np.ndarray,
    inv_freq: np.ndarray,
    *,
    rotary_dim: int | None = None,
    interleaved: bool = False,
) -> Expected:
    """By complex numbers: a + ib turned by e^(i angle), the angle rounded to float32 as the op defines it."""
    rotary_dim = rotary_dim or x.shape[-1]
    if positions.ndim == 2 and x.ndim > 3:
        positions = positions[(slice(None), *[None] * (x.ndim - 3))]
    angles = (positions[..., None].astype(np.float32) * inv_freq.astype(np.float32)).astype(np.float64)
    first, second = (
        (slice(0, rotary_dim, 2), slice(1, rotary_dim, 2))
        if interleaved
        else (slice(0, rotary_dim // 2), slice(rotary_dim // 2, rotary_dim))
    )
    turned = (x[..., first] + 1j * x[..., second]) * np.exp(1j * angles)
    y, magnitude = x.copy(), np.zeros_like(x)
    y[..., first], y[..., second] = turned.real, turned.imag
    magnitude[..., first] = magnitude[..., second] = np.abs(x[..., first]) + np.abs(x[..., second])
    return y, magnitude


def qk_norm_rope_oracle(
    q: np.ndarray,
    k: np.ndarray,
    q_weight: np.ndarray,
    k_weight: np.ndarray,
    positions: np.ndarray,
    inv_freq: np.ndarray,
    *,
    eps: float,
    weight_offset: float = 0.0,
    rotary_dim: int | None = None,
) -> list[Expected]:
    results = []
    for x, weight in ((q, q_weight), (k, k_weight)):
        y = x / _root_mean_square(x, eps) * (weight + weight_offset)
        turned, magnitude = rope_oracle(y, positions, inv_freq, rotary_dim=rotary_dim)
        results.append((turned, magnitude + np.abs(y)))
    return results


def _rope_tables(positions: Any, rotary_dim: int) -> Arrays:
    """Positions, and frequencies that are not differentiated here: their gradients are sums of large terms."""
    inv_freq = 1e4 ** (-np.arange(0, rotary_dim, 2) / rotary_dim)
    return {"positions": np.asarray(positions, np.int32), "inv_freq": inv_freq.astype(np.float32)}


ROPE = OpSpec(
    name="rope",
    op=mt.rope,
    twin=mt.reference.rope,
    oracle=rope_oracle,
    roundings=lambda _: 6,  # 0.5 was used by the CPU code, whose cosine errs by 2 ulp of 1
    cases=(
        Case("heads", {"x": (2, 3, 5, 16)}, integers=_rope_tables(np.arange(5), 16)),
        Case("batch", {"x": (2, 3, 4, 24)}, {"rotary_dim": 8}, _rope_tables([[0, 1, 2, 3], [7, 9, 11, 500]], 8)),
        Case("ragged", {"x": (3, 37)}, {"rotary_dim": 22}, _rope_tables([5, 0, 2000], 22)),
        Case("interleaved", {"x": (2, 3, 32)}, {"interleaved": True}, _rope_tables([1, 2, 3], 32)),
        Case("ragged_pairs", {"x": (3, 19)}, {"interleaved": True, "rotary_dim": 10}, _rope_tables([1, 2, 3], 10)),
        Case("one_position", {"x": (4, 1, 12)}, integers=_rope_tables(17, 12)),
        Case("row", {"x": (600,)}, integers=_rope_tables(3, 600)),
        Case("empty", {"x": (2, 0, 8)}, integers=_rope_tables(np.zeros(0), 8)),
    ),
    refusals=(
        Refusal("odd", {"x": (3, 8)}, "rotary_dim is 7", {"rotary_dim": 7}, integers=_rope_tables([0] * 3, 8)),
        Refusal("wide", {"x": (3, 8)}, "rotary_dim is 10", {"rotary_dim": 10}, integers=_rope_tables([0] * 3, 10)),
        Refusal("inv_freq", {"x": (3, 8)}, "inv_freq has shape (3)", integers=_rope_tables([0] * 3, 6)),
        Refusal("positions", {"x": (3, 8)}, "positions has shape (2)", integers=_rope_tables([0, 1], 8)),
        Refusal("int", {"x": (3, 8)}, "int32", dtypes={"x": "int32"}, integers=_rope_tables([0] * 3, 8)),
        Refusal(
            "float_positions",
            {"x": (3, 8)},
            "positions has dtype float32",
            integers={**_rope_tables([0] * 3, 8), "positions": np.zeros(3, np.float32)},
        ),
    ),
    growing=("x",),
    variants=({}, {"interleaved": True}),
)

QK_NORM_ROPE = OpSpec(
    name="qk_norm_rope",
    op=partial(mt.qk_norm_rope, eps=1e-6),
    twin=partial(mt.reference.qk_norm_rope, eps=1e-6),
    oracle=partial(qk_norm_rope_oracle, eps=1e-6),
    roundings=lambda case: 22 + case.shapes["q"][-1] / 8,
    cases=(
        Case(
            "heads",
            {"q": (2, 4, 3, 32), "k": (2, 1, 3, 32), "q_weight": (32,), "k_weight": (32,)},
            {"rotary_dim": 8, "weight_offset": 1.0},
            _rope_tables([3, 4, 5], 8),
        ),
        Case(
            "ragged",
            {"q": (1, 2, 2, 37), "k": (1, 3, 2, 37), "q_weight": (37,), "k_weight": (37,)},
            {"rotary_dim": 22},
            _rope_tables([[3, 4]], 22),
        ),
        Case(
            "decode",
            {"q": (3, 2, 1, 64), "k": (3, 1, 1, 64), "q_weight": (64,), "k_weight": (64,)},
            integers=_rope_tables([[7], [100], [3]], 64),
        ),
    ),
    refusals=(
        Refusal(
            "k",
            {"q": (2, 3, 8), "k": (2, 3, 6), "q_weight": (8,), "k_weight": (6,)},
            "k has shape (2,3,6)",
            integers=_rope_tables([0] * 3, 8),
        ),
        Refusal(
            "weight",
            {"q": (2, 3, 8), "k": (2, 3, 8), "q_weight": (8,), "k_weight": (6,)},
            "k_weight has shape (6)",
            integers=_rope_tables([0] * 3, 8),
        ),
    ),
    growing=("q", "k"),
    variants=({}, {"weight_offset": 0.0}, {"eps": 1e-2}),
)


def row_sum_oracle(x: np.ndarray) -> Expected:
    return x.sum(-1), np.abs(x).sum(-1)


def row_max_oracle(x: np.ndarray) -> Expected:
    return x.max(-1), np.zeros(x.shape[:-1])


def logsumexp_oracle(x: np.ndarray) -> Expected:
    most = x.max(-1)
    log = np.log(np.exp(x - most[..., None]).sum(-1))
    # e^(x - max) errs by |x - max| roundings.
    return most + log, np.abs(most) + log + np.abs(x).max(-1) + 1


def softmax_oracle(x: np.ndarray, *, axis: int = -1) -> Expected:
    e = np.exp(x - x.max(axis, keepdims=True))
    y = e / e.sum(axis, keepdims=True)
    return y, y * (1 + np.abs(x) + np.abs(x).max(axis, keepdims=True))


def l2_normalize_oracle(x: np.ndarray, *, eps: float) -> Expected:
    y = x / np.maximum(np.sqrt((x * x).sum(-1, keepdims=True)), eps)
    return y, np.abs(y)


def _roundings_of_sum(case: Case) -> float:
    # Four lanes and two accumulators at the worst. Up to 0.3 was used, by one row of 3.
    return 8 + case.shapes["x"][-1] / 8


def _reduction(
    name: str, op: Any, twin: Any, oracle: Any, *, extra_cases: tuple[Case, ...] = (), **fields: Any
) -> OpSpec:
    return OpSpec(
        name=name,
        op=op,
        twin=twin,
        oracle=oracle,
        roundings=_roundings_of_sum,
        cases=(
            Case("plain", {"x": (5, 64)}),
            Case("ragged", {"x": (2, 3, 37)}),
            Case("short", {"x": (4, 3)}),
            Case("row", {"x": (1000,)}),
            Case("one_column", {"x": (6, 1)}),
            Case("empty", {"x": (0, 8)}),
            *extra_cases,
        ),
        refusals=(
            Refusal("scalar", {"x": ()}, fields.pop("scalar", "x has shape ()")),
            Refusal("no_columns", {"x": (3, 0)}, "its rows must not be empty"),
            Refusal("int", {"x": (3, 4)}, "int32", dtypes={"x": "int32"}),
            *fields.pop("extra_refusals", ()),
        ),
        growing=("x",),
        **fields,
    )


ROW_SUM = _reduction("row_sum", mt.row_sum, mt.reference.row_sum, row_sum_oracle)
ROW_MAX = _reduction("row_max", mt.row_max, mt.reference.row_max, row_max_oracle)
LOGSUMEXP = _reduction("logsumexp", mt.logsumexp, mt.reference.logsumexp, logsumexp_oracle)
SOFTMAX = _reduction(
    "softmax",
    mt.softmax,
    mt.reference.softmax,
    softmax_oracle,
    extra_cases=(
        Case("first_axis", {"x": (5, 6, 7)}, {"axis": 0}),
        Case("middle_axis", {"x": (5, 6, 7)}, {"axis": -2}),
    ),
    scalar="axis is -1; x has 0 dimensions",
    extra_refusals=(Refusal("axis", {"x": (3, 4)}, "axis is 2; x has 2 dimensions", {"axis": 2}),),
    variants=({}, {"axis": 0}),
)
L2_NORMALIZE = _reduction(
    "l2_normalize",
    partial(mt.l2_normalize, eps=1e-12),
    partial(mt.reference.l2_normalize, eps=1e-12),
    partial(l2_normalize_oracle, eps=1e-12),
    extra_cases=(Case("small", {"x": (4, 8)}, {"eps": 100.0}),),
    extra_refusals=(Refusal("eps", {"x": (3, 4)}, "eps is 0", {"eps": 0.0}),),
    variants=({}, {"eps": 100.0}),
)


def argmax_oracle(logits: np.ndarray, *, softcap: float | None = None) -> Expected:
    z = logits if softcap is None else np.tanh(logits / softcap)
    index = np.argmax(z, axis=-1)
    return index.astype(np.float64), np.zeros(index.shape)


ARGMAX = OpSpec(
    name="argmax",
    op=mt.argmax,
    twin=mt.reference.argmax,
    oracle=argmax_oracle,
    roundings=lambda _: 0,
    cases=(
        Case("plain", {"logits": (5, 64)}),
        Case("ragged", {"logits": (2, 3, 37)}),
        Case("vocabulary", {"logits": (10007,)}),
        Case("capped", {"logits": (7, 300)}, {"softcap": 30.0}),
        Case("one_column", {"logits": (6, 1)}),
        Case("empty", {"logits": (0, 8)}),
    ),
    refusals=(
        Refusal("scalar", {"logits": ()}, "logits has shape ()"),
        Refusal("no_columns", {"logits": (3, 0)}, "its rows must not be empty"),
        Refusal("int", {"logits": (3, 4)}, "int32", dtypes={"logits": "int32"}),
        Refusal("softcap", {"logits": (3, 4)}, "softcap is 0", {"softcap": 0.0}),
    ),
    growing=("logits",),
    variants=({}, {"softcap": 1e-3}),
    gives_indices=True,
)


def sample_oracle(
    logits: np.ndarray,
    *,
    key: mx.array,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    softcap: float | None = None,
) -> Expected:
    """By sorting, with MLX's own noise of the key."""
    z = logits if softcap is None else softcap * np.tanh(logits / softcap)
    if temperature == 0:
        return argmax_oracle(z)
    z = z / temperature
    least = np.full((*z.shape[:-1], 1), -np.inf)
    if top_k is not None and top_k < z.shape[-1]:
        least = np.sort(z, axis=-1)[..., -top_k, None]
    if top_p is not None:
        descending = -np.sort(-np.where(z >= least, z, -np.inf), axis=-1)
        mass = np.cumsum(np.exp(descending - descending[..., :1]), axis=-1)
        first = np.argmax(mass >= top_p * mass[..., -1:], axis=-1, keepdims=True) if z.size else np.zeros((0, 1), int)
        least = np.maximum(least, np.take_along_axis(descending, first, axis=-1))
    noise = np.array(mx.random.gumbel(logits.shape, mx.float32, key)).astype(np.float64)
    return argmax_oracle(np.where(z >= least, z + noise, -np.inf))


_KEY = {"key": mx.random.key(7)}

SAMPLE = OpSpec(
    name="sample",
    op=mt.sample,
    twin=mt.reference.sample,
    oracle=sample_oracle,
    roundings=lambda _: 0,
    cases=(
        Case("plain", {"logits": (50, 64)}, _KEY),
        Case("cool", {"logits": (2, 9, 37)}, {"temperature": 0.3, **_KEY}),
        Case("greedy", {"logits": (9, 37)}, {"temperature": 0.0, **_KEY}),
        Case("top_k", {"logits": (40, 300)}, {"top_k": 5, **_KEY}),
        Case("top_p", {"logits": (40, 300)}, {"top_p": 0.3, **_KEY}),
        Case("all", {"logits": (40, 1001)}, {"top_k": 50, "top_p": 0.6, "temperature": 0.7, "softcap": 30.0, **_KEY}),
        Case("top_one", {"logits": (9, 37)}, {"top_k": 1, **_KEY}),
        Case("more_than_there_are", {"logits": (9, 37)}, {"top_k": 100, "top_p": 1.0, **_KEY}),
        Case("empty", {"logits": (0, 8)}, {"top_k": 2, **_KEY}),
    ),
    refusals=(
        Refusal("scalar", {"logits": ()}, "logits has shape ()"),
        Refusal("no_columns", {"logits": (3, 0)}, "its rows must not be empty"),
        Refusal("temperature", {"logits": (3, 4)}, "temperature is -1", {"temperature": -1.0}),
        Refusal("top_k", {"logits": (3, 4)}, "top_k is 0", {"top_k": 0}),
        Refusal("top_p", {"logits": (3, 4)}, "top_p is 1.5", {"top_p": 1.5}),
        Refusal("softcap", {"logits": (3, 4)}, "softcap is nan", {"softcap": float("nan")}),
    ),
    growing=(),
    shapeless=False,  # MLX's random numbers need their shape
    variants=({}, {"top_k": 2}, {"top_p": 0.2}, {"temperature": 9.0}, {"softcap": 1e-2}),
    gives_indices=True,
)


def segment_mean_oracle(x: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> Expected:
    parts = [x[max(start, 0) : max(start + length, 0)] for start, length in zip(starts, lengths, strict=True)]
    counts = np.array([[max(len(part), 1)] for part in parts]).reshape(len(parts), 1)
    sums = [np.stack([part.sum(0), np.abs(part).sum(0)]) for part in parts]
    both = np.array(sums).reshape(len(parts), 2, x.shape[1])
    return both[:, 0] / counts, both[:, 1] / counts


def _segments(starts: list[int], lengths: list[int]) -> Arrays:
    return {"starts": np.array(starts, np.int32), "lengths": np.array(lengths, np.int32)}


SEGMENT_MEAN = OpSpec(
    name="segment_mean",
    op=mt.segment_mean,
    twin=mt.reference.segment_mean,
    oracle=segment_mean_oracle,
    roundings=lambda case: 4 + case.shapes["x"][0],  # 0.1 was used
    cases=(
        Case("padded", {"x": (30, 64)}, integers=_segments([0, 10, 20], [10, 3, 1])),
        Case("ragged", {"x": (29, 37)}, integers=_segments([0, 9, 17, 18], [9, 8, 1, 11])),
        Case("overlapping", {"x": (29, 5)}, integers=_segments([0, 4, 4, 0], [9, 8, 1, 29])),
        Case("none_and_outside", {"x": (8, 200)}, integers=_segments([3, 6, -2, 20], [0, 5, 4, 2])),
        Case("one_row", {"x": (1, 130)}, integers=_segments([0], [1])),
        Case("no_segments", {"x": (8, 3)}, integers=_segments([], [])),
        Case("no_rows", {"x": (0, 3)}, integers=_segments([0, 1], [4, 4])),
    ),
    refusals=(
        Refusal("ndim", {"x": (2, 3, 4)}, "x has shape (2,3,4)", integers=_segments([0], [1])),
        Refusal("no_columns", {"x": (3, 0)}, "x has shape (3,0)", integers=_segments([0], [1])),
        Refusal("lengths", {"x": (3, 4)}, "starts has shape (2) and lengths (1)", integers=_segments([0, 1], [1])),
        Refusal("int", {"x": (3, 4)}, "int32", dtypes={"x": "int32"}, integers=_segments([0], [1])),
        Refusal(
            "float_starts",
            {"x": (3, 4)},
            "starts has dtype float32",
            integers={"starts": np.zeros(1, np.float32), "lengths": np.ones(1, np.int32)},
        ),
    ),
    growing=("x",),
)


def kv_store_oracle(cache: np.ndarray, new: np.ndarray, position: np.ndarray) -> Expected:
    y = cache.copy()
    for index in np.ndindex(*new.shape[:-1]):
        start = int(position[index[0]] if position.ndim else position)
        y[(*index[:-1], (start + index[-1]) % cache.shape[-2])] = new[index]
    return y, np.zeros_like(y)


def _positions(position: Any) -> Arrays:
    return {"position": np.array(position, np.int32)}


KV_STORE = OpSpec(
    name="kv_store",
    op=mt.kv_store,
    twin=mt.reference.kv_store,
    oracle=kv_store_oracle,
    roundings=lambda _: 0,
    cases=(
        Case("one_step", {"cache": (2, 3, 10, 8), "new": (2, 3, 1, 8)}, integers=_positions(4)),
        Case("several", {"cache": (2, 3, 10, 7), "new": (2, 3, 4, 7)}, integers=_positions(2)),
        Case("around_the_end", {"cache": (2, 10, 8), "new": (2, 5, 8)}, integers=_positions(27)),
        Case("one_each", {"cache": (3, 2, 6, 130), "new": (3, 2, 2, 130)}, integers=_positions([0, 5, 9])),
        Case("before_the_start", {"cache": (6, 4), "new": (2, 4)}, integers=_positions(-1)),
        Case("all", {"cache": (6, 4), "new": (6, 4)}, integers=_positions(0)),
        Case("nothing", {"cache": (6, 4), "new": (0, 4)}, integers=_positions(3)),
    ),
    refusals=(
        Refusal("long", {"cache": (2, 4, 8), "new": (2, 5, 8)}, "with S rows at most", integers=_positions(0)),
        Refusal("width", {"cache": (2, 4, 8), "new": (2, 1, 7)}, "new has shape (2,1,7)", integers=_positions(0)),
        Refusal("rank", {"cache": (2, 4, 8), "new": (1, 8)}, "they must be [..., S, D]", integers=_positions(0)),
        Refusal("positions", {"cache": (2, 4, 8), "new": (2, 1, 8)}, "position has", integers=_positions([0, 1, 2])),
        Refusal(
            "float_position",
            {"cache": (2, 4, 8), "new": (2, 1, 8)},
            "position has dtype float32",
            integers={"position": np.zeros((), np.float32)},
        ),
    ),
    growing=("cache", "new"),
)

SPECS: tuple[OpSpec, ...] = (
    MATMUL,
    LINEAR,
    QUANTIZED_EMBEDDING,
    QUANTIZED_MATMUL,
    RMS_NORM,
    LAYER_NORM,
    GATED_RMS_NORM,
    SIGMOID_GATE,
    SWIGLU,
    GEGLU,
    ROPE,
    QK_NORM_ROPE,
    ROW_SUM,
    ROW_MAX,
    LOGSUMEXP,
    SOFTMAX,
    L2_NORMALIZE,
    ARGMAX,
    SAMPLE,
    SEGMENT_MEAN,
    KV_STORE,
)

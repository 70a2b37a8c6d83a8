"""Norms, with and without a residual."""

from __future__ import annotations

from functools import partial

import numpy as np

import mlx_tessl as mt

from .spec import Case, Expected, OpSpec, Refusal, activate


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

SPECS = (
    RMS_NORM,
    LAYER_NORM,
    GATED_RMS_NORM,
)

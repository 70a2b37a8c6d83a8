"""Reductions of rows."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

import mlx_tessl as mt

from .spec import Case, Expected, OpSpec, Refusal


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

SPECS = (
    ROW_SUM,
    ROW_MAX,
    LOGSUMEXP,
    SOFTMAX,
    L2_NORMALIZE,
)

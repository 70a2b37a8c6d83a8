"""Pooling of vocabulary logits over tokens."""

from __future__ import annotations

import numpy as np

import mlx_tessl as mt

from .spec import Arrays, Case, Expected, OpSpec, Refusal


def sparse_max_pool_oracle(
    hidden: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    *,
    activation: str = "log1p_relu",
    pooling: str = "max",
    **_: object,
) -> Expected:
    """No activation has a slope beyond 1, so that an error of a logit is at most one of its value."""
    rows, tokens, _units = hidden.shape
    words = weight.shape[0]
    offset = np.zeros(words) if bias is None else bias
    values = np.log1p(np.maximum(hidden @ weight.T + offset, 0))
    if activation == "log1p_log1p_relu":
        values = np.log1p(values)
    magnitude = np.abs(hidden) @ np.abs(weight).T + np.abs(offset) + values
    counts = np.full(rows, tokens) if lengths is None else np.clip(lengths, 0, tokens)
    visible = (np.arange(tokens) < counts[:, None])[..., None]
    pool = np.sum if pooling == "sum" else lambda x, axis: np.max(x, axis, initial=0.0)
    return pool(np.where(visible, values, 0), axis=1), pool(np.where(visible, magnitude, 0), axis=1)


def _lengths(*values: int) -> Arrays:
    return {"lengths": np.array(values, np.int32)}


def _shapes(rows: int, tokens: int, units: int, words: int, bias: bool = True) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"hidden": (rows, tokens, units), "weight": (words, units)}
    return shapes | {"bias": (words,)} if bias else shapes


SPARSE_MAX_POOL = OpSpec(
    name="sparse_max_pool",
    op=mt.sparse_max_pool,
    twin=mt.reference.sparse_max_pool,
    oracle=sparse_max_pool_oracle,
    # The sum over units, four roundings of each logarithm, and the sum over tokens.
    roundings=lambda case: case.shapes["hidden"][2] + case.shapes["hidden"][1] + 16,  # 0.1 was used
    cases=(
        Case("padded", _shapes(3, 9, 40, 70), integers=_lengths(9, 5, 1)),
        Case("every_token", _shapes(2, 7, 33, 65)),
        Case("no_bias", _shapes(2, 7, 32, 64, bias=False), integers=_lengths(7, 3)),
        Case("sum", _shapes(3, 9, 40, 70), {"pooling": "sum"}, integers=_lengths(9, 5, 1)),
        Case("double_log", _shapes(3, 9, 40, 70), {"activation": "log1p_log1p_relu"}, integers=_lengths(9, 5, 2)),
        Case(
            "sum_of_double_logs",
            _shapes(2, 11, 17, 30),
            {"pooling": "sum", "activation": "log1p_log1p_relu"},
            integers=_lengths(11, 6),
        ),
        Case("no_tokens_and_beyond", _shapes(3, 6, 20, 40), integers=_lengths(0, 99, -3)),
        Case("long_row", _shapes(1, 150, 24, 130), integers=_lengths(149)),
        Case("one_unit", _shapes(2, 5, 1, 19)),
        Case("one_word", _shapes(2, 5, 64, 1)),
        Case("exact", _shapes(2, 5, 64, 20), {"precision": "exact"}),
        Case("empty_tokens", _shapes(2, 0, 8, 5)),
        Case("empty_rows", _shapes(0, 4, 8, 5)),
        Case("empty_words", _shapes(2, 4, 8, 0)),
    ),
    refusals=(
        Refusal("hidden", {"hidden": (3, 4), "weight": (5, 4)}, "hidden has shape (3,4)"),
        Refusal("no_units", {"hidden": (2, 3, 0), "weight": (5, 0)}, "hidden has shape (2,3,0)"),
        Refusal("weight", {"hidden": (2, 3, 4), "weight": (5, 6)}, "weight has shape (5,6); it must be (V, 4)"),
        Refusal("bias", {"hidden": (2, 3, 4), "weight": (5, 4), "bias": (4,)}, "bias has shape (4)"),
        Refusal(
            "lengths", {"hidden": (2, 3, 4), "weight": (5, 4)}, "lengths has shape (3)", integers=_lengths(1, 1, 1)
        ),
        Refusal(
            "float_lengths",
            {"hidden": (1, 3, 4), "weight": (5, 4)},
            "lengths has dtype float32",
            integers={"lengths": np.ones(1, np.float32)},
        ),
        Refusal("int", {"hidden": (2, 3, 4), "weight": (5, 4)}, "int32", dtypes={"hidden": "int32", "weight": "int32"}),
        Refusal("activation", _shapes(2, 3, 4, 5), "activation is 'relu'", {"activation": "relu"}),
        Refusal("pooling", _shapes(2, 3, 4, 5), "pooling is 'mean'", {"pooling": "mean"}),
        Refusal("precision", _shapes(2, 3, 4, 5), "precision is 'fast'", {"precision": "fast"}),
    ),
    growing=("hidden", "lengths"),
    variants=(
        {},
        {"pooling": "sum"},
        {"activation": "log1p_log1p_relu"},
        {"pooling": "sum", "activation": "log1p_log1p_relu"},
    ),
)

SPECS = (SPARSE_MAX_POOL,)

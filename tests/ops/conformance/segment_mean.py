"""Means of ranges of rows."""

from __future__ import annotations

import numpy as np

import mlx_tessl as mt

from .spec import Arrays, Case, Expected, OpSpec, Refusal


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

SPECS = (SEGMENT_MEAN,)

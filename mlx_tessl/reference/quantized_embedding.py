from __future__ import annotations

import mlx.core as mx

from .quantized_matmul import dequantize
from .streams import Stream, on


def quantized_embedding(
    ids: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    stream: Stream = None,
) -> mx.array:
    """Twin of :func:`mlx_tessl.quantized_embedding`: packed rows gathered, then decoded; zeros where there is none."""
    with on(stream):
        rows = w.shape[0]
        flat = ids.reshape(-1)
        valid = mx.logical_and(flat >= -rows, flat < rows)
        safe = mx.where(valid, flat, 0)
        dtype = mx.bfloat16 if biases is None else mx.result_type(scales, biases)
        row_biases = None if biases is None else mx.take(biases, safe, axis=0)
        row_words, row_scales = mx.take(w, safe, axis=0), mx.take(scales, safe, axis=0)
        weights = dequantize(row_words, row_scales, row_biases, group_size, bits, mode)
        kept = mx.where(valid[:, None], weights, 0.0).astype(dtype)
        return kept.reshape(*ids.shape, kept.shape[-1])

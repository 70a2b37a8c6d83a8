from __future__ import annotations

from functools import partial

import mlx.core as mx

from .activations import activate
from .streams import Stream, on


def quantized_matmul(
    x: mx.array,
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None = None,
    *,
    transpose: bool = True,
    group_size: int | None = None,
    bits: int | None = None,
    mode: str = "affine",
    bias: mx.array | None = None,
    activation: str | None = None,
    precision: str | None = None,
    stream: Stream = None,
) -> mx.array:
    """Twin of :func:`mlx_tessl.quantized_matmul`: the weights decoded to float32, then the product in float32.

    ``mx.quantized_matmul`` itself is no oracle: on the CPU it sums in the dtype of ``x``.
    """
    with on(stream):
        floats = (x, bias) if mode != "affine" else (x, scales, biases, bias)
        dtype = mx.result_type(*(y for y in floats if y is not None))
        weights = dequantize(w, scales, biases, group_size, bits, mode)
        z = mx.matmul(x.astype(mx.float32), weights.swapaxes(-1, -2) if transpose else weights)
        if bias is not None:
            z = z + bias.astype(mx.float32)
        return activate(z, activation).astype(dtype)


def dequantize(
    w: mx.array,
    scales: mx.array,
    biases: mx.array | None,
    group_size: int | None,
    bits: int | None,
    mode: str,
) -> mx.array:
    """Packed weights as float32."""
    if w.size == 0:
        group = group_size or {"affine": 64, "nvfp4": 16}.get(mode, 32)
        return mx.zeros((*w.shape[:-1], scales.shape[-1] * group))
    if mode == "affine":
        assert biases is not None
        scales, biases = scales.astype(mx.float32), biases.astype(mx.float32)
    decode = partial(mx.dequantize, group_size=group_size, bits=bits, mode=mode, dtype=mx.float32)
    if mode != "nvfp4":
        return decode(w, scales, biases)
    # MLX decodes 32 values at a time, two groups of nvfp4, across rows: the last may lack its second.
    odd = scales.size % 2
    words = mx.pad(w.reshape(1, -1), [(0, 0), (0, 2 * odd)])
    weights = decode(words, mx.pad(scales.reshape(1, -1), [(0, 0), (0, odd)]))
    return weights[:, : 16 * scales.size].reshape(*w.shape[:-1], 16 * scales.shape[-1])

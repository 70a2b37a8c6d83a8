from __future__ import annotations

import mlx.core as mx

from .activations import activate
from .streams import Stream, on

# Of so many products of int8 a float32 sum is exact: 1024 * 128 * 128 = 2^24.
_EXACT_K = 1024


def int8_matmul(
    a: mx.array,
    b: mx.array,
    *,
    scale_a: mx.array | None = None,
    scale_b: mx.array | None = None,
    bias: mx.array | None = None,
    activation: str | None = None,
    dtype: mx.Dtype | None = None,
    stream: Stream = None,
) -> mx.array:
    """Twin of :func:`mlx_tessl.int8_matmul`: exact float32 products of slices of K, added in int32."""
    with on(stream):
        floats = [x for x in (scale_a, scale_b, bias) if x is not None]
        total = _exact_product(a, b)
        if not floats and activation is None and dtype in (None, mx.int32):
            return total
        z = total.astype(mx.float32)
        if scale_a is not None:
            z = z * (scale_a[..., None] if a.ndim > 1 and b.ndim > 1 else scale_a).astype(mx.float32)
        if scale_b is not None:
            z = z * (scale_b[..., None, :] if a.ndim > 1 and scale_b.ndim > 1 else scale_b).astype(mx.float32)
        if bias is not None:
            z = z + bias.astype(mx.float32)
        if dtype is None:
            dtype = mx.result_type(*floats) if floats else mx.float32
        return activate(z, activation).astype(dtype)


def _exact_product(a: mx.array, b: mx.array) -> mx.array:
    axis = max(b.ndim - 2, 0)
    splits = range(_EXACT_K, a.shape[-1], _EXACT_K)
    pairs = zip(mx.split(a, list(splits), -1), mx.split(b, list(splits), axis), strict=True)
    products = [mx.matmul(x.astype(mx.float32), y.astype(mx.float32)).astype(mx.int32) for x, y in pairs]
    total = products[0]
    for product in products[1:]:
        total = total + product
    return total

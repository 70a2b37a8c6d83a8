from __future__ import annotations

import mlx.core as mx


def as_int32(x: mx.array) -> mx.array:
    """Integers as int32: what does not fit becomes the nearest that does, which lies beyond every array as well."""
    highest = 2**31 - 1
    if x.dtype in (mx.uint32, mx.uint64):
        x = mx.minimum(x, mx.array(highest, x.dtype))
    elif x.dtype == mx.int64:
        x = mx.clip(x, -highest - 1, highest)
    return x.astype(mx.int32)


def as_int64(x: mx.array) -> mx.array:
    """Integers as int64: what does not fit becomes a number whose sums still do, far beyond every array."""
    far = 2**62
    if x.dtype == mx.uint64:
        return mx.minimum(x, mx.array(far, mx.uint64)).astype(mx.int64)
    return mx.clip(x.astype(mx.int64), mx.array(-far, mx.int64), mx.array(far, mx.int64))

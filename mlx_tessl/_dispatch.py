"""Which meaning of an op runs: our primitive, or its reference twin in stock MLX ops."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import mlx.core as mx

from . import _ext
from .reference.streams import Stream

_reference_forced: ContextVar[bool] = ContextVar("reference_forced", default=False)
_gpu_is_metal = _ext.metal_compiled()
_has_gpu = mx.is_available(mx.gpu)


@contextmanager
def use_reference() -> Iterator[None]:
    """Within it, every op of this package is its reference twin, composed of stock MLX ops.

    For ``mx.export_function``, which cannot serialize the primitives of a plugin, and for comparison.
    """
    token = _reference_forced.set(True)
    try:
        yield
    finally:
        _reference_forced.reset(token)


def takes_twin(stream: Stream) -> bool:
    """Whether an op on ``stream`` is its twin: when asked for, and on a GPU that is not Metal."""
    on_gpu = (stream is not None or _has_gpu) and _device_type(stream) == mx.DeviceType.gpu
    return _reference_forced.get() or (on_gpu and not _gpu_is_metal)


def _device_type(stream: Stream) -> mx.DeviceType:
    if stream is None:
        return mx.default_device().type
    if isinstance(stream, mx.DeviceType):
        return stream
    if isinstance(stream, mx.Device):
        return stream.type
    if isinstance(stream, mx.Stream | mx.ThreadLocalStream):
        return stream.device.type
    raise ValueError(f"[mlx_tessl] stream is {stream!r}; it must be a stream, a device or None")

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import mlx.core as mx

Stream = mx.Stream | mx.ThreadLocalStream | mx.Device | mx.DeviceType | None


def on(stream: Stream) -> AbstractContextManager[Any]:
    """Runs what it encloses on ``stream``; ``None`` leaves the default."""
    return nullcontext() if stream is None else mx.stream(stream)

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Literal

from . import _ext
from .emulator import runtime
from .emulator.meter import Meter

Order = Literal["forward", "reverse", "shuffled"]


@contextmanager
def emulate(
    gpu: str = "m5-pro",
    macos: str = "26.4",
    *,
    check: bool = False,
    order: Order = "forward",
    seed: int = 0,
    ulp_noise: float = 0.0,
) -> Iterator[Meter]:
    """Ops built within it on a CPU stream run their Metal shaders in the emulator, as planned for the given device.

    The choice is fixed when an op is built, not when it is evaluated. Kernels are compiled at first use, a second or
    so each, into a cache (see ``docs/emulator.md``, which also tells what a pass proves).

    Args:
        gpu: ``"m1"`` to ``"m5-max"``; GPUs before M5 take the portable kernels.
        macos: Version from ``"14.0"`` on; TensorOps kernels need ``"26.2"``.
        check: Look for races, out-of-bounds access and reads of unwritten memory, poison the outputs, and compare the
            results of forward, reverse and shuffled order bit for bit. Slow.
        order: Order of threadgroups and simdgroups when ``check`` is off.
        seed: Of shuffles and of the layout of cooperative tensors.
        ulp_noise: Units in the last place by which ``fast::`` functions may err.

    Yields:
        A meter, filled when the block ends with what each launch evaluated in the process meanwhile did; ``print`` it
        for a table.

    Raises:
        ValueError: Unknown ``gpu``, ``macos`` or ``order``, a ``seed`` or an ``ulp_noise`` that cannot be.
        RuntimeError: No compiler was found; or, at evaluation, a check found something: the message names the kernel.

    >>> with mt.emulate(gpu="m1", macos="15.0", check=True) as meter:
    ...     mx.eval(mt.matmul(a, b))
    >>> meter[0].kernel
    'matmul_portable_nn_float32_32x32'
    """
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise ValueError(f"[mlx_tessl.emulate] seed is {seed!r}; it must be an integer in 0..2^64 - 1")
    if not 0 <= ulp_noise < float("inf"):
        raise ValueError(f"[mlx_tessl.emulate] ulp_noise is {ulp_noise}; it must be finite and not negative")
    _configure()
    _ext.push_emulation(gpu, macos, check=check, order=order, seed=seed, ulp_noise=ulp_noise)
    meter = Meter()
    _read_meters()
    _running.append(meter)
    try:
        yield meter
    finally:
        _ext.pop_emulation()
        _read_meters()
        _running[:] = [other for other in _running if other is not meter]


# Meters of the blocks that have not ended, in all threads.
_running: list[Meter] = []
_reading = Lock()


def _read_meters() -> None:
    """Gives what was evaluated since the last time to every block that was running."""
    with _reading:
        readings = list(runtime.take_readings())
        for meter in _running:
            meter.extend(readings)


@cache
def _configure() -> None:
    """Tells the C++ side how to compile a kernel."""
    runtime.configure(runtime.compile_command())

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Literal

from . import _ext

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
) -> Iterator[None]:
    """Ops built within it on a CPU stream run their Metal shaders in the emulator, as planned for the given device.

    The choice is fixed when an op is built, not when it is evaluated. See ``docs/emulator.md`` for what a pass proves.

    Args:
        gpu: ``"m1"`` to ``"m5-max"``; GPUs before M5 take the portable kernels.
        macos: Version from ``"14.0"`` on; TensorOps kernels need ``"26.2"``.
        check: Look for races, out-of-bounds access and reads of unwritten memory, poison the outputs, and compare the
            results of forward, reverse and shuffled order bit for bit. Slow.
        order: Order of threadgroups and simdgroups when ``check`` is off.
        seed: Of shuffles and of the layout of cooperative tensors.
        ulp_noise: Units in the last place by which ``fast::`` functions may err.

    Raises:
        ValueError: Unknown ``gpu``, ``macos`` or ``order``.
        RuntimeError: At evaluation, when a check finds something; the message names the kernel.
    """
    _set_compile_command()
    _ext.push_emulation(gpu, macos, check=check, order=order, seed=seed, ulp_noise=ulp_noise)
    try:
        yield
    finally:
        _ext.pop_emulation()


@cache
def _set_compile_command() -> None:
    """Tell the extension how to compile a kernel: in a process of its own, for it runs without the Python lock."""
    from .emulator import runtime

    runtime.configure([sys.executable, str(Path(__file__).parent / "emulator"), "compile"])

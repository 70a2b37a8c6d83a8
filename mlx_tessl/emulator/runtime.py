"""Launch single kernels on NumPy arrays: for tests, and to look into a kernel.

Ops do not come this way: within ``mlx_tessl.emulate()`` they run the very plans that they would run on a Mac.
"""

from __future__ import annotations

import ctypes
import os
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from .compiler import Compiler, Variant
from .meter import Reading

Order = Literal["forward", "reverse", "shuffled"]
Size = int | tuple[int, ...]

_ORDERS: dict[Order, int] = {"forward": 0, "reverse": 1, "shuffled": 2}
_ROLES = {"input": 1, "output": 2, "bytes": 3, "updated": 4}
_MAX_MESSAGE = 16384


class EmulatorError(RuntimeError):
    """A kernel broke a rule; the message names it and tells what was seen."""


@dataclass(frozen=True)
class Out:
    """An array that a kernel writes in full."""

    array: np.ndarray[Any, Any]


@dataclass(frozen=True)
class Updated:
    """An array that a kernel reads and writes, not necessarily all of it."""

    array: np.ndarray[Any, Any]


Buffer = np.ndarray[Any, Any] | np.generic | bytes | Out | Updated | None


class _Binding(ctypes.Structure):
    _fields_ = (
        ("role", ctypes.c_uint32),
        ("index", ctypes.c_uint32),
        ("data", ctypes.c_void_p),
        ("nbytes", ctypes.c_uint64),
    )


class _Constant(ctypes.Structure):
    _fields_ = (("index", ctypes.c_int32), ("type", ctypes.c_uint32), ("bits", ctypes.c_uint64))


class _Launch(ctypes.Structure):
    _fields_ = (
        ("library", ctypes.c_char_p),
        ("kernel", ctypes.c_char_p),
        ("bindings", ctypes.POINTER(_Binding)),
        ("binding_count", ctypes.c_uint32),
        ("constants", ctypes.POINTER(_Constant)),
        ("constant_count", ctypes.c_uint32),
        ("threadgroup_memory", ctypes.POINTER(ctypes.c_uint32)),
        ("threadgroup_memory_count", ctypes.c_uint32),
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("threads", ctypes.c_uint32 * 3),
        ("order", ctypes.c_uint32),
        ("seed", ctypes.c_uint64),
        ("ulp_noise", ctypes.c_float),
        ("check", ctypes.c_uint32),
    )


class _Counters(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_uint64) for name in Reading.COUNTERS)


class _Reading(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char * 192),
        ("grid", ctypes.c_uint32 * 3),
        ("group", ctypes.c_uint32 * 3),
        ("checked", ctypes.c_uint32),
        ("reserved", ctypes.c_uint32),
        ("counters", _Counters),
    )


@cache
def _native() -> ctypes.CDLL:
    path = os.environ.get("MLX_TESSL_EMULATOR_LIBRARY")
    if path is None:
        from mlx_tessl import _ext

        path = _ext.__file__
    return ctypes.CDLL(path)


def configure(command: Sequence[str]) -> None:
    """Set the command by which the C++ side compiles a kernel; see ``__main__``."""
    arguments = (ctypes.c_char_p * len(command))(*(part.encode() for part in command))
    _native().tessl_emulator_configure(arguments, ctypes.c_uint32(len(command)))


def compile_command(*options: str) -> list[str]:
    """The command by which kernels are compiled in a process of its own, so that no Python lock is needed."""
    return [sys.executable, str(Path(__file__).parent), "compile", *options]


def take_readings() -> list[Reading]:
    """What every launch since the last call did, in order."""
    buffer = (_Reading * 256)()
    readings: list[Reading] = []
    while count := _native().tessl_emulator_take_readings(buffer, ctypes.c_uint32(len(buffer))):
        readings += [_reading(buffer[i]) for i in range(count)]
    return readings


def _reading(raw: _Reading) -> Reading:
    counters = {name: int(getattr(raw.counters, name)) for name in Reading.COUNTERS}
    grid, group = (raw.grid[0], raw.grid[1], raw.grid[2]), (raw.group[0], raw.group[1], raw.group[2])
    return Reading(raw.kernel.decode(), grid, group, bool(raw.checked), **counters)


class Source:
    """A .metal file as it is at the first launch of each kernel, which compiles it."""

    def __init__(
        self,
        path: Path | str,
        *,
        msl: int = 310,
        include: Sequence[Path] = (),
        defines: Sequence[str] = (),
        compiler: Compiler | None = None,
    ) -> None:
        self.path = Path(path)
        self._msl = msl
        self._defines = tuple(defines)
        self._compiler = compiler or Compiler(include)
        self._libraries: dict[tuple[str, bool], Path] = {}

    def kernel_names(self) -> list[str]:
        """Names of all kernels, sorted."""
        return self._compiler.kernel_names(self.path, self._variant(False))

    def launch(
        self,
        kernel: str,
        buffers: Sequence[Buffer] | Mapping[int, Buffer],
        *,
        grid: Size,
        group: Size,
        threads: Size | None = None,
        constants: Mapping[int, bool | int | float | np.generic] | None = None,
        threadgroup_memory: Sequence[int] = (),
        check: bool = False,
        order: Order = "forward",
        seed: int = 0,
        ulp_noise: float = 0.0,
    ) -> Reading:
        """Run a kernel and return what it did.

        Args:
            kernel: Its host name.
            buffers: By index: an array to read, ``Out(array)``, ``Updated(array)``, a NumPy scalar or bytes for
                constant data, None where nothing is bound. Arrays must be contiguous.
            grid: Threadgroups, one to three dimensions.
            group: Threads of a threadgroup.
            threads: Of the whole grid, when it is not a multiple of ``group``; ``grid`` must cover it.
            constants: Function constants by index.
            threadgroup_memory: Bytes for each ``[[threadgroup(i)]]`` argument.
            check: See ``mlx_tessl.emulate``.
            order: See ``mlx_tessl.emulate``.
            seed: See ``mlx_tessl.emulate``.
            ulp_noise: See ``mlx_tessl.emulate``.

        Raises:
            EmulatorError: The launch or the kernel broke a rule.
            CompileError: The kernel does not compile.
        """
        library = self._library(kernel, check)
        bindings, keep = _bindings(buffers)
        constant_values = [_constant(index, value) for index, value in (constants or {}).items()]
        launch = _Launch(
            library=str(library).encode(),
            kernel=kernel.encode(),
            bindings=(_Binding * len(bindings))(*bindings),
            binding_count=len(bindings),
            constants=(_Constant * len(constant_values))(*constant_values),
            constant_count=len(constant_values),
            threadgroup_memory=(ctypes.c_uint32 * len(threadgroup_memory))(*threadgroup_memory),
            threadgroup_memory_count=len(threadgroup_memory),
            grid=_size(grid, 1),
            group=_size(group, 1),
            threads=_size(threads if threads is not None else (0, 0, 0), 1),
            order=_ORDERS[order],
            seed=seed,
            ulp_noise=ulp_noise,
            check=check,
        )
        message = ctypes.create_string_buffer(_MAX_MESSAGE)
        take_readings()
        failed = _native().tessl_emulator_launch(ctypes.byref(launch), message, ctypes.c_uint64(_MAX_MESSAGE))
        del keep
        if failed:
            raise EmulatorError(message.value.decode(errors="replace"))
        return take_readings()[-1]

    def _library(self, kernel: str, checked: bool) -> Path:
        key = (kernel, checked)
        if key not in self._libraries:
            self._libraries[key] = self._compiler.compile(self.path, kernel, self._variant(checked))
        return self._libraries[key]

    def _variant(self, checked: bool) -> Variant:
        return Variant(self._msl, checked, self._defines)


def _size(size: Size, fill: int) -> Any:
    dimensions = (size,) if isinstance(size, int) else tuple(size)
    return (ctypes.c_uint32 * 3)(*dimensions, *[fill] * (3 - len(dimensions)))


def _bindings(buffers: Sequence[Buffer] | Mapping[int, Buffer]) -> tuple[list[_Binding], list[Any]]:
    items = buffers.items() if isinstance(buffers, Mapping) else enumerate(buffers)
    bindings, keep = [], []
    for index, buffer in items:
        if buffer is None:
            continue
        role, array = _role(buffer)
        if not array.flags.c_contiguous:
            raise ValueError(f"[launch] buffer {index} is not contiguous")
        keep.append(array)
        bindings.append(_Binding(_ROLES[role], index, array.ctypes.data, array.nbytes))
    return bindings, keep


def _role(buffer: Buffer) -> tuple[str, np.ndarray[Any, Any]]:
    match buffer:
        case Out(array):
            return "output", array
        case Updated(array):
            return "updated", array
        case bytes():
            # Aligned as constant data of any type must be.
            storage = np.zeros((len(buffer) + 15) // 16, np.complex128).view(np.uint8)[: len(buffer)]
            storage[:] = np.frombuffer(buffer, np.uint8)
            return "bytes", storage
        case np.generic():
            return _role(buffer.tobytes())
        case _:
            assert isinstance(buffer, np.ndarray)
            return "input", buffer


def _constant(index: int, value: bool | int | float | np.generic) -> _Constant:
    """A function constant of the type that its Python or NumPy value has."""
    types = {"bool": 0, "int32": 1, "uint32": 2, "float32": 3, "int16": 4, "uint16": 5, "int8": 6, "uint8": 7}
    types |= {"int64": 8, "uint64": 9, "float16": 10}
    if isinstance(value, (bool, np.bool_)):
        value = np.bool_(value)
    elif isinstance(value, int):
        value = np.int32(value)
    elif isinstance(value, float):
        value = np.float32(value)
    assert isinstance(value, np.generic)
    (bits,) = struct.unpack("<Q", value.tobytes().ljust(8, b"\0"))
    return _Constant(index, types[value.dtype.name], bits)

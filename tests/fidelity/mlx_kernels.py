"""MLX's own kernels, instantiated from the headers of the installed mlx package: nothing of them is in this tree."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import mlx.core
import numpy as np

from mlx_tessl.emulator.compiler import Variant, cache_directory
from mlx_tessl.emulator.meter import Reading
from mlx_tessl.emulator.runtime import Buffer, Source

INCLUDE = Path(mlx.core.__file__).parent / "include"
KERNELS = "mlx/backend/metal/kernels"


@dataclass(frozen=True)
class MlxKernel:
    """One instantiation of a kernel template of MLX, under the name that MLX's own metallib has it by."""

    name: str
    template: str  # "gemm<half, 64, 64, ...>"
    headers: tuple[str, ...]  # below the directory of MLX's kernels
    msl: int = 310

    @property
    def text(self) -> str:
        lines = ["#include <metal_stdlib>", "using namespace metal;"]
        lines += [f'#include "{KERNELS}/{header}"' for header in ("utils.h", *self.headers)]
        function = self.template
        lines.append(f'template [[host_name("{self.name}")]] [[kernel]] decltype({function}) {function};')
        return "\n".join(lines) + "\n"

    @cache  # noqa: B019  # lives as long as the tests
    def source(self, *defines: str) -> Source:
        """The kernel as the emulator's compiler takes it, with macros of a test's own."""
        directory = cache_directory() / "fidelity"
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"mlx-{hashlib.sha256(self.text.encode()).hexdigest()[:16]}.metal"
        if not path.exists():
            path.write_text(self.text)
        return Source(path, msl=self.msl, include=[INCLUDE], defines=defines)

    def job(self, checked: bool) -> tuple[Path, str, Variant]:
        """What Compiler.compile_all takes."""
        return self.source().path, self.name, Variant(self.msl, checked)


@dataclass(frozen=True)
class Result:
    """An output of a launch, what it should be, and by how much it may differ, element by element."""

    name: str
    array: np.ndarray
    expected: np.ndarray
    allowed: np.ndarray

    def used(self) -> float:
        """The largest error as a fraction of what is allowed; NaN where the output is not a number."""
        error = np.abs(self.array.astype(np.float64) - self.expected)
        return float(np.max(error / self.allowed))


@dataclass(frozen=True)
class Case:
    """A kernel with everything that MLX's host code would bind, and its results in float64."""

    kernel: MlxKernel
    buffers: Mapping[int, Buffer]
    grid: tuple[int, ...]
    group: tuple[int, ...]
    results: tuple[Result, ...]
    constants: Mapping[int, bool | int] = field(default_factory=dict)

    def run(self, source: Source, check: bool = False, order: str = "forward", seed: int = 0) -> Reading:
        """Launch the kernel as `source` has it."""
        return source.launch(
            self.kernel.name,
            self.buffers,
            grid=self.grid,
            group=self.group,
            constants=self.constants,
            check=check,
            order=order,  # type: ignore[arg-type]
            seed=seed,
        )

"""How a bug is planted in a kernel, and how a planned launch runs from sources that may hold one."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

import mlx_tessl as mt
from mlx_tessl._ext import plan as plans
from mlx_tessl.emulator import runtime
from mlx_tessl.emulator.compiler import msl_version_of
from mlx_tessl.emulator.runtime import Buffer, Out, Source, Updated

ROOT = mt.kernels_path().parent


class Planned(Protocol):
    """A problem with one output ``[batch, M, N]``, as planned for a device."""

    family: str
    batch: int
    M: int
    N: int

    def plan(self) -> plans.Plan: ...

    def inputs(self) -> list[np.ndarray]: ...

    def expected(self) -> np.ndarray: ...

    def allowed(self) -> np.ndarray: ...


class Change(Protocol):
    """What is planted: in the sources of `family`, `planted` in place of `original`, which stands there once."""

    family: str
    original: str
    planted: str


@dataclass
class Mutant:
    """A change with a name, and what of a test's problem shows it."""

    family: str
    name: str
    original: str
    planted: str
    problem: dict[str, Any] = field(default_factory=dict)


def source_of(family: str, root: Path = ROOT) -> Source:
    return Source(root / "kernels" / f"{family}.metal", msl=msl_version_of(family), include=[root])


def sources_of(family: str, kernels: Path) -> list[Path]:
    """The family's file and every header of kernels/common that it includes, directly or not."""
    found: list[Path] = []
    unread = [kernels / f"{family}.metal"]
    while unread:
        found.append(unread.pop())
        names = re.findall(r'#include "kernels/(common/\w+\.h)"', found[-1].read_text())
        unread += [kernels / name for name in names if kernels / name not in found + unread]
    return found


def plant(root: Path, *changes: Change) -> Path:
    """A copy of all kernels in `root`, with the changes; each must fit one place of its family's sources."""
    shutil.copytree(mt.kernels_path(), root / "kernels")
    for change in changes:
        files = sources_of(change.family, root / "kernels")
        counts = {file: file.read_text().count(change.original) for file in files}
        assert sum(counts.values()) == 1, "the mutant no longer fits the kernel"
        file = max(files, key=lambda file: counts[file])
        file.write_text(file.read_text().replace(change.original, change.planted))
    return root


@contextmanager
def shaders_of(root: Path) -> Iterator[None]:
    """Within it the ops that are emulated run the kernels of `root`."""
    with mt.emulate():
        pass  # the first sets the command
    runtime.configure(runtime.compile_command("--root", str(root)))
    try:
        yield
    finally:
        runtime.configure(runtime.compile_command())


def bindings(
    launch: plans.Launch,
    inputs: Sequence[np.ndarray],
    outputs: Sequence[np.ndarray],
    scratch: Sequence[np.ndarray] = (),
    written: Callable[[np.ndarray], Out | Updated] = Out,
) -> dict[int, Buffer]:
    """What each buffer of a launch is bound to."""
    buffers: dict[int, Buffer] = {}
    for i, argument in enumerate(launch.arguments):
        match argument.role:
            case "input":
                buffers[i] = inputs[argument.index]
            case "output":
                buffers[i] = written(outputs[argument.index])
            case "scratch_in":
                buffers[i] = scratch[argument.index]
            case "scratch_out":
                buffers[i] = written(scratch[argument.index])
            case "bytes":
                buffers[i] = launch.bytes_of(argument)
    return buffers


@dataclass
class Dispatch:
    """What the host hands to the encoder, open to mistakes."""

    buffers: dict[int, Buffer]
    grid: tuple[int, int, int]
    group: tuple[int, int, int]
    constants: dict[int, Any]


def launch_checked(
    source: Source,
    launch: plans.Launch,
    buffers: dict[int, Buffer],
    change: Callable[[Dispatch], None] = lambda dispatch: None,
) -> None:
    """Runs a launch under all checks: as it was planned, or with a mistake of the host."""
    dispatch = Dispatch(buffers, launch.grid, launch.group, dict(launch.constants))
    change(dispatch)
    source.launch(
        launch.kernel,
        dispatch.buffers,
        grid=dispatch.grid,
        group=dispatch.group,
        constants=dispatch.constants,
        check=True,
        seed=1,
    )


def run(problem: Planned, source: Source, change: Callable[[Dispatch], None] = lambda dispatch: None) -> None:
    """Launch under all checks and hold the result to float64. A mistake of the host is one in every launch."""
    inputs, plan = problem.inputs(), problem.plan()
    out = np.zeros((problem.batch, problem.M, problem.N), inputs[0].dtype)
    scratch = [np.zeros(nbytes // 4, np.float32) for nbytes in plan.scratch]
    for launch in plan.launches:
        # A partition's sums and their reduction may be in different libraries.
        family_source = source if launch.family == problem.family else source_of(launch.family)
        launch_checked(family_source, launch, bindings(launch, inputs, [out], scratch), change)
    assert np.all(np.abs(out - problem.expected()) <= problem.allowed())

"""The AIR of MLX's kernels, out of the mlx-metal wheel for macOS that belongs to the installed mlx."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Iterable
from pathlib import Path

from ...proof.toolbox import cache_directory, download, pinned
from .metallib import Metallib

PLATFORM = "macosx_26_0_arm64"


def air_modules(kernels: Iterable[str]) -> dict[str, Path]:
    """A bitcode file for each kernel: from the cache, or all of them from the wheel, which is then fetched."""
    version = pinned("mlx")
    directory = cache_directory() / f"mlx-metal-{version}-{PLATFORM}-air"
    modules = {kernel: directory / f"{kernel}.bc" for kernel in kernels}
    if missing := [kernel for kernel, path in modules.items() if not path.exists()]:
        library = _fetch(f"mlx-metal=={version}")
        directory.mkdir(exist_ok=True)
        for kernel in missing:
            partial = modules[kernel].with_suffix(".partial")
            partial.write_bytes(library.bitcode(kernel))
            partial.rename(modules[kernel])
    return modules


def _fetch(requirement: str) -> Metallib:
    with tempfile.TemporaryDirectory(dir=cache_directory()) as directory:
        wheel = download(requirement, Path(directory), PLATFORM)
        with zipfile.ZipFile(wheel) as archive:
            return Metallib.parse(archive.read("mlx/lib/mlx.metallib"))

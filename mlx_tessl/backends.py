"""What this installation can run, and why."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mlx.core as mx

from . import _build_info, _ext


def build_info() -> dict[str, str]:
    """Versions this build was made of: ``version``, ``mlx``, ``nanobind``, ``compiler``, ``target``, ``python``."""
    return {
        "version": _build_info.VERSION,
        "mlx": _build_info.MLX_VERSION,
        "nanobind": _build_info.NANOBIND_VERSION,
        "compiler": _build_info.COMPILER,
        "target": _build_info.TARGET,
        "python": platform.python_version(),
    }


def kernels_path() -> Path:
    """The folder of the shader sources: of the checkout when installed editable, else of the package."""
    checkout = Path(__file__).resolve().parent.parent
    if (checkout / "pyproject.toml").is_file() and (checkout / "kernels").is_dir():
        return checkout / "kernels"
    return Path(_ext.__file__).resolve().parent / "kernels"

"""What this installation can run, and why."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import mlx.core as mx

from . import _build_info, _ext
from .emulator import compiler


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


def backend_info() -> dict[str, Any]:
    """What can run here, and what does.

    ``cpu``: ``usable``, ``blas``, ``threads``, ``instruction_set``, and ``int8`` and ``bfloat16``: whether oneDNN
    computes products of these, and why. ``metal``: ``compiled``, ``usable``, ``reason``,
    and where usable ``gpu``, ``generation``, ``macos``, ``capability``. ``emulator``: ``usable``, ``reason``.
    ``families``: for each family of ops the ``path`` that the default device takes, and the ``reason``.
    """
    info = {"cpu": _cpu_info(), "metal": _metal_info(), "emulator": _emulator_info()}
    return {**info, "families": {"matmul": _path_of(info)}}


def _cpu_info() -> dict[str, Any]:
    facts = {"threads": _ext.cpu_threads(), "instruction_set": _ext.cpu_instruction_set(), **_onednn_info()}
    try:
        return {"usable": True, "blas": _ext.blas_description(), **facts}
    except RuntimeError as error:
        return {"usable": False, "blas": str(error), **facts}


def _onednn_info() -> dict[str, str]:
    return {
        name: use["reason"] if use["used"] else f"our own kernels: {use['reason']}"
        for name, use in _ext.onednn_use().items()
    }


def _metal_info() -> dict[str, Any]:
    compiled = _ext.metal_compiled()
    if not compiled:
        return {"compiled": False, "usable": False, "reason": "this build is for a system without Metal"}
    if not mx.metal.is_available():
        return {"compiled": True, "usable": False, "reason": "mlx finds no Metal device"}
    return {"compiled": True, "usable": True, "reason": _ext.tensorops_reason(), **_ext.device_profile()}


def _path_of(info: dict[str, Any]) -> dict[str, str]:
    if mx.default_device().type == mx.DeviceType.cpu:
        cpu = info["cpu"]
        return {"path": "cpu", "reason": f"the default device is the CPU; {cpu['blas']}"}
    if info["metal"]["usable"]:
        return {"path": f"metal, {info['metal']['capability']} kernels", "reason": info["metal"]["reason"]}
    return {"path": "reference", "reason": "the default device is a GPU without Metal: stock MLX ops"}


def _emulator_info() -> dict[str, Any]:
    try:
        toolchain = compiler.Toolchain.find()
    except compiler.CompileError as error:
        return {"usable": False, "reason": str(error)}
    return {"usable": True, "reason": f"kernels are compiled by {toolchain.name}"}

"""Checks an installation: versions, backends, which kernels run, and whether they compute the right numbers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from . import _ext
from .backends import backend_info, build_info, kernels_path
from .emulation import emulate
from .ops import matmul


@dataclass(frozen=True)
class Check:
    """One thing that was looked at: what it is, whether it is well, and the facts."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class Diagnosis:
    build: dict[str, str]
    backends: dict[str, Any]
    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


def diagnose() -> Diagnosis:
    """Runs every check that this machine can run. Never raises for what a check finds."""
    backends = backend_info()
    checks = [_versions(), _sources()]
    for name, context, stream in _paths(backends):
        for dtype in (mx.float32, mx.float16, mx.bfloat16):
            checks.append(_attempt(f"matmul {_dtype_name(dtype)}, {name}", _product_check(dtype, context, stream)))
    return Diagnosis(build_info(), backends, tuple(checks))


def _attempt(name: str, check: Callable[[], tuple[bool, str]]) -> Check:
    try:
        ok, detail = check()
    except Exception as error:
        return Check(name, False, f"{type(error).__name__}: {error}")
    return Check(name, ok, detail)


def _versions() -> Check:
    build = build_info()
    loaded = _ext.loaded_mlx_version()
    detail = f"mlx {loaded}, built for {build['mlx']} with nanobind {build['nanobind']}"
    return Check("versions", loaded == build["mlx"], detail)


def _sources() -> Check:
    families = sorted(path.stem for path in kernels_path().glob("*.metal"))
    detail = f"{len(families)} shader families: {', '.join(families)}" if families else "no shader sources found"
    return Check("shader sources", bool(families), detail)


Context = Callable[[], AbstractContextManager[Any]]


def _paths(backends: dict[str, Any]) -> list[tuple[str, Context, mx.DeviceType]]:
    """The ways to compute that exist here: name, context to build ops in, device."""
    paths: list[tuple[str, Context, mx.DeviceType]] = [("cpu", nullcontext, mx.DeviceType.cpu)]
    if backends["metal"]["usable"]:
        paths.append(("metal", nullcontext, mx.DeviceType.gpu))
    if backends["emulator"]["usable"]:
        paths.append(("emulated portable kernel", lambda: emulate("m1", "15.0", check=True), mx.DeviceType.cpu))
        paths.append(("emulated tensorops kernel", lambda: emulate("m5-pro", "26.4", check=True), mx.DeviceType.cpu))
    return paths


def _dtype_name(dtype: mx.Dtype) -> str:
    return str(dtype).removeprefix("mlx.core.")


def _product_check(dtype: mx.Dtype, context: Context, stream: mx.DeviceType) -> Callable[[], tuple[bool, str]]:
    """A ragged product with fused bias and relu against float64, within the rounding errors it may have."""
    M, N, K = 70, 45, 133
    unit_roundoff = {mx.float32: 2.0**-24, mx.float16: 2.0**-11, mx.bfloat16: 2.0**-8}[dtype]

    def run() -> tuple[bool, str]:
        rng = np.random.default_rng(0)
        a, b, bias = (mx.array(rng.standard_normal(s).astype(np.float32)).astype(dtype) for s in ((M, K), (K, N), (N,)))
        with context():
            result = matmul(a, b, bias=bias, activation="relu", precision="exact", stream=stream)
            mx.eval(result)
        a64, b64, bias64 = (np.array(x.astype(mx.float32)).astype(np.float64) for x in (a, b, bias))
        expected = np.maximum(a64 @ b64 + bias64, 0)
        magnitude = np.abs(a64) @ np.abs(b64) + np.abs(bias64)
        allowed = (K + 4) * 2.0**-24 * magnitude + unit_roundoff * expected
        error = np.abs(np.array(result.astype(mx.float32)).astype(np.float64) - expected)
        used = float(np.max(error / allowed))
        return used <= 1.0, f"largest error is {used:.2f} of what is allowed"

    return run

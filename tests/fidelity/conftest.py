"""Kernels of the selected tests are compiled at once, on all cores, before the first of them runs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlx_tessl.emulator.compiler import Compiler, Variant

from .mlx_kernels import INCLUDE
from .specs import Spec


@pytest.fixture(scope="session")
def compiled(request: pytest.FixtureRequest) -> None:
    """Fill the cache with what tests that have a `spec` will launch."""
    jobs: dict[tuple[Path, str, Variant], None] = {}
    for item in request.session.items:
        parameters = getattr(getattr(item, "callspec", None), "params", {})
        spec = parameters.get("spec")
        if isinstance(spec, Spec):
            jobs |= dict.fromkeys(case.kernel.job(parameters.get("check", False)) for case in spec.cases())
    Compiler([INCLUDE]).compile_all(jobs, os.cpu_count() or 1)

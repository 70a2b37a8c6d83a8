"""The committed stubs say what the extension offers: `make stubs` writes them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import mlx_tessl

STUBS = Path(mlx_tessl.__file__).parent / "_ext"


def test_stubs_are_current(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "nanobind.stubgen", "--quiet", "--recursive", "--module", "mlx_tessl._ext"]
    subprocess.run([*command, "--output-dir", str(tmp_path)], check=True)
    generated = {path.name: path.read_text() for path in (tmp_path / "_ext").iterdir()}
    committed = {path.name: path.read_text() for path in STUBS.glob("*.pyi")}
    assert committed == generated, "run: make stubs"

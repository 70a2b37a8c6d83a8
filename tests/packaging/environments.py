"""Copies of the tree, commands that know nothing of this checkout, and fresh environments."""

from __future__ import annotations

import os
import shutil
import subprocess
import venv
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs a command that knows nothing of this checkout."""
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(
        [str(part) for part in command], cwd=cwd, env={**inherited, **environment}, capture_output=True, text=True
    )


def copy_tree(target: Path) -> Path:
    """The project's files without what tools left behind."""
    ignored = shutil.ignore_patterns(".git", ".venv", "build", "dist", "*.egg-info", "__pycache__", ".*_cache")
    shutil.copytree(ROOT, target, ignore=ignored)
    return target


@dataclass(frozen=True)
class Distributions:
    sdist: Path
    wheel: Path


@dataclass(frozen=True)
class Environment:
    """A virtual environment; `python` runs in an empty folder."""

    executable: Path
    folder: Path

    def python(self, code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return run(self.executable, "-c", code, cwd=self.folder, **environment)

    def pip(self, *arguments: str | Path) -> None:
        result = run(self.executable, "-m", "pip", "install", "--quiet", *arguments, cwd=self.folder)
        assert result.returncode == 0, result.stdout + result.stderr

    @property
    def package(self) -> Path:
        result = self.python("import sysconfig; print(sysconfig.get_paths()['platlib'])")
        return Path(result.stdout.strip()) / "mlx_tessl"


def make_environment(folder: Path) -> Environment:
    venv.create(folder / "venv", with_pip=True)
    (folder / "empty").mkdir()
    return Environment(folder / "venv/bin/python", folder / "empty")

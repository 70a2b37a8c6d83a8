"""What the proofs share: the pinned versions, the cache of downloads and the compiler."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def pinned(package: str) -> str:
    """The version of `package` that pyproject.toml builds against."""
    requires: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    for requirement in requires:
        name, _, version = requirement.partition(";")[0].strip().partition("==")
        if name == package and version:
            return version
    raise SystemExit(f"pyproject.toml pins no {package}")


def cache_directory() -> Path:
    """MLX_TESSL_CACHE, else the user's cache; outside the tree, so that fresh clones share it."""
    default = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "mlx_tessl"
    directory = Path(os.environ.get("MLX_TESSL_CACHE", default))
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def download(requirement: str, directory: Path, platform: str) -> Path:
    """The wheel of a package for another platform."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
    command += ["--platform", platform, "--python-version", "3.12", "-d", str(directory), requirement]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"pip could not download {requirement} for {platform}:\n{result.stderr}")
    return max(directory.glob("*.whl"), key=lambda wheel: wheel.stat().st_mtime_ns)


def zig(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Runs zig, the one cross compiler that pip can install; its own cache lies with ours."""
    cache = str(cache_directory() / "zig")
    return subprocess.run(
        [sys.executable, "-m", "ziglang", *map(str, arguments)],
        env={**os.environ, "ZIG_GLOBAL_CACHE_DIR": cache, "ZIG_LOCAL_CACHE_DIR": cache},
        capture_output=True,
        text=True,
    )

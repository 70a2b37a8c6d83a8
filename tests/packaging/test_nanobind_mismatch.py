"""Another nanobind than mlx was built with: the build stops, and a module built with it refuses to load.

Such a module imports, and then every call with an mlx array raises TypeError.
"""

from __future__ import annotations

import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from .environments import ROOT, Environment, copy_tree, make_environment, run

OTHER = "2.15.0"  # internals v21; mlx 0.32.4 has v22

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="builds with g++")]


@pytest.fixture(scope="module")
def mismatched(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment that can build, with the other nanobind."""
    environment = make_environment(tmp_path_factory.mktemp("mismatched"))
    mlx = re.search(r'"mlx\[cpu\]==([\d.]+)', (ROOT / "pyproject.toml").read_text())
    assert mlx
    environment.pip("scikit-build-core>=1.1", f"nanobind=={OTHER}", f"mlx[cpu]=={mlx[1]}", "cmake", "ninja", "numpy")
    return environment


def test_the_build_stops_and_says_what_to_install(mismatched: Environment, tmp_path: Path) -> None:
    tree = copy_tree(tmp_path / "tree")
    result = run(
        *(mismatched.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", tree),
        cwd=tmp_path,
        PATH=f"{mismatched.executable.parent}:/usr/bin:/bin",
    )
    assert result.returncode != 0
    output = " ".join((result.stdout + result.stderr).split())
    pinned = re.search(r'"nanobind==([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert pinned
    assert f"mlx_tessl must be built with nanobind {pinned[1]}, but found {OTHER}" in output
    assert f"pip install nanobind=={pinned[1]}" in output


def build_module(environment: Environment, folder: Path) -> Path:
    """Our module.cpp with nothing bound to it, built with the environment's nanobind."""
    site = environment.package.parent
    declarations = re.findall(r"void (bind_\w+)\(", (ROOT / "csrc/bindings/bindings.h").read_text())
    stubs = folder / "stubs.cpp"
    stubs.write_text(
        '#include "bindings/bindings.h"\n'
        + "".join(f"void tessl::{name}(nanobind::module_&) {{}}\n" for name in declarations)
    )
    module = folder / f"_ext{sysconfig.get_config_var('EXT_SUFFIX')}"
    nanobind = site / "nanobind"
    includes = [ROOT / "csrc", ROOT, nanobind / "include", nanobind / "ext/robin_map/include", site / "mlx/include"]
    result = run(
        *("g++", "-std=c++20", "-O0", "-shared", "-fPIC", "-fvisibility=hidden", "-DNB_DOMAIN=mlx", "-DNDEBUG"),
        *(f"-I{include}" for include in [*includes, sysconfig.get_paths()["include"]]),
        *(ROOT / "csrc/bindings/module.cpp", stubs, nanobind / "src/nb_combined.cpp"),
        *(f"-L{site / 'mlx/lib'}", "-lmlx", "-Wl,-rpath,$ORIGIN/../mlx/lib", "-o", module),
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr
    return module


def test_a_module_built_with_it_refuses_to_load(
    mismatched: Environment, installed: Environment, tmp_path: Path
) -> None:
    module = build_module(mismatched, tmp_path)
    shutil.copytree(installed.package, mismatched.package)
    shutil.copy(module, mismatched.package / module.name)
    result = mismatched.python("import mlx_tessl")
    assert result.returncode != 0
    message = result.stderr.strip().splitlines()[-1]
    assert message.startswith("ImportError: mlx_tessl was built with nanobind")
    assert "pip install" in message

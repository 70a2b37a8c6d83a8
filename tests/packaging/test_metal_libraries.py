"""How the shaders are compiled on a Mac, by the real CMake files and a stand-in for Apple's compiler."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CMAKE = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")

# Writes down its arguments, makes the file they ask for, and knows the languages in XCRUN_STANDARDS only.
XCRUN = """#!/bin/sh
echo "$@" >> "$XCRUN_LOG"
for argument in "$@"; do
  case "$argument" in -std=*) case " $XCRUN_STANDARDS " in *" ${argument#-std=} "*) ;; *) exit 1 ;; esac ;; esac
  case "$previous" in -o) echo made > "$argument" ;; esac
  previous=$argument
done
"""

FLAGS = {
    "portable": "-std=metal3.1 -mmacosx-version-min=14.0",
    "tensorops": "-std=metal4.0 -mmacosx-version-min=26.2",
    "tensorops27": "-std=metal4.1 -mmacosx-version-min=27.0",
}
FAMILIES = {"norm": "portable", "matmul_tensorops": "tensorops", "attention_tensorops27": "tensorops27"}


class Project:
    """A project of three families, built with the repository's kernels/CMakeLists.txt."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "log"
        (root / "kernels/common").mkdir(parents=True)
        (root / "kernels/common/shared.h").write_text("#pragma once\n")
        for family in FAMILIES:
            (root / f"kernels/{family}.metal").write_text("// a shader\n")
        shutil.copy(ROOT / "kernels/CMakeLists.txt", root / "kernels")
        (root / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.25)\nproject(shaders LANGUAGES NONE)\n"
            f'list(APPEND CMAKE_MODULE_PATH "{ROOT}/cmake")\nadd_subdirectory(kernels)\n'
        )
        xcrun = root / "bin/xcrun"
        xcrun.parent.mkdir()
        xcrun.write_text(XCRUN)
        xcrun.chmod(0o755)

    def run(self, *arguments: str, standards: str = "metal3.1 metal4.0 metal4.1") -> subprocess.CompletedProcess[str]:
        environment = {
            **os.environ,
            "PATH": f"{self.root / 'bin'}:{os.environ['PATH']}",
            "XCRUN_LOG": str(self.log),
            "XCRUN_STANDARDS": standards,
            "MACOSX_DEPLOYMENT_TARGET": "11.0",  # what CPython hands down
        }
        return subprocess.run([str(CMAKE), *arguments], cwd=self.root, env=environment, capture_output=True, text=True)

    def commands(self) -> list[str]:
        return self.log.read_text().splitlines()


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_each_family_is_compiled_for_its_capability(project: Project) -> None:
    assert project.run("-S.", "-Bbuild", "-DCMAKE_OSX_DEPLOYMENT_TARGET=11.0").returncode == 0
    assert project.run("--build", "build").returncode == 0
    compiled = [command for command in project.commands() if " -c " in command]
    assert len(compiled) == len(FAMILIES)
    for family, capability in FAMILIES.items():
        (command,) = [command for command in compiled if f"/{family}.metal" in command]
        assert FLAGS[capability] in command
        assert "-fno-fast-math" in command
        assert re.findall(r"-mmacosx-version-min=(\S+)", command) == FLAGS[capability].split("=")[-1:]
    linked = [command for command in project.commands() if " metallib " in command]
    assert len(linked) == len(FLAGS)
    for family, capability in FAMILIES.items():
        assert any(f"/{family}.air" in command and f"mlx_tessl_{capability}.metallib" in command for command in linked)


def test_metallibs_are_installed_beside_the_extension(project: Project) -> None:
    project.run("-S.", "-Bbuild")
    project.run("--build", "build")
    assert project.run("--install", "build", "--prefix", "installed").returncode == 0
    installed = {path.name for path in (project.root / "installed/mlx_tessl").iterdir()}
    assert installed == {f"mlx_tessl_{capability}.metallib" for capability in FLAGS}


@pytest.mark.parametrize("minimum", ["11.0", "26.0", "26.1"])
def test_a_build_that_would_lower_the_minimum_of_tensorops_stops(project: Project, minimum: str) -> None:
    result = project.run("-S.", "-Bbuild", f"-DMLX_TESSL_METAL_MINIMUM_tensorops={minimum}")
    assert result.returncode != 0
    message = " ".join(result.stderr.split())
    assert f"mlx_tessl_tensorops.metallib must be built for macOS 26.2 or later, not {minimum}" in message


def test_the_minimum_may_be_raised(project: Project) -> None:
    assert project.run("-S.", "-Bbuild", "-DMLX_TESSL_METAL_MINIMUM_tensorops=26.4").returncode == 0
    project.run("--build", "build")
    assert any("-mmacosx-version-min=26.4" in command and " -c " in command for command in project.commands())


def test_an_older_compiler_builds_what_it_knows(project: Project) -> None:
    result = project.run("-S.", "-Bbuild", standards="metal3.1")
    assert result.returncode == 0
    assert "mlx_tessl_tensorops: no Metal compiler" in result.stdout
    project.run("--build", "build", standards="metal3.1")
    assert {path.name for path in project.root.rglob("*.metallib")} == {"mlx_tessl_portable.metallib"}


def test_without_a_compiler_nothing_is_built(project: Project) -> None:
    (project.root / "bin/xcrun").unlink()
    assert project.run("-S.", "-Bbuild").returncode == 0
    assert project.run("--build", "build").returncode == 0
    assert project.run("--install", "build", "--prefix", "installed").returncode == 0
    assert not list(project.root.rglob("*.metallib"))


def test_a_changed_header_compiles_the_shaders_again(project: Project) -> None:
    project.run("-S.", "-Bbuild")
    project.run("--build", "build")
    project.log.unlink()
    header = project.root / "kernels/common/shared.h"
    later = header.stat().st_mtime + 10
    os.utime(header, (later, later))
    project.run("--build", "build")
    assert sum(" -c " in command for command in project.commands()) == len(FAMILIES)

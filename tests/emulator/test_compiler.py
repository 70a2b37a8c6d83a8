"""The cache of compiled kernels: what its keys cover, and many processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mlx_tessl
from mlx_tessl.emulator import compiler
from mlx_tessl.emulator.compiler import CompileError, Compiler, Variant
from mlx_tessl.emulator.runtime import Out, Source

PACKAGE = Path(compiler.__file__).parent
TEXT = """
#include "constant.h"
kernel void value(device float* out [[buffer(0)]]) { out[0] = VALUE; }
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "constant.h").write_text("#define VALUE 1\n")
    path = tmp_path / "value.metal"
    path.write_text(TEXT)
    return path


def libraries(cache: Path) -> set[str]:
    return {path.name for path in cache.glob("*.so")}


def test_a_library_is_compiled_once(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = Compiler(cache=cache).compile(source, "value", Variant())
    stamp = first.stat().st_mtime_ns
    assert Compiler(cache=cache).compile(source, "value", Variant()) == first
    assert first.stat().st_mtime_ns == stamp
    assert libraries(cache) == {first.name}


def test_the_key_covers_includes_defines_version_and_mode(source: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    variants = [Variant(), Variant(400), Variant(checked=True), Variant(defines=("OTHER=1",))]
    paths = [Compiler(cache=cache).compile(source, "value", variant) for variant in variants]
    (tmp_path / "constant.h").write_text("#define VALUE 2\n")
    paths.append(Compiler(cache=cache).compile(source, "value", Variant()))
    assert len(set(paths)) == 5


def test_the_key_covers_the_runtime(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, headers = tmp_path / "cache", tmp_path / "include"
    original = compiler.runtime_directory()
    for path in original.rglob("*"):
        if path.is_file():
            copy = headers / path.relative_to(original)
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    monkeypatch.setattr(compiler, "runtime_directory", lambda: headers)
    before = Compiler(cache=cache).compile(source, "value", Variant())
    with (headers / "msl" / "math.h").open("a") as header:
        header.write("// changed\n")
    assert Compiler(cache=cache).compile(source, "value", Variant()) != before


def test_an_error_names_the_line_of_the_source(source: Path) -> None:
    source.write_text(TEXT.replace("VALUE;", "VALUE + unknown;"))
    with pytest.raises(CompileError, match=r"value\.metal:3:\d+: error: use of undeclared identifier 'unknown'"):
        Source(source).launch("value", [Out(np.zeros(1, np.float32))], grid=1, group=1)


def test_processes_that_compile_the_same_kernel(source: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MLX_TESSL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(PACKAGE), "compile", str(source), "value", "310", "fast"]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) for _ in range(4)]
    printed = {process.communicate()[0] for process in processes}
    assert all(process.returncode == 0 for process in processes)
    (path,) = printed
    assert libraries(tmp_path / "cache") == {Path(path.strip()).name}


def test_compiling_imports_neither_mlx_nor_numpy(source: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MLX_TESSL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, "-X", "importtime", str(PACKAGE), "compile", str(source), "value", "310", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    imported = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "emulator.compiler" in imported
    assert not {"mlx", "mlx.core", "numpy", mlx_tessl.__name__} & imported


def test_a_failed_compilation_says_so_on_stderr(source: Path, tmp_path: Path) -> None:
    environment = os.environ | {"MLX_TESSL_CACHE": str(tmp_path / "cache")}
    command = [sys.executable, str(PACKAGE), "compile", str(source), "absent", "310", "fast"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 1
    assert "no kernel named 'absent'; there are: value" in done.stderr
    assert done.stdout == ""

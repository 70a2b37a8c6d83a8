"""Flattening a shader family to the one text that Metal receives."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mlx_tessl import _ext

ROOT = Path(__file__).resolve().parents[2]
FAMILIES = sorted(path.stem for path in (ROOT / "kernels").glob("*.metal"))


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    for folder in ("common", "args"):
        (tmp_path / folder).mkdir()
    (tmp_path / "args/copy.h").write_text("#pragma once\nstruct CopyArgs { int n; };\n")
    (tmp_path / "common/load.h").write_text('#pragma once\n\n#include "kernels/args/copy.h"\nint load();\n')
    return tmp_path


def flatten(kernels: Path, source: str) -> str:
    (kernels / "copy.metal").write_text(source)
    text, _ = _ext.flatten_shader(str(kernels), "copy")
    return text


def test_each_include_stands_in_place_of_its_first_mention(kernels: Path) -> None:
    text = flatten(
        kernels,
        '#include <metal_stdlib>\n#include "kernels/common/load.h"\n#include "kernels/args/copy.h"\nint last;\n',
    )
    assert text == (
        '#line 1 "kernels/copy.metal"\n#include <metal_stdlib>\n'
        '#line 1 "kernels/common/load.h"\n\n\n'
        '#line 1 "kernels/args/copy.h"\n\nstruct CopyArgs { int n; };\n'
        '#line 4 "kernels/common/load.h"\nint load();\n'
        '#line 3 "kernels/copy.metal"\n'
        '#line 4 "kernels/copy.metal"\nint last;\n'
    )


@pytest.mark.parametrize(
    "comment",
    [
        '// #include "kernels/args/gone.h"\n',
        '/*\n#include "kernels/args/gone.h"\n*/\n',
        '/* * / // /*\n#include "x"\n*/\n',
    ],
)
def test_comments_include_nothing(kernels: Path, comment: str) -> None:
    assert "struct CopyArgs" in flatten(kernels, comment + '#include "kernels/args/copy.h"\n')


@pytest.mark.parametrize("spelling", ['#include "kernels/args/copy.h"', '  #  include\t"kernels/args/copy.h" // why'])
def test_spellings_of_an_include(kernels: Path, spelling: str) -> None:
    text = flatten(kernels, f"{spelling}\n")
    assert "struct CopyArgs" in text
    assert not re.search(r'#\s*include\s*"', text)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('int a;\n#include "kernels/args/gone.h"\n', r"no shader file .*gone\.h, included by kernels/copy\.metal:2$"),
        ('#include "args/copy.h"\n', r"copy\.metal:1 includes \"args/copy\.h\", which does not start with kernels/"),
        ('#if 1\n#include "kernels/args/copy.h"\n#endif\n', r"copy\.metal:2 includes .* under a condition"),
        ("#include MACRO\n", r"copy\.metal:1 has an #include that names no file"),
        ("int a;\nint b; // \u00b5s\n", r"copy\.metal:2:11 holds a byte outside ASCII"),
    ],
)
def test_what_cannot_be_flattened_is_named(kernels: Path, source: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        flatten(kernels, source)


def test_a_missing_family_is_named(kernels: Path) -> None:
    with pytest.raises(RuntimeError, match=r"no shader file .*/softmax\.metal$"):
        _ext.flatten_shader(str(kernels), "softmax")


def test_the_hash_follows_every_file(kernels: Path) -> None:
    (kernels / "copy.metal").write_text('#include "kernels/common/load.h"\n')
    _, before = _ext.flatten_shader(str(kernels), "copy")
    assert re.fullmatch(r"[0-9a-f]{16}", before)
    assert _ext.flatten_shader(str(kernels), "copy")[1] == before
    (kernels / "args/copy.h").write_text("#pragma once\nstruct CopyArgs { long n; };\n")
    assert _ext.flatten_shader(str(kernels), "copy")[1] != before


@pytest.mark.parametrize("family", FAMILIES)
def test_flattened_families_are_what_the_preprocessor_makes_of_them(family: str, tmp_path: Path) -> None:
    pytest.importorskip("ziglang")

    def preprocessed(*arguments: str | Path) -> list[str]:
        command = [sys.executable, "-m", "ziglang", "clang", "-E", "-P", "-x", "c++", "-nostdinc", "-undef", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()

    for header in ("metal_stdlib", "metal_simdgroup_matrix", "metal_tensor"):
        (tmp_path / header).write_text("")
    (tmp_path / "MetalPerformancePrimitives").mkdir()
    (tmp_path / "MetalPerformancePrimitives/MetalPerformancePrimitives.h").write_text("")
    flat = tmp_path / "flat.metal"
    flat.write_text(_ext.flatten_shader(str(ROOT / "kernels"), family)[0], encoding="ascii")
    own = preprocessed(f"-I{tmp_path}", flat)
    assert own == preprocessed(f"-I{tmp_path}", f"-I{ROOT}", ROOT / f"kernels/{family}.metal")
    assert "kernel" in " ".join(own)

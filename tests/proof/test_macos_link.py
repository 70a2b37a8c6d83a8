"""The macOS link proof passes, and it can fail: each mistake it is there for is planted and refused."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ziglang")
pytest.importorskip("lief")

import macos_link
from macos_link import Builder, ProofError, check_imports, fetch_sdk, write_stub

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def builder(tmp_path_factory: pytest.TempPathFactory) -> Builder:
    return Builder(fetch_sdk(), tmp_path_factory.mktemp("macos_link"))


def link(builder: Builder, code: str) -> Path:
    source = builder.work / "planted.cpp"
    source.write_text(code)
    return builder.link([builder.compile(source)])


def test_the_extension_compiles_and_links_for_macos() -> None:
    script = Path(macos_link.__file__)
    result = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "names from libmlx" in result.stdout


def test_what_mlx_exports_links(builder: Builder) -> None:
    linked = link(
        builder,
        "#include <mlx/backend/metal/device.h>\n"
        'extern "C" void* sound() { return &mlx::core::metal::device(mlx::core::Device::gpu); }\n',
    )
    assert check_imports(linked)["libmlx"]


@pytest.mark.parametrize(
    ("header", "call", "name"),
    [
        ("mlx/backend/metal/device.h", "mlx::core::metal::is_nax_available()", "is_nax_available"),
        ("mlx/backend/metal/utils.h", "mlx::core::get_block_dims(1, 1, 1)", "get_block_dims"),
        (
            "mlx/backend/gpu/copy.h",
            "mlx::core::contiguous_copy_gpu(*static_cast<mlx::core::array*>(nullptr), mlx::core::Stream{0, {}})",
            "contiguous_copy_gpu",
        ),
    ],
)
def test_functions_that_mlx_hides_do_not_link(builder: Builder, header: str, call: str, name: str) -> None:
    with pytest.raises(ProofError, match=name):
        link(builder, f'#include <{header}>\nextern "C" void planted() {{ (void){call}; }}\n')


def test_a_function_of_a_newer_runtime_does_not_link(builder: Builder) -> None:
    with pytest.raises(ProofError, match="__hash_memory"):
        link(builder, macos_link.NEWER_RUNTIME)


def test_another_library_is_refused(builder: Builder) -> None:
    stub = write_stub(builder.work / "libz.tbd", "/usr/lib/libz.1.dylib", ["_zlibVersion"])
    builder.libraries.append(stub)
    try:
        linked = link(
            builder,
            'extern "C" const char* zlibVersion();\nextern "C" const char* planted() { return zlibVersion(); }\n',
        )
        with pytest.raises(ProofError, match="libz"):
            check_imports(linked)
    finally:
        builder.libraries.remove(stub)


def test_every_source_of_the_metal_backend_is_proved() -> None:
    names = {source.name for source in macos_link.extension_sources()}
    assert {"encode.cpp", "gate.cpp", "library.cpp", "pipeline.cpp"} <= names
    assert "no_metal.cpp" not in names

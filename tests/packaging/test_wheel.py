"""What users install: built by `python -m build`, installed elsewhere, the source tree gone."""

from __future__ import annotations

import json
import re
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from .environments import ROOT, Distributions, Environment

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="reads ELF files and /proc"),
]

PRODUCT = "print(mt.matmul(mx.ones((3, 4)), mx.ones((4, 5))).tolist() == [[4.0] * 5] * 3)"


def pins() -> dict[str, str]:
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    return dict(re.match(r"(\w+)(?:\[cpu\])?==([\d.]+)", line).groups() for line in requires if "==" in line)


def kernel_files(folder: Path) -> dict[str, bytes]:
    files = [*folder.rglob("*.metal"), *folder.rglob("*.h")]
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_sdist_holds_what_a_build_needs(distributions: Distributions) -> None:
    with tarfile.open(distributions.sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for needed in ("CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml", "cmake/RequireVersions.cmake"):
        assert needed in names
    assert {f"kernels/{name}" for name in kernel_files(ROOT / "kernels")} <= names
    sources = {str(path.relative_to(ROOT)) for path in (ROOT / "csrc").rglob("*") if path.suffix in (".h", ".cpp")}
    assert sources <= names
    assert not any(name.startswith((".ci", "build/", ".venv")) for name in names)


def test_the_wheel_holds_the_package_and_its_shaders(distributions: Distributions) -> None:
    with zipfile.ZipFile(distributions.wheel) as archive:
        names = set(archive.namelist())
    assert {f"mlx_tessl/kernels/{name}" for name in kernel_files(ROOT / "kernels")} <= names
    assert "mlx_tessl/py.typed" in names
    assert any(re.fullmatch(r"mlx_tessl/_ext\.\S+\.so", name) for name in names)
    assert all(name.startswith("mlx_tessl") for name in names)
    assert not any(name.endswith((".cpp", "CMakeLists.txt")) for name in names)


@pytest.mark.parametrize(
    "imports",
    [
        "import mlx_tessl as mt, mlx.core as mx",
        "import mlx.core as mx, mlx_tessl as mt",
        "import mlx_tessl as mt; mt.reference; import mlx.core as mx",
    ],
)
def test_imports_before_and_after_mlx(installed: Environment, imports: str) -> None:
    result = installed.python(f"{imports}; {PRODUCT}")
    assert result.stdout.strip() == "True", result.stderr


def test_nothing_of_the_tree_is_used(installed: Environment) -> None:
    result = installed.python(
        "import json, sys, mlx_tessl\n"
        "modules = [module for name, module in sys.modules.items() if name.startswith('mlx_tessl')]\n"
        "print(json.dumps([module.__file__ for module in modules if getattr(module, '__file__', None)]))"
    )
    files = json.loads(result.stdout)
    assert len(files) > 3
    assert all(file.startswith(str(installed.package)) for file in files)


def test_kernels_path_holds_the_sources(installed: Environment) -> None:
    result = installed.python("import mlx_tessl as mt; print(mt.kernels_path())")
    folder = Path(result.stdout.strip())
    assert folder == installed.package / "kernels"
    assert kernel_files(folder) == kernel_files(ROOT / "kernels")


def test_build_info_tells_the_pinned_versions(installed: Environment) -> None:
    result = installed.python("import json, mlx_tessl as mt; print(json.dumps([mt.__version__, mt.build_info()]))")
    version, info = json.loads(result.stdout)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert version == info["version"] == project["version"]
    assert {name: info[name] for name in ("mlx", "nanobind")} == {name: pins()[name] for name in ("mlx", "nanobind")}


def test_the_runpath_is_relative(installed: Environment) -> None:
    elffile = pytest.importorskip("elftools.elf.elffile")
    with next(installed.package.glob("_ext.*.so")).open("rb") as file:
        tags = list(elffile.ELFFile(file).get_section_by_name(".dynamic").iter_tags())
        (runpath,) = (tag.runpath for tag in tags if tag.entry.d_tag == "DT_RUNPATH")
        needed = [tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"]
    paths = runpath.split(":")
    assert {"$ORIGIN", "$ORIGIN/../mlx/lib"} <= set(paths)
    assert all(path.startswith("$ORIGIN") for path in paths)
    assert [name for name in needed if "mlx" in name] == ["libmlx.so"]


def test_the_extension_defines_nothing_of_mlx(installed: Environment) -> None:
    elffile = pytest.importorskip("elftools.elf.elffile")
    with next(installed.package.glob("_ext.*.so")).open("rb") as file:
        symbols = list(elffile.ELFFile(file).get_section_by_name(".dynsym").iter_symbols())
    imported = {symbol.name for symbol in symbols if symbol.entry.st_shndx == "SHN_UNDEF"}
    # Weak ones are templates of MLX's headers, which the loader unites with those of libmlx.
    defined = {
        symbol.name
        for symbol in symbols
        if symbol.entry.st_shndx != "SHN_UNDEF" and symbol.entry.st_info.bind == "STB_GLOBAL"
    }
    assert "PyInit__ext" in defined
    assert not [name for name in defined if "3mlx4core" in name and "5tessl" not in name]
    assert [name for name in imported if "N3mlx4core5array" in name]


def test_one_libmlx_is_loaded(installed: Environment) -> None:
    result = installed.python(
        f"import mlx_tessl as mt, mlx.core as mx; {PRODUCT}\n"
        "print({line.split()[-1] for line in open('/proc/self/maps') if 'libmlx' in line})"
    )
    product, libraries = result.stdout.splitlines()
    assert product == "True"
    assert len(eval(libraries)) == 1, libraries


def refusal(environment: Environment, code: str) -> str:
    """The one ImportError that `code` ends in, without its traceback."""
    result = environment.python(code)
    assert result.returncode != 0
    lines = result.stderr.strip().splitlines()
    assert lines[-1].startswith("ImportError: "), result.stderr
    return lines[-1]


@pytest.mark.parametrize("version", ["0.32.3", "0.33.0"])
def test_another_mlx_is_refused_in_one_sentence(installed: Environment, version: str) -> None:
    message = refusal(installed, f"import mlx.core as mx; mx.__version__ = '{version}'; import mlx_tessl")
    assert f"built for mlx {pins()['mlx']}, but mlx {version} is installed" in message
    assert f"pip install 'mlx=={pins()['mlx']}'" in message


def test_a_missing_mlx_is_told_with_the_way_to_get_it(installed: Environment) -> None:
    message = refusal(installed, "import sys; sys.modules['mlx.core'] = None; import mlx_tessl")
    assert f"pip install 'mlx[cpu]=={pins()['mlx']}'" in message

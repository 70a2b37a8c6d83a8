"""Proves on Linux that the extension builds for arm64 macOS: `python tests/proof/macos_link.py`.

Every C++ source is compiled for macOS and linked against the libmlx.dylib that Mac users install. The link is strict:
* MLX symbols come from that library or not at all, so that a call to a function MLX hides fails by name;
* libc++, libobjc and Accelerate offer exactly what the Apple-built binaries of MLX import from them, so that nothing of
  another libc++ slips in;
* no other library may be needed.
Each run also plants the two mistakes and requires the link to refuse them. What it does not prove: that anything runs.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
import tempfile
import time
import zipfile
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

import lief
import nanobind
from toolbox import ROOT, cache_directory, download, pinned, zig

# The oldest macOS that MLX has wheels for: the strictest choice. Headers and exported names of its wheel are those of
# the wheel for macOS 26.
MACOS = "14.0"
PLATFORM = "macosx_14_0_arm64"

# Apple's SDK headers that metal-cpp includes and zig does not ship, as far as metal-cpp needs them.
SDK_STAND_INS = {
    "CoreFoundation/CoreFoundation.h": "typedef double CFTimeInterval;",
    "IOSurface/IOSurfaceRef.h": "typedef struct __IOSurface* IOSurfaceRef;",
}

ALLOWED_LIBRARIES = {
    "libmlx": "@rpath/libmlx.dylib",
    "libc++": "/usr/lib/libc++.1.dylib",
    "libobjc": "/usr/lib/libobjc.A.dylib",
    "libSystem": "/usr/lib/libSystem.B.dylib",
    "Accelerate": "/System/Library/Frameworks/Accelerate.framework/Versions/A/Accelerate",
    "CPython": "@rpath/CPython",  # looked up in the interpreter at load time; nanobind lists the names
}

# Headers that take most of the time of compiling, compiled once. A source takes the first set of which it includes all.
PRECOMPILED = {
    "nanobind": ("mlx/array.h", "nanobind/nanobind.h"),
    "metal": ("mlx/array.h", "mlx/backend/metal/device.h"),
    "ops": ("mlx/array.h", "mlx/ops.h", "mlx/primitives.h"),
    "mlx": ("mlx/array.h",),
}
# Any of these is reason enough to take all: whether a source includes what it uses is for builds without this to tell.
STANDARD = ("algorithm", "array", "cmath", "functional", "memory", "optional", "string", "string_view", "vector")

HIDDEN_CALL = """
#include <mlx/backend/metal/device.h>
extern "C" bool planted() { return mlx::core::metal::is_nax_available(); }
"""
NEWER_RUNTIME = """
#include <cstddef>
namespace std { inline namespace __1 { size_t __hash_memory(const void*, size_t) noexcept; } }
extern "C" size_t planted(const void* data) { return std::__hash_memory(data, 8); }
"""  # what std::hash of a string calls in libc++ 21; older macOS has no such function


lief.logging.disable()


class ProofError(Exception):
    """The proof failed; the message is the finding."""


@dataclass(frozen=True)
class Sdk:
    """The parts of macOS wheels that the proof needs, unpacked."""

    root: Path

    @property
    def libmlx(self) -> Path:
        return self.root / "mlx/lib/libmlx.dylib"

    @property
    def core(self) -> Path:
        return next(self.root.glob("mlx/core.cpython-*.so"))


def fetch_sdk() -> Sdk:
    """Downloads the wheels once and keeps headers, libraries and the Python module of MLX."""
    mlx = pinned("mlx")
    root = cache_directory() / f"mlx-{mlx}-{PLATFORM}"
    if not root.exists():
        partial = Path(tempfile.mkdtemp(dir=cache_directory()))
        for requirement in (f"mlx-metal=={mlx}", f"mlx=={mlx}"):
            unpack(download(requirement, partial, PLATFORM), partial)
        for name, text in SDK_STAND_INS.items():
            (partial / "sdk" / name).parent.mkdir(parents=True, exist_ok=True)
            (partial / "sdk" / name).write_text(f"#pragma once\n{text}\n")
        partial.rename(root)
    return Sdk(root)


def unpack(wheel: Path, root: Path) -> None:
    wanted = re.compile(r"mlx/include/.*|mlx/lib/libmlx\.dylib|mlx/core\.cpython-.*\.so")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(root, [name for name in archive.namelist() if wanted.fullmatch(name)])
    wheel.unlink()


def imports_by_library(binary: Path) -> dict[str, set[str]]:
    """Install name of a library (or "" for lookups in the process) to the names imported from it."""
    parsed = lief.MachO.parse(str(binary))
    if parsed is None:
        raise ProofError(f"{binary} is no Mach-O file")
    image = parsed.at(0)
    own = lief.MachO.LoadCommand.TYPE.ID_DYLIB
    libraries = [library.name for library in image.libraries if library.command != own]
    names = defaultdict(set)
    for symbol in image.imported_symbols:
        ordinal = symbol.library_ordinal
        names[libraries[ordinal - 1] if 0 < ordinal <= len(libraries) else ""].add(str(symbol.name))
    return names


def write_stub(path: Path, install_name: str, symbols: Iterable[str]) -> Path:
    """A text-based dylib stub that exports `symbols` and nothing else."""
    path.write_text(
        "--- !tapi-tbd\ntbd-version: 4\ntargets: [ arm64-macos ]\n"
        f"install-name: '{install_name}'\nexports:\n  - targets: [ arm64-macos ]\n"
        f"    symbols: [ {', '.join(repr(name) for name in sorted(symbols))} ]\n...\n"
    )
    return path


def cpython_names() -> set[str]:
    flags = (Path(nanobind.__file__).parent / "cmake/darwin-ld-cpython.sym").read_text().split()
    return {name for name in flags if name.startswith("_")}


def offered_names(sdk: Sdk) -> dict[str, set[str]]:
    """What the stand-in of each system library exports: what MLX's own binaries import from it."""
    binaries = [imports_by_library(binary) for binary in (sdk.libmlx, sdk.core)]
    offered = {
        label: set().union(*(imports[ALLOWED_LIBRARIES[label]] for imports in binaries))
        for label in ("libc++", "libobjc", "Accelerate")
    }
    offered["CPython"] = cpython_names()
    return offered


class Builder:
    """Compiles for macOS and links against what Apple-built binaries link against."""

    def __init__(self, sdk: Sdk, work: Path) -> None:
        self.target = f"aarch64-macos.{MACOS}"
        self.work = work
        nanobind_root = Path(nanobind.include_dir()).parent
        includes = [
            sdk.root / "sdk",
            sdk.root / "mlx/include/metal_cpp",
            sdk.root / "mlx/include",
            nanobind_root / "include",
            nanobind_root / "ext/robin_map/include",
            Path(sysconfig.get_paths()["include"]),
            ROOT / "csrc",
            ROOT,
        ]
        self.flags = [
            *("-std=c++20", "-O1", "-DNDEBUG", "-fvisibility=hidden", "-fvisibility-inlines-hidden"),
            *("-Wall", "-Wextra", "-Werror=return-type", "-Wunguarded-availability"),
            # The libc++ of the system, not the one zig would link in: keep to what that macOS version exports.
            *("-U_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS", "-D_LIBCPP_HAS_VENDOR_AVAILABILITY_ANNOTATIONS=1"),
            *("-U_LIBCPP_DISABLE_VISIBILITY_ANNOTATIONS", "-fno-sized-deallocation"),
            *("-D_METAL_", "-DACCELERATE_NEW_LAPACK", "-DNB_DOMAIN=mlx"),
            *(f"-isystem{include}" for include in includes[:6]),
            *(f"-I{include}" for include in includes[6:]),
        ]
        self.offered = offered_names(sdk)
        self.libraries = [
            sdk.libmlx,
            *(
                write_stub(work / f"{label}.tbd", ALLOWED_LIBRARIES[label], names)
                for label, names in self.offered.items()
            ),
        ]

    @cached_property
    def precompiled(self) -> dict[str, Path]:
        """The precompiled headers by name."""
        sets = {**PRECOMPILED, "standard": STANDARD}
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return dict(zip(sets, pool.map(self.precompile, sets, sets.values()), strict=True))

    def precompile(self, name: str, headers: Iterable[str]) -> Path:
        header = self.work / f"{name}.h"
        header.write_text("".join(f"#include <{included}>\n" for included in headers))
        made = self.work / f"{name}.pch"
        result = zig("c++", "-target", self.target, *self.flags, "-x", "c++-header", header, "-o", made)
        if result.returncode:
            raise ProofError(f"{header} does not compile for macOS {self.target}:\n{result.stderr}")
        return made

    def compile(self, source: Path) -> Path:
        """One object file; warnings are shown, errors raise."""
        stem = "_".join(source.relative_to(ROOT).with_suffix("").parts) if ROOT in source.parents else source.stem
        compiled = self.work / f"{stem}.o"
        flags = [*self.flags, *(["-DTESSL_CPU_ISA=baseline"] if "TESSL_CPU_ISA" in source.read_text() else [])]
        if name := precompiled_for(source):
            flags += ["-include-pch", str(self.precompiled[name])]
        result = zig("c++", "-target", self.target, *flags, "-c", source, "-o", compiled)
        if result.returncode:
            raise ProofError(f"{source} does not compile for macOS {self.target}:\n{result.stderr}")
        if result.stderr:
            print(result.stderr, file=sys.stderr)
        return compiled

    def link(self, objects: list[Path]) -> Path:
        """The shared library; raises with the undefined names."""
        linked = self.work / "_ext.so"
        linked.unlink(missing_ok=True)
        result = zig(
            *("c++", "-target", self.target, "-shared", "-nostdlib++", "-fno-sanitize=undefined"),
            *("-Wl,-rpath,@loader_path/../mlx/lib", *objects, *self.libraries, "-o", linked),
        )
        if result.returncode or not linked.exists():
            raise ProofError(f"the strict link failed:\n{result.stderr}")
        return linked

    def refuses(self, code: str, name: str) -> bool:
        """Whether the link of `code`, which is sound C++, fails and tells `name`."""
        source = self.work / "planted.cpp"
        source.write_text(code)
        try:
            self.link([self.compile_planted(source)])
        except ProofError as error:
            return name in str(error)
        return False

    def compile_planted(self, source: Path) -> Path:
        try:
            return self.compile(source)
        except ProofError as error:
            raise SystemExit(f"a planted mistake must compile: {error}") from error


def includes(source: Path) -> set[str]:
    """All headers that a source includes, directly or by headers of this project."""
    found: set[str] = set()
    unread = [source]
    while unread:
        names = set(re.findall(r'^#include [<"](.+?)[>"]', unread.pop().read_text(), re.MULTILINE)) - found
        found |= names
        unread += [path for name in names for path in (ROOT / "csrc" / name, ROOT / name) if path.is_file()]
    return found


def precompiled_for(source: Path) -> str | None:
    included = includes(source)
    for name, headers in PRECOMPILED.items():
        if included.issuperset(headers):
            return name
    return None if included.isdisjoint(STANDARD) else "standard"


def extension_sources(tree: Path = ROOT) -> list[Path]:
    """All of the extension that a Mac builds, the long ones first: no core is left waiting for one at the end."""
    sources = sorted((tree / "csrc").rglob("*.cpp"), key=lambda source: source.stat().st_size, reverse=True)
    return [source for source in sources if source.name != "no_metal.cpp"]


def nanobind_source() -> Path:
    return Path(nanobind.source_dir()) / "nb_combined.cpp"


def check_imports(linked: Path) -> dict[str, set[str]]:
    """The imports from each library; raises when one is needed that a Mac user need not have."""
    imports = imports_by_library(linked)
    foreign = set(imports) - set(ALLOWED_LIBRARIES.values())
    if foreign:
        raise ProofError(f"imports from {sorted(foreign)}: {[sorted(imports[name])[:5] for name in sorted(foreign)]}")
    return {label: imports.get(name, set()) for label, name in ALLOWED_LIBRARIES.items()}


def prove(sources: list[Path]) -> None:
    """Compiles, links, checks and plants the two mistakes; prints a line on each."""
    started = time.monotonic()
    sdk = fetch_sdk()
    work = Path(tempfile.mkdtemp(prefix="macos_link_"))
    try:
        builder = Builder(sdk, work)
        print(f"  precompiled the headers of {', '.join(builder.precompiled)}")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = list(pool.map(builder.compile, sources))
        print(f"  compiled {len(sources)} sources for arm64 macOS {MACOS} ({time.monotonic() - started:.0f} s)")
        imports = check_imports(builder.link(objects))
        print("  linked: " + ", ".join(f"{len(names)} names from {label}" for label, names in imports.items()))
        for code, name, what in (
            (HIDDEN_CALL, "is_nax_available", "a call to a function that MLX hides"),
            (NEWER_RUNTIME, "__hash_memory", "a function of a newer libc++"),
        ):
            if not builder.refuses(code, name):
                raise ProofError(f"the link let pass {what}: {name}")
            print(f"  refused as it must be: {what} ({name})")
    finally:
        shutil.rmtree(work)


def main() -> int:
    if version("nanobind") != pinned("nanobind"):
        print(f"nanobind {version('nanobind')} is installed, {pinned('nanobind')} is pinned", file=sys.stderr)
        return 1
    print(f"macOS link proof: mlx {pinned('mlx')}, nanobind {pinned('nanobind')}, zig {version('ziglang')}")
    try:
        prove([nanobind_source(), *extension_sources()])
    except ProofError as error:
        print(f"FAILED: {error}", file=sys.stderr)
        return 1
    print("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())

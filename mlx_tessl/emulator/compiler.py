"""Compile Metal sources to kernel libraries for the emulator, through a content-addressed cache.

A library holds one kernel. Its name in the cache is a hash of everything that it is made of: the preprocessed source,
the runtime headers, this package, the compiler and its flags. Any number of processes may compile at once.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import platform
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from .flops import count_flops
from .host_target import HostTarget, library_source
from .rewriter import Translation, translate

_PACKAGE = Path(__file__).resolve().parent


class CompileError(Exception):
    """The compiler refused a kernel; the message is its own."""


@dataclass(frozen=True)
class Variant:
    """What one source is compiled to."""

    msl: int = 310  # MSL version: 310, 400 or 410
    checked: bool = False  # memory accesses are reported to the checker
    defines: tuple[str, ...] = ()  # "NAME=value"


def cache_directory() -> Path:
    """Where compiled kernels are kept: MLX_TESSL_CACHE, or the user's cache directory."""
    override = os.environ.get("MLX_TESSL_CACHE")
    if override:
        return Path(override)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "mlx_tessl"


def runtime_directory() -> Path:
    """The headers that kernels are compiled against: packaged, or those of the source tree."""
    packaged = _PACKAGE / "include"
    return packaged if packaged.is_dir() else _PACKAGE.parents[1] / "csrc" / "backends" / "emulator" / "include"


def kernel_directory() -> Path:
    """The shaders of this project: packaged, or those of the source tree."""
    packaged = _PACKAGE.parent / "kernels"
    return packaged if packaged.is_dir() else _PACKAGE.parents[1] / "kernels"


def msl_version_of(family: str) -> int:
    """The MSL version of a family, which its name tells."""
    if family.endswith("_tensorops27"):
        return 410
    return 400 if family.endswith("_tensorops") else 310


@dataclass(frozen=True)
class Toolchain:
    """A clang and a linker. No runtime library and no system header is used."""

    name: str
    clang: tuple[str, ...]
    link: tuple[str, ...]
    identity: str

    @staticmethod
    def find() -> Toolchain:
        """The `ziglang` package's clang, else clang++ of version 19 or later."""
        spec = importlib.util.find_spec("ziglang")
        if spec is not None and spec.origin is not None:
            zig = Path(spec.origin).parent / "zig"
            stat = zig.stat()
            identity = f"zig {zig} {stat.st_size} {stat.st_mtime_ns}"
            return Toolchain("the clang of ziglang", (str(zig), "clang"), (str(zig), "ld.lld", "-shared"), identity)
        names = [f"clang++-{version}" for version in range(25, 18, -1)] + ["clang++"]
        for name in names:
            path = shutil.which(name)
            if path is not None:
                version = subprocess.run([path, "--version"], capture_output=True, text=True, check=True).stdout
                major = re.search(r"version (\d+)", version)
                if major is not None and int(major[1]) >= 19:
                    return Toolchain(name, (path,), (path, "-shared", "-nostdlib"), version)
        raise CompileError("no compiler for kernels: pip install ziglang, or install clang++ 19 or later")


_FLAGS = (
    "-std=c++20",
    "-O2",
    "-fPIC",
    "-nostdinc",
    "-ffp-contract=off",
    "-Xclang",
    "-ffloat16-excess-precision=none",
    "-fsigned-char",
    "-fno-exceptions",
    "-fno-rtti",
    "-fno-threadsafe-statics",
    "-fno-strict-aliasing",
    "-fno-stack-protector",
    "-fvisibility=hidden",
    "-fvisibility-inlines-hidden",
    # Any call may wait for other lanes: it must not be duplicated into the two sides of a branch on the lane.
    "-fconvergent-functions",
    # Lanes that wait at different places are let go in the order of the code.
    "-mllvm",
    "-disable-block-placement",
    "-w",
    "-DTESSL_EMULATED=1",
)

_CHECKED_FLAGS = (
    "-fsanitize=thread",
    # A scalar that nothing initialises is NaN, or a number that stands out.
    "-ftrivial-auto-var-init=pattern",
    "-fno-vectorize",
    "-fno-slp-vectorize",
    "-g1",
    "-mllvm",
    "-tsan-instrument-func-entry-exit=0",
    "-mllvm",
    "-tsan-instrument-atomics=0",
    "-mllvm",
    "-tsan-instrument-read-before-write=1",
    "-DTESSL_CHECKED=1",
)

# What is left to do for IR that has been through all passes.
_IR_FLAGS = ("-O2", "-fPIC", "-Xclang", "-disable-llvm-passes", "-w")


@cache
def _machine_flags() -> tuple[str, ...]:
    machine = platform.machine()
    if machine in {"x86_64", "AMD64"}:
        cpu = Path("/proc/cpuinfo")
        if cpu.exists() and not {"avx2", "fma", "f16c"} <= set(cpu.read_text().split()):
            raise CompileError("emulated kernels need a CPU with AVX2, FMA and F16C")
        return ("--target=x86_64-linux-gnu", "-march=x86-64-v3")
    if machine in {"aarch64", "arm64"}:
        return ("--target=aarch64-linux-gnu", "-march=armv8.2-a+fp16")
    raise CompileError(f"kernels cannot be emulated on {machine}; x86-64 and arm64 are supported")


def _flags(variant: Variant) -> list[str]:
    checked = _CHECKED_FLAGS if variant.checked else ()
    return [*_machine_flags(), *_FLAGS, *checked, *_macros(variant)]


def _macros(variant: Variant) -> list[str]:
    """What a Metal compiler predefines for an MSL version."""
    macros = ["__METAL__=1", f"__METAL_VERSION__={variant.msl}", "__HAVE_BFLOAT__=1", "TESSL_EMULATOR=1"]
    if variant.msl >= 400:
        macros += ["__HAVE_TENSOR__=1", "__HAVE_INT4B_FORMAT_TYPE__=1", "__HAVE_PACKED_NUMERIC__=1"]
        macros += ["__HAVE_EXECUTION_UNIT__=1"]
    if variant.msl >= 410:
        macros += ["__HAVE_TENSOR_MULTIPLANE__=1", "__HAVE_INT2B_FORMAT_TYPE__=1"]
        macros += [f"__HAVE_METAL_{name}_FORMAT_TYPE__=1" for name in ("FP4_E2M1", "FP8_E4M3", "FP8_E5M2", "FP8_UE8M0")]
    return [f"-D{macro}" for macro in (*macros, *variant.defines)] + ["-U__linux__"]


class Compiler:
    """Turns sources into kernel libraries in a cache."""

    def __init__(
        self,
        include: Iterable[Path] = (),
        cache: Path | None = None,
        toolchain: Toolchain | None = None,
    ) -> None:
        self._include = [*include, kernel_directory(), kernel_directory().parent]
        self._cache = cache or cache_directory()
        self._toolchain = toolchain or Toolchain.find()

    def kernel_names(self, source: Path, variant: Variant) -> list[str]:
        """Names of all kernels of a source, sorted."""
        return sorted(kernel.name for kernel in self._translate(self._preprocess(source, variant)).kernels)

    def compile(self, source: Path, kernel: str, variant: Variant) -> Path:
        """The library of one kernel, compiled unless the cache has it.

        Raises CompileError with the compiler's message, which gives lines of the source.
        """
        text = self._preprocess(source, variant)
        library = self._cache / f"{source.stem}-{self._key(text, kernel, variant)}.so"
        if not library.exists():
            with self._alone(library):
                if not library.exists():
                    self._build(text, kernel, variant, library)
        return library

    def compile_all(self, jobs: Iterable[tuple[Path, str, Variant]], workers: int) -> list[Path]:
        """Compile many kernels in parallel, in the order given."""
        with ThreadPoolExecutor(workers) as pool:
            return list(pool.map(lambda job: self.compile(*job), jobs))

    def translation(self, source: Path, kernel: str, variant: Variant) -> str:
        """The C++ that a kernel becomes, for reading."""
        translated = self._translate(self._preprocess(source, variant))
        return library_source(translated, [translated.kernel(kernel)], variant.checked)

    def _preprocess(self, source: Path, variant: Variant) -> str:
        include = [runtime_directory() / "stand_ins", source.parent, *self._include]
        command = [*self._toolchain.clang, "-E", "-x", "c++", "-std=c++20", "-nostdinc", "-w", *_machine_flags()]
        command += _macros(variant) + [f"-I{directory}" for directory in include] + [str(source)]
        return _run(command, f"cannot preprocess {source.name}")

    @staticmethod
    def _translate(text: str) -> Translation:
        return translate(text, HostTarget())

    def _build(self, text: str, kernel: str, variant: Variant, library: Path) -> None:
        translated = self._translate(text)
        source_text = library_source(translated, [translated.kernel(kernel)], variant.checked)
        header = self._precompiled_header(variant)
        with tempfile.TemporaryDirectory(dir=self._cache) as directory:
            source, ir, object_file, linked = (Path(directory) / f"kernel.{end}" for end in ("cpp", "ll", "o", "so"))
            source.write_text(source_text)
            what = f"cannot compile kernel {kernel}"
            compile_source = [*self._toolchain.clang, *_flags(variant), "-include-pch", str(header), str(source)]
            if variant.checked:
                _run([*compile_source, "-S", "-emit-llvm", "-o", str(ir)], what)
                ir.write_text(count_flops(ir.read_text()))
                _run(
                    [*self._toolchain.clang, *_machine_flags(), *_IR_FLAGS, "-c", str(ir), "-o", str(object_file)], what
                )
            else:
                _run([*compile_source, "-c", "-o", str(object_file)], what)
            _run([*self._toolchain.link, str(object_file), "-o", str(linked)], f"cannot link kernel {kernel}")
            os.replace(linked, library)

    def _precompiled_header(self, variant: Variant) -> Path:
        key = _digest(*self._environment(Variant(variant.msl, variant.checked)))
        header = self._cache / f"runtime-{key}.pch"
        if not header.exists():
            with self._alone(header):
                if not header.exists():
                    self._build_header(variant, header)
        return header

    def _build_header(self, variant: Variant, header: Path) -> None:
        with tempfile.TemporaryDirectory(dir=self._cache) as directory:
            output = Path(directory) / "runtime.pch"
            command = [*self._toolchain.clang, *_flags(variant), "-x", "c++-header", "-Xclang", "-fno-pch-timestamp"]
            _run(
                [*command, str(runtime_directory() / "kernel_library.h"), "-o", str(output)],
                "cannot compile the runtime",
            )
            os.replace(output, header)

    def _key(self, text: str, kernel: str, variant: Variant) -> str:
        return _digest(text, kernel, *self._environment(variant))

    def _environment(self, variant: Variant) -> list[str]:
        return [self._toolchain.identity, self._code, " ".join(_flags(variant))]

    @cached_property
    def _code(self) -> str:
        """A hash of the runtime headers and of the rewriter."""
        files = sorted(path for path in runtime_directory().rglob("*") if path.is_file())
        files += sorted(_PACKAGE.glob("*.py"))
        return _digest(str(runtime_directory()), *(path.read_text() for path in files))

    @contextlib.contextmanager
    def _alone(self, target: Path) -> Iterator[None]:
        """Let one process at a time make a file."""
        self._cache.mkdir(parents=True, exist_ok=True)
        with open(target.with_suffix(".lock"), "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _digest(*parts: str) -> str:
    state = hashlib.sha256()
    for part in parts:
        state.update(f"{len(part)}:".encode())
        state.update(part.encode())
    return state.hexdigest()[:20]


def _run(command: list[str], what: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise CompileError(f"{what}:\n{done.stderr.strip()}")
    return done.stdout

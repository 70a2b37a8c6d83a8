"""Compiles a kernel of an AIR module to a kernel library of the emulator."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from mlx_tessl.emulator import compiler as source_compiler
from mlx_tessl.emulator.compiler import CompileError, Variant
from mlx_tessl.emulator.host_target import library_source
from mlx_tessl.emulator.rewriter import Translation

from .translate import AirKernel, translate

_INTRINSICS = Path(__file__).parent / "intrinsics.h"
_IR_FLAGS = ("-O2", "-fPIC", "-ffp-contract=off", "-fno-stack-protector", "-w")
_DISASSEMBLE = ("-S", "-emit-llvm", "-O1", "-Xclang", "-disable-llvm-passes", "-w")


class AirCompiler(source_compiler.Compiler):
    """A compiler whose sources are modules of AIR, with function constants set as Metal sets them for a pipeline."""

    def __init__(self, constants: Mapping[int, bool | int]) -> None:
        super().__init__()
        self._constants = dict(sorted(constants.items()))

    def compile(self, source: Path, kernel: str, variant: Variant) -> Path:
        if variant.checked:
            raise CompileError("AIR has no checked variant")
        library = self._cache / f"air-{self._air_key(source, kernel, variant)}.so"
        if not library.exists():
            with self._alone(library):
                if not library.exists():
                    self._build_air(source, kernel, variant, library)
        return library

    def _air_key(self, source: Path, kernel: str, variant: Variant) -> str:
        code = "".join(path.read_text() for path in sorted(_INTRINSICS.parent.iterdir()) if path.is_file())
        parts = [kernel, code, str(self._constants), *self._environment(variant)]
        return hashlib.sha256("\0".join(parts).encode() + source.read_bytes()).hexdigest()[:20]

    def _build_air(self, source: Path, kernel: str, variant: Variant, library: Path) -> None:
        clang = [*self._toolchain.clang, *source_compiler._machine_flags()]
        with tempfile.TemporaryDirectory(dir=self._cache) as directory:
            air, ir, body, table, glue, linked = (
                Path(directory) / name for name in ("air.ll", "kernel.ll", "kernel.o", "table.cpp", "table.o", "air.so")
            )
            self._run([*clang, "-x", "ir", str(source), *_DISASSEMBLE, "-o", str(air)])
            translated = translate(air.read_text(), kernel, self._constants)
            ir.write_text(translated.ir)
            table.write_text(_table_source(translated))
            self._run([*clang, *_IR_FLAGS, "-x", "ir", "-c", str(ir), "-o", str(body)])
            header = self._precompiled_header(variant)
            flags = [*source_compiler._flags(variant), "-include-pch", str(header)]
            self._run([*self._toolchain.clang, *flags, "-c", str(table), "-o", str(glue)])
            self._run([*self._toolchain.link, str(body), str(glue), "-o", str(linked)])
            os.replace(linked, library)

    @staticmethod
    def _run(command: list[str]) -> None:
        source_compiler._run(command, "cannot compile AIR")


def _table_source(air: AirKernel) -> str:
    """The glue from the emulator's tables to the kernel."""
    known = set(re.findall(r'"((?:air\.|__tensorops)[\w.]+)"', _INTRINSICS.read_text()))
    known |= {f"__tensorops_impl_matmul2d_op_run_cooperative_{types}_f32" for types in _matmul_types()}
    if unknown := air.externals - known:
        raise CompileError(f"AIR functions that are not known: {', '.join(sorted(unknown))}")
    names = [f"a{number}" for number in range(len(air.parameters))]
    types, own_types = zip(*air.parameters, strict=True)
    taken = ", ".join(f"{type_name} {name}" for type_name, name in zip(types, names, strict=True))
    body = f"""#include "{_INTRINSICS}"
extern "C" void air_kernel({", ".join(own_types)}) asm("{air.kernel.name}");
namespace air {{
static void run_kernel({taken}) {{
  air_kernel({", ".join(f"passed({name})" for name in names)});
}}
}}
"""
    return library_source(Translation(body, (air.kernel,), air.constants), [air.kernel], checked=False)


def _matmul_types() -> list[str]:
    return re.findall(r"^AIR_MATMUL2D\((\w+),", _INTRINSICS.read_text(), flags=re.M)

"""Compile kernels ahead of their first use.

    python -m mlx_tessl.emulator build [--fast] [family ...]
    python .../mlx_tessl/emulator compile [--root ROOT] <source or family> <kernel> <msl version> checked|fast

The second is what the C++ side runs for a kernel that it has not met; it prints the path of the library. Run by path,
this package is loaded on its own, without mlx_tessl and what that imports. Families and headers are those in
ROOT/kernels, ours unless a root is given.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

if __package__ in {None, ""}:
    here = Path(__file__).resolve().parent
    sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here] + [str(here.parent)]
    from emulator import compiler, tokens  # type: ignore[import-not-found]  # this package, by its bare name
else:
    from . import compiler, tokens


def source_of(name: str, kernels: Path) -> Path:
    """The file of a family, or the path that was given."""
    path = Path(name)
    return path if path.suffix == ".metal" else kernels / f"{name}.metal"


def compile_one(arguments: argparse.Namespace) -> None:
    """Compile one kernel and print the path of its library."""
    variant = compiler.Variant(arguments.msl, arguments.mode == "checked")
    root: Path = arguments.root
    print(compiler.Compiler([root]).compile(source_of(arguments.source, root / "kernels"), arguments.kernel, variant))


def build(arguments: argparse.Namespace) -> None:
    """Compile all kernels of families, in both modes unless told otherwise."""
    one = compiler.Compiler()
    kernels = compiler.kernel_directory()
    families = arguments.families or sorted(path.stem for path in kernels.glob("*.metal"))
    jobs = []
    for family in families:
        source, msl = source_of(family, kernels), compiler.msl_version_of(family)
        for kernel in one.kernel_names(source, compiler.Variant(msl)):
            jobs += [
                (source, kernel, compiler.Variant(msl, checked))
                for checked in ((False,) if arguments.fast else (False, True))
            ]
    one.compile_all(jobs, arguments.jobs)
    print(f"{len(jobs)} kernel libraries of {len(families)} families in {compiler.cache_directory()}")


def main() -> None:
    """Run a command; a compiler's message goes to stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m mlx_tessl.emulator", description="Compile kernels for the emulator."
    )
    commands = parser.add_subparsers(required=True)
    build_parser = commands.add_parser("build", help="compile all kernels")
    build_parser.add_argument("families", nargs="*", metavar="family", help="all by default")
    build_parser.add_argument("--fast", action="store_true", help="leave out the checked variants")
    build_parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="compilers at a time")
    build_parser.set_defaults(run=build)
    compile_parser = commands.add_parser("compile", help="compile one kernel")
    compile_parser.add_argument("--root", type=Path, default=compiler.kernel_directory().parent)
    compile_parser.add_argument("source")
    compile_parser.add_argument("kernel")
    compile_parser.add_argument("msl", type=int)
    compile_parser.add_argument("mode", choices=("checked", "fast"))
    compile_parser.set_defaults(run=compile_one)
    arguments = parser.parse_args()
    try:
        arguments.run(arguments)
    except (compiler.CompileError, tokens.SourceError) as error:
        sys.exit(str(error))


main()

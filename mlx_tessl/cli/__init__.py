"""The command ``mlx-tessl``.

Every module here without a leading underscore is a subcommand of its name. It has a docstring, whose first line is the
command's summary, ``configure(parser)``, which adds its arguments, and ``run(args)``, which returns the exit code.
"""

from __future__ import annotations

import argparse
import os
import pkgutil
import sys
from collections.abc import Sequence
from importlib import import_module

from .. import __version__


def main(argv: Sequence[str] | None = None) -> int:
    """Runs ``mlx-tessl``. Returns 0; 1 when a check failed; 2 when the user must change something, said in one line."""
    _open_closed_streams()
    try:
        args = _parser().parse_args(argv)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except (ValueError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            return _reader_left()
        print(f"mlx-tessl: error: {_one_line(error)}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="mlx-tessl", description="MLX models on hand-written Metal and CPU kernels.")
    parser.add_argument("--version", action="version", version=f"mlx-tessl {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name in sorted(module.name for module in pkgutil.iter_modules(__path__)):
        if name.startswith("_"):
            continue
        module = import_module(f".{name}", __name__)
        description = (module.__doc__ or "").strip()
        command = commands.add_parser(
            name,
            help=description.splitlines()[0],
            description=description,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.configure(command)
        command.set_defaults(run=module.run)
    return parser


def _open_closed_streams() -> None:
    """A shell's ``>&-`` leaves no stream at all, and its number to the next file that is opened."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 for the rest of the process


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _reader_left() -> int:
    """Whoever read our output closed it: leave quietly, without a second complaint when Python flushes at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0

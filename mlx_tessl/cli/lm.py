"""Run a command of mlx-lm with the models of this package.

  mlx-tessl lm generate --model MODEL --prompt TEXT
  mlx-tessl lm server --model MODEL --port 8080

What follows the command's name goes to it as it is; `mlx-tessl lm COMMAND --help` shows its own help.
"""

from __future__ import annotations

import argparse
import sys


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "command", metavar="COMMAND", help="generate, chat, server, lora, convert, perplexity, benchmark, evaluate ..."
    )
    parser.add_argument("arguments", nargs=argparse.REMAINDER, metavar="...", help="its arguments")


def run(args: argparse.Namespace) -> int:
    try:
        from ..lm import patched

        with patched():
            from mlx_lm import cli

            sys.argv = ["mlx-tessl lm", args.command, *args.arguments]
            cli.main()  # type: ignore[no-untyped-call]
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    return 0

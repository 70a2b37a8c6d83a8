"""Check this installation: versions, backends, which kernels run, and whether they compute the right numbers.

Exits with 0 when all is well and with 1 when a check failed.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

from ..doctor import Check, Diagnosis, diagnose
from ._style import accent, bold, dim


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    diagnosis = diagnose()
    if args.json:
        print(json.dumps(diagnosis.as_dict(), indent=2))
    else:
        _print(diagnosis)
    return 0 if diagnosis.ok else 1


def _print(diagnosis: Diagnosis) -> None:
    build = diagnosis.build
    print(bold(f"mlx_tessl {build['version']}"))
    _print_facts({name: value for name, value in build.items() if name != "version"})
    for name in ("cpu", "metal", "emulator"):
        facts = diagnosis.backends[name]
        print(bold(f"\n{name}: {'usable' if facts['usable'] else 'not usable'}"))
        _print_facts({key: value for key, value in facts.items() if key not in ("usable", "compiled")})
    print(bold("\nops"))
    for family, choice in diagnosis.backends["families"].items():
        print(f"  {family:12} {accent(choice['path'])}  {dim(choice['reason'])}")
    print(bold("\nchecks"))
    for check in diagnosis.checks:
        _print_check(check)


def _print_facts(facts: dict[str, Any]) -> None:
    for name, value in facts.items():
        print(f"  {name.replace('_', ' '):16} {value}")


def _print_check(check: Check) -> None:
    print(f"  {accent('ok    ') if check.ok else bold('FAILED')}  {check.name:38} {dim(check.detail)}")

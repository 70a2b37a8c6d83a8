"""Count the floating point operations of a kernel, by adding to a counter in its LLVM IR."""

from __future__ import annotations

import re
from itertools import count

# Names in kernel_library.h and in the attributes of the emulator's own functions.
COUNTER = "tessl_scalar_flops"
_RUNTIME_ATTRIBUTE = "disable_sanitizer_instrumentation"

_TYPE = r"(?:<(?P<lanes>\d+) x )?(?:half|float|double)"
_FLAGS = r"(?:(?:fast|nnan|ninf|nsz|arcp|contract|afn|reassoc) )*"
_ARITHMETIC = re.compile(rf"= (?:f(?:add|sub|mul|div|rem)) {_FLAGS}{_TYPE}")
# A fused multiply-add is two operations; a function of libm is counted as one, whatever it costs.
_FUNCTION = re.compile(rf"call {_FLAGS}(?:noundef )?{_TYPE}>? @(?:llvm\.)?(?P<name>[a-z0-9]+)[.(]")
_FUSED = frozenset({"fma", "fmaf", "fmuladd"})
_LIBM = frozenset({"sqrt", "exp", "exp2", "log", "log2", "log10", "sin", "cos", "tan", "tanh", "pow", "sinh", "cosh"})
_LIBM |= {f"{name}f" for name in _LIBM} | {"asinf", "acosf", "atanf", "atan2f", "asinhf", "acoshf", "atanhf", "fmodf"}


def operations(line: str) -> int:
    """Floating point operations of one instruction."""
    if match := _ARITHMETIC.search(line):
        return int(match["lanes"] or 1)
    if match := _FUNCTION.search(line):
        each = 2 if match["name"] in _FUSED else 1 if match["name"] in _LIBM else 0
        return each * int(match["lanes"] or 1)
    return 0


def count_flops(ir: str) -> str:
    """The module with a counter raised in every basic block, but for functions of the emulator itself."""
    runtime_groups = set(re.findall(rf"^attributes (#\d+) = {{.*\b{_RUNTIME_ATTRIBUTE}\b", ir, re.MULTILINE))
    lines: list[str] = []
    numbers = count()
    counting = False
    total, last = 0, 0  # of the block: operations, and the line after the last of them

    def close_block() -> None:
        nonlocal total
        if total:
            lines[last:last] = _raise_counter(total, next(numbers))
        total = 0

    for line in ir.split("\n"):
        if line.startswith("define "):
            counting = not runtime_groups & set(re.findall(r"#\d+", line))
        elif line.startswith("}") or re.match(r"[\w.$\"-]+:", line):
            close_block()
        lines.append(line)
        if counting and (n := operations(line)):
            total, last = total + n, len(lines)
    return "\n".join(lines)


def _raise_counter(n: int, number: int) -> list[str]:
    name = f"%tessl.flops.{number}"
    return [
        f"  {name} = load i64, ptr @{COUNTER}, align 8",
        f"  {name}.sum = add i64 {name}, {n}",
        f"  store i64 {name}.sum, ptr @{COUNTER}, align 8",
    ]

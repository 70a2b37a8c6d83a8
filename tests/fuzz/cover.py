"""Writes covering.jsonl: the cheapest case of each variant of kernel."""

from __future__ import annotations

from .draw import cheapest_case_of_each_kernel
from .test_fuzz import COVERING_FILE, selectable_kernels, variant

if __name__ == "__main__":
    found = cheapest_case_of_each_kernel(draws=20_000)
    cheapest = {}
    for kernel in sorted(selectable_kernels() & found.keys(), key=lambda kernel: found[kernel].cost):
        cheapest.setdefault(variant(kernel), found[kernel])
    COVERING_FILE.write_text("".join(f"{cheapest[name]}\n" for name in sorted(cheapest)))
    print(f"{len(cheapest)} variants; none for {sorted({variant(k) for k in selectable_kernels()} - cheapest.keys())}")

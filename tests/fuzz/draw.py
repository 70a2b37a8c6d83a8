"""Cases drawn at random: by Hypothesis, which shrinks them, or by a plain generator, which looks for a kernel."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ..ops.quantization import AFFINE, MICROSCALED
from .cases import LAYOUTS, Case, kernels

DEVICES = (
    ("m1", "15.0"),
    ("m2-ultra", "15.0"),
    ("m4", "26.4"),
    ("m4-max", "26.4"),
    ("m5", "26.2"),
    ("m5", "26.4"),
    ("m5-pro", "26.4"),
    ("m5-max", "26.4"),
    ("m5", "27.0"),
    ("m5-max", "27.0"),
)
OPS = ("matmul", "linear", "quantized_matmul", "int8_matmul")
ACTIVATIONS = (None, None, "relu", "silu", "gelu", "gelu_tanh")
BATCHES = ((), (), (), (2,), (3,), (2, 2))

# Sizes at and around the edges of simdgroups, tiles and blocks.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 16, 31, 32, 33, 40, 48, 63, 64, 65, 72, 100, 127, 128, 129, 160)
DEPTHS = (*SIZES, 0, 200, 256, 257, 300, 512)

# Picks one of a few: Hypothesis' choice, which shrinks towards the first, or that of a random.Random.
Pick = Callable[[Any], Any]


def make(pick: Pick, largest: int = 4_000_000) -> Case:
    """A case whose cost is at most ``largest`` multiply-adds."""
    op = pick(OPS)
    gpu, macos = pick(DEVICES)
    activation = pick(ACTIVATIONS)
    bias = pick((False, True))
    batch = pick(BATCHES)
    shared = bool(batch) and pick((False, True))
    M, N, K = pick(SIZES), pick(SIZES), pick(DEPTHS)
    relaxed = pick((False, True))
    common: dict[str, Any] = {"gpu": gpu, "macos": macos, "activation": activation, "bias": bias, "batch": batch}
    a_layout, b_layout = pick(LAYOUTS), pick(LAYOUTS)
    if op == "quantized_matmul":
        format = pick(pick((AFFINE, MICROSCALED)))
        transpose = pick((True, False))
        grouped = format.group_size * (1 + (K if transpose else N) // 64)
        case = Case(
            op,
            pick(("float32", "float16", "bfloat16")),
            M,
            N if transpose else grouped,
            grouped if transpose else max(K, 1),
            shared_b=shared,
            a_layout=a_layout,
            mode=format.mode,
            bits=format.bits,
            group_size=format.group_size,
            transpose=transpose,
            relaxed=relaxed,
            **common,
        )
    elif op == "int8_matmul":
        scales = pick((False, True, True))
        exact = not (scales or bias or activation)
        # An unscaled sum leaves float16.
        dtype = pick(("int32",) if exact else ("float32", "float16", "bfloat16") if scales else ("float32", "bfloat16"))
        case = Case(op, dtype, M, N, K, shared_b=shared, scales=scales, a_layout=a_layout, b_layout=b_layout, **common)
    else:
        matmul = op == "matmul"
        case = Case(
            op,
            pick(("float32", "float16", "bfloat16")),
            M,
            N,
            pick((K, K, 2048, 2050)),
            shared_b=not matmul or shared,
            a_layout=a_layout,
            b_layout=b_layout,
            alpha=pick((1.0, 0.5)) if matmul else 1.0,
            beta=pick((0.0, 1.0, -1.5)) if matmul else 0.0,
            c=matmul and pick((True, False)),
            residual=not matmul and pick((False, True)),
            relaxed=relaxed,
            batch_invariant=pick((False, False, True)),
            **common,
        )
    return _affordable(case, largest)


def _affordable(case: Case, largest: int) -> Case:
    while case.cost > largest and max(case.M, *case.batch, 1) > 1:
        case = replace(case, batch=()) if case.batch else replace(case, M=max(1, case.M // 2))
    return case


@st.composite
def cases(draw: st.DrawFn) -> Case:
    return make(lambda choices: draw(st.sampled_from(choices)))


def random_case(rng: random.Random) -> Case:
    """As ``cases``; now and then one with many tiles and a short K, for kernels that want a full GPU."""
    case = make(rng.choice)
    case = replace(case, K=max(case.K, 1))
    if rng.random() < 0.5 or case.batch:
        return case
    wide = replace(case, M=rng.choice((*SIZES, 130, 260)), N=rng.choice((600, 1300, 2700)))
    wide = replace(wide, a_layout=rng.choice(("rows", "columns")), b_layout=rng.choice(("rows", "columns")))
    if wide.op == "quantized_matmul":
        # Groups, of at most 128, lie along N where weights are not transposed.
        return wide if wide.transpose else replace(wide, N=rng.choice((640, 1280, 2688)))
    # A K that is split although tiles fill the GPU begins at 8192.
    if wide.op == "matmul" and rng.random() < 0.1:
        return replace(wide, M=130, N=600, K=8192)
    return replace(wide, K=rng.choice((16, 24, 130)))


def cheapest_case_of_each_kernel(draws: int, seed: int = 0, wanted: Collection[str] = ()) -> dict[str, Case]:
    """For every kernel that any of so many cases selects, the cheapest such case. Only plans are made.

    With ``wanted``, looks on past ``draws`` until each of them is found, up to ten times as long.
    """
    rng = random.Random(seed)
    found: dict[str, Case] = {}
    for i in range(10 * draws):
        if i >= draws and found.keys() >= set(wanted):
            break
        case = random_case(rng)
        for kernel in kernels(case):
            if kernel not in found or case.cost < found[kernel].cost:
                found[kernel] = case
    return found

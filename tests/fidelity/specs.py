"""The launches of MLX's kernels that the suite runs, with what the checker says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from . import findings
from .families import gated_delta, gemm, quantized, reduce, sdpa, softmax, steel_attention
from .findings import Finding
from .mlx_kernels import Case
from .numerics import BFLOAT16, FLOAT16, FLOAT32


@dataclass(frozen=True)
class Spec:
    """Cases that run one after the other, each on what the one before it left."""

    name: str
    cases: Callable[[], tuple[Case, ...]]
    # For each case; None for a spec that is not run checked, as a sibling of the same source is.
    findings: tuple[tuple[Finding, ...], ...] | None = ((),)


def one(
    name: str, make: Callable[..., Case], *arguments: object, found: tuple[Finding, ...] = (), check: bool = True
) -> Spec:
    return Spec(name, lambda: (make(*arguments),), (found,) if check else None)


BARRIERS = (findings.BARRIERS_APART,)
TILE = (64, 64, 16, 2, 2)
SMALL, WIDE, DEEP = (64, 64, 256, 2, 2), (64, 128, 64, 2, 4), (64, 128, 256, 2, 4)
HEADS = gated_delta.Shape(B=2, T=37, Hk=1, Hv=2, Dk=64, Dv=64)


def steel_gemms() -> list[Spec]:
    """All layouts and types; checked in every layout and in every type."""
    checked = {("nn", FLOAT32), ("nt", FLOAT16), ("tn", BFLOAT16), ("tt", FLOAT32)}
    specs = []
    for layout in ("nn", "nt", "tn", "tt"):
        for dtype in (FLOAT32, FLOAT16, BFLOAT16):
            sizes = ((70, 45, 133), (128, 64, 64))
            for M, N, K in sizes:
                name = f"gemm {layout} {dtype.name} {M}x{N}x{K}"
                check = (layout, dtype) in checked
                specs.append(one(name, gemm.gemm, False, layout, dtype, M, N, K, TILE, check=check))
    return specs


SPECS = [
    one("gemm_nax nn float16", gemm.gemm, True, "nn", FLOAT16, 70, 45, 133, SMALL),
    one("gemm_nax nn float16 whole tiles", gemm.gemm, True, "nn", FLOAT16, 128, 64, 512, SMALL),
    one("gemm_nax nt float32", gemm.gemm, True, "nt", FLOAT32, 70, 128, 133, WIDE),
    one("gemm_nax nt float32 ragged N", gemm.gemm, True, "nt", FLOAT32, 70, 77, 133, WIDE, found=BARRIERS),
    one("gemm_nax nt float32 swizzled", gemm.gemm, True, "nt", FLOAT32, 200, 128, 64, WIDE, 1),
    one("gemm_nax tn bfloat16", gemm.gemm, True, "tn", BFLOAT16, 64, 128, 300, DEEP),
    one("gemm_nax tt float16", gemm.gemm, True, "tt", FLOAT16, 70, 45, 133, SMALL),
    *steel_gemms(),
    one("softmax float16", softmax.softmax, False, FLOAT16, 3, 133),
    one("softmax bfloat16", softmax.softmax, False, BFLOAT16, 2, 1000),
    one("softmax float32 looped", softmax.softmax, True, FLOAT32, 2, 4501),
    one("sdpa_vector float32 causal", sdpa.sdpa_vector, FLOAT32, 4, 2, 3, 45, 64, 64, True),
    one("sdpa_vector float16", sdpa.sdpa_vector, FLOAT16, 4, 2, 1, 77, 128, 128),
    one("sdpa_vector bfloat16", sdpa.sdpa_vector, BFLOAT16, 2, 1, 1, 1, 96, 64),
    Spec("sdpa in two passes float16", lambda: sdpa.sdpa_two_passes(FLOAT16, 4, 2, 2, 301, 64, 32, True), ((), ())),
    Spec("sdpa in two passes float32", lambda: sdpa.sdpa_two_passes(FLOAT32, 2, 1, 1, 77, 128, 32), ((), ())),
    one("row sums float16", reduce.row_reduce, "sum", FLOAT16, 7, 133, found=(findings.LAST_SUMS_TWICE,)),
    one("row sums float32", reduce.row_reduce, "sum", FLOAT32, 4, 4501),
    one("row maxima bfloat16", reduce.row_reduce, "max", BFLOAT16, 8, 1000),
    one("logsumexp float16", reduce.logsumexp, False, FLOAT16, 3, 133),
    one("logsumexp float32 looped", reduce.logsumexp, True, FLOAT32, 2, 4501),
    one("attention float16 causal", steel_attention.steel, FLOAT16, 4, 2, 70, 77, 64, True),
    one("attention bfloat16", steel_attention.steel, BFLOAT16, 2, 1, 37, 45, 128),
    one("attention float32 whole blocks", steel_attention.steel, FLOAT32, 1, 1, 64, 64, 64),
    one("qmv float16 4 bits", quantized.affine_qmv, FLOAT16, 3, 48, 320),
    one("qmv float16 4 bits ragged N", quantized.affine_qmv, FLOAT16, 3, 45, 320, found=(findings.LAST_ROWS_TWICE,)),
    one("qmv float32 8 bits", quantized.affine_qmv, FLOAT32, 1, 5, 96, 32, 8),
    one("qmm float16 4 bits ragged N", quantized.affine_qmm, FLOAT16, 37, 45, 192),
    one("qmm bfloat16 8 bits", quantized.affine_qmm, BFLOAT16, 37, 64, 96, 32, 8),
    one("attention_nax float16", steel_attention.nax, FLOAT16, 4, 2, 70, 77, 64),
    one("attention_nax float16 causal", steel_attention.nax, FLOAT16, 4, 2, 70, 77, 64, 32, True),
    one("attention_nax float16 whole blocks", steel_attention.nax, FLOAT16, 1, 1, 64, 64, 64),
    one("attention_nax float32", steel_attention.nax, FLOAT32, 2, 1, 37, 77, 128),
    one("attention_nax_dsplit bfloat16", steel_attention.nax, BFLOAT16, 2, 1, 70, 77, 256, 32, True),
    one("qmm_nax float16 4 bits ragged N", quantized.affine_qmm, FLOAT16, 70, 77, 192, 64, 4, True),
    one("qmm_nax bfloat16 8 bits", quantized.affine_qmm, BFLOAT16, 70, 128, 192, 64, 8, True),
    one("qmm_n_nax float16 4 bits", quantized.affine_qmm_n_nax, FLOAT16, 70, 128, 192),
    one("fp_qmm_nax mxfp4 float16 ragged N", quantized.fp_qmm_nax, "mxfp4", FLOAT16, 70, 77, 192),
    one("fp_qmm_nax nvfp4 bfloat16", quantized.fp_qmm_nax, "nvfp4", BFLOAT16, 64, 64, 128),
    one("fp_qmm_nax nvfp4 bfloat16 ragged M", quantized.fp_qmm_nax, "nvfp4", BFLOAT16, 37, 64, 128, found=BARRIERS),
    one("fp_qmm_nax mxfp8 float32", quantized.fp_qmm_nax, "mxfp8", FLOAT32, 70, 64, 128),
    one("gated_delta seq float32", gated_delta.forward, "seq", FLOAT32, HEADS),
    one(
        "gated_delta chunk float16", gated_delta.forward, "chunk", FLOAT16, HEADS,
        found=(findings.GAMMA_OVERWRITTEN,),
    ),
    one(
        "gated_delta nax float32", gated_delta.forward, "nax", FLOAT32, HEADS,
        found=(findings.GAMMA_UNORDERED, findings.GAMMA_OVERWRITTEN),
    ),
    Spec(
        "gated_delta vjp float32",
        lambda: gated_delta.backward("seq", FLOAT32, HEADS),
        ((), (findings.ATOMIC_SUMS,)),
    ),
    Spec(
        "gated_delta vjp nax float32",
        lambda: gated_delta.backward("nax", FLOAT32, HEADS),
        (
            (findings.GAMMA_UNORDERED, findings.GAMMA_OVERWRITTEN),
            (findings.GAMMA_OVERWRITTEN, findings.SAME_BETA_SUMS, findings.SAME_DECAY_SUMS),
            (),
        ),
    ),
]  # fmt: skip

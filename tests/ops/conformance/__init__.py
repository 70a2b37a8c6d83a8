"""What every op must do, as data: a family is a module with its ``SPECS``, and joins by being named here.

``test_conformance.py`` runs each spec over its cases, dtypes, input layouts and transforms.
"""

from . import (
    attention,
    gated_delta,
    gates,
    int8_matmul,
    kv_store,
    matmul,
    norms,
    quantized,
    reductions,
    rope,
    sampling,
    segment_mean,
    sparse_max_pool,
)
from .spec import Arrays, Case, Expected, OpSpec, Refusal, Shapes

__all__ = ["SPECS", "Arrays", "Case", "Expected", "OpSpec", "Refusal", "Shapes"]

SPECS: tuple[OpSpec, ...] = (
    *matmul.SPECS,
    *quantized.SPECS,
    *int8_matmul.SPECS,
    *norms.SPECS,
    *gates.SPECS,
    *rope.SPECS,
    *reductions.SPECS,
    *sampling.SPECS,
    *segment_mean.SPECS,
    *sparse_max_pool.SPECS,
    *kv_store.SPECS,
    *attention.SPECS,
    *gated_delta.SPECS,
)

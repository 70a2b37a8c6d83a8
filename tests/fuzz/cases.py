"""One product as data: what it is, how its operands lie, where it runs. It prints as JSON and is replayed from that."""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, dataclass
from typing import Any

import mlx.core as mx
import numpy as np

import mlx_tessl as mt
from mlx_tessl import _ext

from ..ops.conformance.int8_matmul import codes, int8_matmul_oracle
from ..ops.conformance.matmul import matmul_oracle
from ..ops.conformance.quantized import quantized_matmul_oracle
from ..ops.quantization import Format, random_scale_codes, random_words

DTYPES = {"float32": mx.float32, "float16": mx.float16, "bfloat16": mx.bfloat16, "int32": mx.int32}
UNIT_ROUNDOFF = {"float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
TINY = {"float32": 2.0**-126, "float16": 2.0**-25, "bfloat16": 2.0**-126}
TF32 = 2.0**-10  # of an operand, by truncation

Operand = _ext.plan.Operand


@dataclass(frozen=True)
class Case:
    """``op`` is matmul, linear, quantized_matmul or int8_matmul; a layout is one of ``LAYOUTS``."""

    op: str
    dtype: str
    M: int
    N: int
    K: int
    batch: tuple[int, ...] = ()
    shared_b: bool = False  # b has no batch
    a_layout: str = "rows"
    b_layout: str = "rows"
    alpha: float = 1.0
    beta: float = 0.0
    c: bool = False
    bias: bool = False
    residual: bool = False
    scales: bool = False
    activation: str | None = None
    relaxed: bool = False
    batch_invariant: bool = False
    mode: str = "affine"
    bits: int = 4
    group_size: int = 64
    transpose: bool = True
    gpu: str = "m1"
    macos: str = "15.0"

    def __str__(self) -> str:
        plain = {
            name: value for name, value in asdict(self).items() if value != Case.__dataclass_fields__[name].default
        }
        return json.dumps(plain)

    @staticmethod
    def parse(text: str) -> Case:
        values = json.loads(text)
        return Case(**{**values, "batch": tuple(values.get("batch", ()))})

    @property
    def cost(self) -> int:
        return int(np.prod(self.batch, dtype=np.int64)) * self.M * self.N * (self.K + 16)

    @property
    def format(self) -> Format:
        return Format(self.mode, self.bits, self.group_size)

    def values(self, name: str, *shape: int) -> np.ndarray:
        rng = np.random.default_rng([zlib.crc32(f"{self}{name}".encode()), *shape])
        return rng.standard_normal(shape).astype(np.float32)


# A matrix [..., rows, columns] in memory: by rows; by columns; rows with gaps, from the third element on; every second
# element.
LAYOUTS = ("rows", "columns", "gaps", "strided")


def lay_out(x: np.ndarray, layout: str, dtype: mx.Dtype) -> mx.array:
    if layout == "columns":
        return mx.array(np.ascontiguousarray(x.swapaxes(-1, -2))).astype(dtype).swapaxes(-1, -2)
    if layout == "rows":
        return mx.array(x).astype(dtype)
    step = 2 if layout == "strided" else 1
    first = 0 if layout == "strided" else 2
    wide = np.full((*x.shape[:-1], first + step * x.shape[-1] + 1), 99, x.dtype)
    wide[..., first : first + step * x.shape[-1] : step] = x
    whole = mx.array(wide).astype(dtype)
    mx.eval(whole)
    return whole[..., first : first + step * x.shape[-1] : step]


def operand(shape: tuple[int, ...], layout: str, itemsize: int) -> Operand:
    """What planning is told of such an array."""
    *batch, rows, columns = shape
    if layout == "columns":
        row, column, matrix, offset = 1, rows, rows * columns, 0
    else:
        step = 2 if layout == "strided" else 1
        first = 2 if layout == "gaps" else 0
        pitch = columns if layout == "rows" else first + step * columns + 1
        row, column, matrix, offset = pitch, step, rows * pitch, first * itemsize
    strides = [row, column]
    for size in reversed(batch):
        strides.insert(0, matrix)
        matrix *= size
    return Operand(list(shape), strides, offset)


def _shapes(case: Case) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    b_batch = () if case.shared_b else case.batch
    return (*case.batch, case.M, case.K), (*b_batch, case.K, case.N), (*case.batch, case.M, case.N)


def plan(case: Case) -> Any:
    """The plan of a case on its device, without any array."""
    a_shape, b_shape, out_shape = _shapes(case)
    device = {"gpu": case.gpu, "macos": case.macos}
    if case.op == "quantized_matmul":
        rows, columns = (case.N, case.K) if case.transpose else (case.K, case.N)
        batch = b_shape[:-2]
        groups = Operand([*batch, rows, columns // case.group_size])
        return _ext.plan.QuantizedMatmul(
            case.dtype,
            operand(a_shape, case.a_layout, DTYPES[case.dtype].size),
            Operand([*batch, rows, columns * case.bits // 32]),
            groups,
            groups if case.format.affine else None,
            bias=Operand([case.N]) if case.bias else None,
            transpose=case.transpose,
            mode=case.mode,
            group_size=case.group_size,
            bits=case.bits,
            activation=case.activation,
            relaxed=case.relaxed and case.dtype == "float32",
            **device,
        ).plan()
    if case.op == "int8_matmul":
        scales = {"scale_a": Operand([case.M, 1]), "scale_b": Operand([case.N])} if case.scales else {}
        return _ext.plan.int8_matmul(
            case.dtype,
            operand(a_shape, case.a_layout, 1),
            operand(b_shape, case.b_layout, 1),
            bias=Operand([case.N]) if case.bias else None,
            activation=case.activation,
            **scales,
            **device,
        )
    itemsize = DTYPES[case.dtype].size
    return _ext.plan.Matmul(
        case.dtype,
        operand(a_shape, case.a_layout, itemsize),
        operand(b_shape, case.b_layout, itemsize),
        c=Operand(list(out_shape)) if case.c and case.beta else None,
        bias=Operand([case.N]) if case.bias else None,
        residual=Operand(list(out_shape)) if case.residual else None,
        alpha=case.alpha,
        beta=case.beta,
        activation=case.activation,
        relaxed=case.relaxed and case.dtype == "float32",
        batch_invariant=case.batch_invariant,
        **device,
    ).plan()


def kernels(case: Case) -> list[str]:
    return [launch.kernel for launch in plan(case).launches]


def _float64(x: mx.array) -> np.ndarray:
    if x.dtype in (mx.uint32, mx.uint8, mx.int8, mx.int32):
        return np.array(x)
    return np.array(x.astype(mx.float32)).astype(np.float64)


def _call(case: Case) -> tuple[Any, dict[str, mx.array], dict[str, Any], Any]:
    """The op, its arrays, its other keywords, and its oracle."""
    a_shape, b_shape, out_shape = _shapes(case)
    dtype = DTYPES[case.dtype]
    arrays: dict[str, mx.array] = {}
    keywords: dict[str, Any] = {"activation": case.activation}
    precision = {"precision": "relaxed" if case.relaxed else "exact"}
    if case.bias:
        arrays["bias"] = mx.array(case.values("bias", case.N)).astype(mx.float32 if dtype == mx.int32 else dtype)
    if case.op == "int8_matmul":
        arrays["a"] = lay_out(codes(*a_shape), case.a_layout, mx.int8)
        arrays["b"] = lay_out(codes(*b_shape, seed=1), case.b_layout, mx.int8)
        if case.scales:
            arrays["scale_a"] = mx.array(case.values("scale_a", case.M) * np.float32(2.0**-7))
            arrays["scale_b"] = mx.array(case.values("scale_b", case.N) * np.float32(2.0**-7))
        return mt.int8_matmul, arrays, {**keywords, "dtype": dtype}, int8_matmul_oracle
    if case.op == "quantized_matmul":
        rows, columns = (case.N, case.K) if case.transpose else (case.K, case.N)
        outer = (*b_shape[:-2], rows)
        groups = columns // case.group_size
        arrays["x"] = lay_out(case.values("x", *a_shape), case.a_layout, dtype)
        arrays["w"] = mx.array(random_words(case.format, outer, columns))
        if case.format.affine:
            scale = np.float32(0.5**case.bits)
            arrays["scales"] = mx.array(case.values("scales", *outer, groups) * scale).astype(dtype)
            arrays["biases"] = mx.array(case.values("biases", *outer, groups)).astype(dtype)
        else:
            arrays["scales"] = mx.array(random_scale_codes(case.format, outer, groups))
        return (
            mt.quantized_matmul,
            arrays,
            {**keywords, **precision, **case.format.keywords, "transpose": case.transpose},
            quantized_matmul_oracle,
        )
    keywords |= {**precision, "batch_invariant": case.batch_invariant}
    arrays["a"] = lay_out(case.values("a", *a_shape), case.a_layout, dtype)
    b = lay_out(case.values("b", *b_shape), case.b_layout, dtype)
    if case.op == "linear":
        arrays["weight"] = b.swapaxes(-1, -2)
        arrays["x"] = arrays.pop("a")
        if case.residual:
            arrays["residual"] = mx.array(case.values("residual", *out_shape)).astype(dtype)
        return mt.linear, arrays, keywords, _linear_oracle
    arrays["b"] = b
    if case.c:
        arrays["c"] = mx.array(case.values("c", *out_shape)).astype(dtype)
    return mt.matmul, arrays, {**keywords, "alpha": case.alpha, "beta": case.beta}, matmul_oracle


def _linear_oracle(x: np.ndarray, weight: np.ndarray, residual: np.ndarray | float = 0.0, **rest: Any) -> Any:
    y, magnitude = matmul_oracle(x, weight.swapaxes(-1, -2), **rest)
    return y + residual, magnitude + np.abs(residual)


def _allowed(case: Case, ran: list[str], expected: np.ndarray, magnitude: np.ndarray) -> np.ndarray:
    """docs/numerics.md, with the sum of magnitudes that the oracle gives."""
    if case.op == "int8_matmul":
        return 14 * 2.0**-24 * magnitude + UNIT_ROUNDOFF[case.dtype] * np.abs(expected) + TINY[case.dtype]
    operand_error = 0.0
    by_vectors = any("_vector_" in kernel for kernel in ran)
    if case.relaxed and case.dtype == "float32" and not by_vectors:
        operand_error = 2 * TF32
    if case.op == "quantized_matmul" and ran and not by_vectors:
        operand_error = max(operand_error, UNIT_ROUNDOFF[case.dtype])
    roundings = 1.13 * ((case.K + 16) * 2.0**-24 + operand_error)
    return roundings * magnitude + UNIT_ROUNDOFF[case.dtype] * np.abs(expected) + TINY[case.dtype]


def run(case: Case, *, emulated: bool = True, check: bool = False) -> float:
    """The largest share of what an error may be. Fails where another kernel ran than was planned."""
    op, arrays, keywords, oracle = _call(case)
    mx.eval(*arrays.values())
    ran: list[str] = []
    if emulated:
        with mt.trace() as entries:
            with mt.emulate(case.gpu, case.macos, check=check, order="shuffled", seed=1):
                result = op(**arrays, **keywords, stream=mx.cpu)
            mx.eval(result)
        ran = [launch.kernel for entry in entries for launch in entry.launches]
        # Of an operand without elements MLX records other strides.
        assert ran == kernels(case) or case.K == 0, (ran, kernels(case))
    else:
        result = op(**arrays, **keywords, stream=mx.cpu)
    expected, magnitude = oracle(**{name: _float64(x) for name, x in arrays.items()}, **keywords)
    assert result.shape == expected.shape
    assert result.dtype == DTYPES[case.dtype]
    if case.dtype == "int32":
        assert np.array_equal(np.array(result), expected)
        return 0.0
    error = np.abs(_float64(result) - expected)
    return float(np.max(error / _allowed(case, ran, expected, magnitude), initial=0.0))

"""Bugs planted in the kernels of rows, caches, segments and embeddings: a test of the kernel must notice each."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from ..ops import test_rows as rows
from ..ops.quantization import Format
from . import test_quantized_matmul_kernels as quantized
from . import test_row_kernels as kernels
from .mutants import plant, shaders_of

Exam = Callable[[], None]


@dataclass
class Mutant:
    """A change of one place, and the test that must fail."""

    family: str
    name: str
    original: str
    planted: str
    exam: Exam


def case(op: str, name: str, dtype: str = "float32", layout: str = "contiguous") -> Exam:
    """What the conformance table says of a case."""
    spec = next(spec for spec in kernels.ROW_SPECS if spec.name == op)
    (found,) = (case for case in spec.cases if case.name == name)
    return partial(kernels.test_result, spec, found, dtype, layout)


def layout(op: str, name: str) -> Exam:
    return partial(kernels.test_layouts, next(spec for spec in kernels.ROW_SPECS if spec.name == op), name)


def of_range(op: str, name: str, dtype: str = "float32") -> Exam:
    (found,) = (case for of, case in kernels.RANGES if (of, case.name) == (op, name))
    return partial(kernels.test_range, op, found, dtype)


def width(op: str, columns: int) -> Exam:
    return partial(kernels.test_widths, op, columns)


def outside(op: str) -> Exam:
    return partial(kernels.test_outside_the_reals, op)


def choice(**keywords: float) -> Exam:
    return partial(kernels.test_choice_outside_the_reals, keywords)


def shared(test: Exam) -> Exam:
    return partial(kernels.test_what_the_cpu_promises, test)


norm = partial(Mutant, "norms")
reduction = partial(Mutant, "reductions")
rope = partial(Mutant, "rope")
gate = partial(Mutant, "gates")
sampling = partial(Mutant, "sampling")
store = partial(Mutant, "kv_store")
segment = partial(Mutant, "segments")
copy = partial(Mutant, "copy")
embedding = partial(Mutant, "quantized_embedding")

BARRIER = "  threadgroup_barrier(metal::mem_flags::mem_threadgroup);\n"
ROWS_END = "  if (team.row >= args.rows.count) {\n    return;\n  }\n"
OFFSET = "row_offset(team.row, args.rows, args.x)"
VARIANCE = "first_of(kept[i] - mean, columns - column, 0.0f)"
ROOT = "precise::sqrt(row_team_sum(variance, shared, team) * scale + args.eps)"
SIGMOID = "metal::precise::exp(-metal::fabs(x));\n  return (x < 0.0f ? e : 1.0f) / (1.0f + e);"
GATES = "float4(gate_of(z[0]), gate_of(z[1]), gate_of(z[2]), gate_of(z[3]))"
POSITION = "float(positions[row_offset(team.row, source.rows, source.positions)])"
ONE_RESIDUAL = case("rms_norm", "one_residual")
EMBEDDED = partial(quantized.test_embedding, Format("affine", 4, 32), "float32")
EVERY_EIGHTH = "row += segment_simdgroups"

MUTANTS = [
    # norms
    norm("tail columns have a variance", VARIANCE, "(kept[i] - mean)", case("layer_norm", "ragged")),
    norm("the square of the mean stays", VARIANCE, VARIANCE.replace(" - mean", ""), case("layer_norm", "ragged")),
    norm("the mean of others", "1.0f / float(columns);", "1.0f / float(columns - 1);", case("rms_norm", "ragged")),
    norm("eps outside of the root", ROOT, ROOT.replace(" + args.eps)", ") + args.eps"), case("rms_norm", "ragged")),
    norm("eps forgotten", " * scale + args.eps", " * scale", case("rms_norm", "one_column")),
    norm(
        "the norm of the rounded sum",
        "    return s;\n",
        "    return to_float4<T>(from_float4<T>(s));\n",
        shared(partial(rows.test_the_norm_is_of_the_sum_before_its_rounding, rows.mx.float16)),
    ),
    norm(
        "squares in half",
        "variance += sum_of(d * d);",
        "variance += sum_of(to_float4<T>(from_float4<T>(d * d)));",
        of_range("rms_norm", "large", "float16"),
    ),
    norm(
        "the mean in half",
        "mean += sum_of(kept[i]);",
        "mean = float(T(mean + sum_of(kept[i])));",
        partial(kernels.test_a_mean_far_from_zero, "float16"),
    ),
    norm("the offset of the weights", " + args.weight_offset;", ";", case("rms_norm", "offset")),
    norm("the residual by other strides", "args.rows, args.residual)", "args.rows, args.x)", ONE_RESIDUAL),
    norm("columns of a residual", "args.residual.column_stride", "args.x.column_stride", ONE_RESIDUAL),
    norm(
        "the normed row for the sum",
        "columns, s, norm_vector_out",
        "columns, y, norm_vector_out",
        case("layer_norm", "residual"),
    ),
    norm(
        "the gate by other strides", "args.rows, args.gate)", "args.rows, args.x)", case("gated_rms_norm", "one_gate")
    ),
    norm("the gate's sigmoid alone", "return x * sigmoid(x);", "return sigmoid(x);", case("gated_rms_norm", "ragged")),
    norm("rows past the end", ROWS_END, "", case("rms_norm", "ragged")),
    norm("a long row is not kept", "columns <= size * 4 * row_turn", "true", width("layer_norm", 65537)),
    norm(
        "the first thread left out",
        "int(simdgroup * 32 + lane)",
        "int(simdgroup * 32 + lane + 1)",
        width("layer_norm", 513),
    ),
    norm(
        "no barrier before an exchange",
        f"{BARRIER}  if (team.lane == 0) {{",
        "  if (team.lane == 0) {",
        width("layer_norm", 513),
    ),
    norm(
        "no barrier within an exchange", f"{BARRIER}  return team.lane", "  return team.lane", width("layer_norm", 513)
    ),
    norm(
        "simdgroups that are not there",
        "team.lane < team.simdgroups ? shared[team.lane] : neutral",
        "shared[team.lane]",
        width("layer_norm", 513),
    ),
    norm(
        "groups one row apart",
        "int64_t(group) * simdgroups + simdgroup;",
        "int64_t(group) + simdgroup;",
        ONE_RESIDUAL,
    ),
    norm("a run past the row", "vector && count >= 4 ? load4(row", "vector ? load4(row", case("layer_norm", "ragged")),
    norm(
        "a store past the row",
        "store4(row + column, rounded, columns - column);",
        "store4(row + column, rounded, 4);",
        case("rms_norm", "ragged"),
    ),
    norm("one column more", "count > 1 ? x[1]", "count > 0 ? x[1]", case("layer_norm", "ragged")),
    # reductions
    reduction(
        "a maximum from zero",
        "float most = -INFINITY;\n    float nan",
        "float most = 0.0f;\n    float nan",
        outside("row_max"),
    ),
    reduction(
        "a greatest from zero",
        "float most = -INFINITY;\n    float sum",
        "float most = 0.0f;\n    float sum",
        outside("softmax"),
    ),
    reduction(
        "simdgroups' maxima from zero",
        "row_team_exchange(x, -INFINITY",
        "row_team_exchange(x, 0.0f",
        kernels.test_wide_rows_below_zero,
    ),
    reduction(
        "NaN is passed over", "return most + row_team_sum(nan, shared, team);", "return most;", outside("row_max")
    ),
    reduction("NaN in the tail alone", "isnan(v[i]) ? v[i]", "isnan(v[0]) ? v[0]", outside("row_max")),
    reduction("tail columns in the maximum", "first_of(v, columns - column, -INFINITY)", "v", outside("row_max")),
    reduction("tail columns in the greatest", "first_of(kept[i], count, -INFINITY)", "kept[i]", outside("softmax")),
    reduction(
        "tail columns in the sum",
        "first_of(exponentials(kept[i], most), count, 0.0f)",
        "exponentials(kept[i], most)",
        case("softmax", "ragged"),
    ),
    reduction("infinity less infinity", "x == most ? 1.0f : precise", "precise", outside("softmax")),
    reduction("no maximum", "precise::exp(x - most)", "precise::exp(x)", case("softmax", "ragged")),
    reduction("sums of an old maximum", "sum * exponential(before, most) +", "sum +", width("softmax", 512)),
    reduction(
        "sums of a lane's maximum",
        "row_team_sum(sum * exponential(most, end.most),",
        "row_team_sum(sum,",
        case("logsumexp", "ragged"),
    ),
    reduction(
        "a logarithm to the base 2", "end.most + precise::log(", "end.most + precise::log2(", case("logsumexp", "short")
    ),
    reduction("eps added", "norm < args.eps ? args.eps : norm", "norm + args.eps", case("l2_normalize", "small")),
    reduction(
        "no root",
        "precise::sqrt(row.sum_of_squares(shared, team))",
        "row.sum_of_squares(shared, team)",
        case("l2_normalize", "ragged"),
    ),
    reduction(
        "squares in half",
        "sum_of(kept[i] * kept[i])",
        "sum_of(to_float4<T>(from_float4<T>(kept[i] * kept[i])))",
        of_range("l2_normalize", "large", "float16"),
    ),
    reduction(
        "the sum in half",
        "total += sum_of(load(column));",
        "total = float(T(total + sum_of(load(column))));",
        kernels.test_sums_are_of_float32,
    ),
    reduction("every thread stores", "  if (team.index == 0) {\n    out", "  {\n    out", case("row_sum", "ragged")),
    reduction(
        "stored by the input's strides", "out + team.row * columns", f"out + {OFFSET}", layout("softmax", "strided")
    ),
    reduction(
        "columns one apart",
        "row + column * stride, stride, count",
        "row + column, 1, count",
        layout("row_sum", "strided"),
    ),
    reduction(
        "rows by their count",
        "offset += int64_t(index % size) * strides[d];",
        "offset += int64_t(index) * strides[d];",
        case("softmax", "first_axis"),
    ),
    # rope
    rope(
        "pairs of neighbours",
        "const float4 b = load(half_dim + i, rotary_dim);",
        "const float4 b = load(i + 1, rotary_dim);",
        case("rope", "heads"),
    ),
    rope(
        "halves for neighbours",
        "a(low[0], low[2], high[0], high[2])",
        "a(low[0], low[1], low[2], low[3])",
        case("rope", "interleaved"),
    ),
    rope(
        "turned the other way",
        "store(a * cosine - b * sine, i, half_dim);\n      store(b * cosine + a * sine",
        "store(a * cosine + b * sine, i, half_dim);\n      store(b * cosine - a * sine",
        case("rope", "heads"),
    ),
    rope(
        "neighbours turned the other way",
        "second = b * cosine + a * sine",
        "second = b * cosine - a * sine",
        case("rope", "interleaved"),
    ),
    rope("a store into the other half", "sine, i, half_dim);", "sine, i, rotary_dim);", case("rope", "ragged")),
    rope("the last pairs left out", "(rotary_dim / 2 + 3) / 4", "rotary_dim / 8", case("rope", "ragged")),
    rope(
        "the last columns left out",
        "(columns - rotary_dim + 3) / 4",
        "(columns - rotary_dim) / 4",
        case("rope", "ragged"),
    ),
    rope(
        "frequencies past the end",
        "args.inv_freq_stride, rotary_dim / 2 - i)",
        "args.inv_freq_stride, 4)",
        case("rope", "ragged"),
    ),
    rope("positions in half", POSITION, f"float(T({POSITION}))", of_range("rope", "far", "float16")),
    rope(
        "the first's positions",
        "source.rows, source.positions)",
        "args.first.rows, args.first.positions)",
        case("qk_norm_rope", "decode"),
    ),
    rope(
        "the first's weight",
        "row.weight = is_second ? second_weight : first_weight;",
        "row.weight = first_weight;",
        case("qk_norm_rope", "heads"),
    ),
    rope("the second's groups", "group - uint(args.groups_of_first)", "group", case("qk_norm_rope", "heads")),
    rope(
        "the mean of the turned columns",
        "/ float(columns) + args.eps",
        "/ float(args.rotary_dim) + args.eps",
        case("qk_norm_rope", "heads"),
    ),
    rope(
        "eps outside of the root",
        "/ float(columns) + args.eps)",
        "/ float(columns)) + args.eps",
        of_range("qk_norm_rope", "small"),
    ),
    rope("the offset of the weights", "column, end) + weight_offset)", "column, end))", case("qk_norm_rope", "heads")),
    rope(
        "columns that stay are not normed",
        "row.store(row.load(column, columns), column",
        "row.store(row_load(row.x, row.x_stride, false, column, columns), column",
        case("qk_norm_rope", "heads"),
    ),
    # gates
    gate(
        "the input by the gate's strides",
        "args.rows, args.x)",
        "args.rows, args.gate)",
        case("swiglu", "one_gate_a_row"),
    ),
    gate("columns of the gate", "args.gate.column_stride", "args.x.column_stride", case("swiglu", "one_gate_a_row")),
    gate("rows past the end", " || row >= args.rows.count", "", case("swiglu", "ragged")),
    gate(
        "a sigmoid that overflows",
        SIGMOID,
        "metal::precise::exp(x);\n  return e / (1.0f + e);",
        shared(partial(rows.test_gates_of_great_size, rows.mx.float32)),
    ),
    gate(
        "the tail of the wrong side",
        "x < 0.0f ? tail : 1.0f - tail",
        "x > 0.0f ? tail : 1.0f - tail",
        case("geglu", "exact"),
    ),
    gate("gelu of tanh for that of erf", "return gelu(z);", "return gelu_tanh(z);", case("geglu", "exact")),
    gate(
        "the gate rounded",
        GATES,
        f"to_float4<T>(from_float4<T>({GATES}))",
        case("swiglu", "plain", "bfloat16"),
    ),
    # sampling
    sampling("the last of equals", "value[i] > best &&", "value[i] >= best &&", choice()),
    sampling(
        "the first index of any lane", "best == most ? index : 0xffffffffu", "index", case("argmax", "vocabulary")
    ),
    sampling("no index", "index == 0xffffffffu ? 0 : index", "index", choice()),
    sampling("NaN is a number", "isnan(z[i]) ? -INFINITY : z[i]", "z[i]", choice(top_k=1)),
    sampling("tail columns", "return first_of(z, args.rows.columns - column, -INFINITY);", "return z;", choice()),
    sampling("hot for cold", "z /= args.temperature;", "z *= args.temperature;", case("sample", "cool")),
    sampling(
        "softcap not given back", "z = args.softcap * precise::tanh", "z = precise::tanh", case("sample", "capped")
    ),
    sampling("one more than the threshold", ">= target ? digit", "> target ? digit", case("sample", "top_one")),
    sampling(
        "the last bits of a threshold",
        "shift >= 0;",
        "shift > 0;",
        partial(kernels.test_a_threshold_is_exact, {"top_k": 1}, 1.0000001),
    ),
    sampling("zero less than zero", "as_type<uint>(x + 0.0f)", "as_type<uint>(x)", kernels.test_zeros_tie),
    sampling("negative numbers upside down", "? ~bits :", "? bits :", case("sample", "top_one")),
    sampling(
        "the mass of all",
        "sum += order_of(z[i]) >= least ? weight(z[i], most, true) : 0.0f;",
        "sum += weight(z[i], most, true);",
        kernels.test_top_p_is_of_what_top_k_left,
    ),
    sampling("noise for those left out", " && order_of(z[i]) >= least", "", case("sample", "top_one")),
    sampling(
        "the noise of other rows", "args.rows, args.noise)", "args.rows, args.logits)", layout("sample", "strided")
    ),
    # kv_store
    store("past the end of the ring", " % args.cache_rows);", ");", case("kv_store", "around_the_end")),
    store("before the start of the ring", "t < 0 ? t + args.cache_rows : t", "t", case("kv_store", "before_the_start")),
    store("rows in turn", "row % args.T) %", "row / args.T) %", case("kv_store", "several")),
    store(
        "heads in turn", "row / args.T * args.cache_rows", "row % args.T * args.cache_rows", case("kv_store", "several")
    ),
    store(
        "one position for all",
        "args.rows.shape, args.positions.strides)",
        "args.rows.shape, args.positions.strides) * 0",
        case("kv_store", "one_each"),
    ),
    store(
        "a store past the row",
        "store4(target, values, count);",
        "store4(target, values, 4);",
        case("kv_store", "several"),
    ),
    store("rows past the end", " || row >= args.rows.count", "", case("kv_store", "one_step")),
    store("columns one apart", "column * args.x.column_stride)", "column)", layout("kv_store", "strided")),
    # segments
    segment(
        "rows that are not there count",
        "max(last - first, int64_t(1))",
        "max(length, int64_t(1))",
        case("segment_mean", "none_and_outside"),
    ),
    segment(
        "nothing divided by nothing",
        "max(last - first, int64_t(1))",
        "(last - first)",
        case("segment_mean", "none_and_outside"),
    ),
    segment(
        "rows past the end",
        "clamp(start + length, first, args.rows)",
        "max(start + length, first)",
        case("segment_mean", "none_and_outside"),
    ),
    segment(
        "rows before the start",
        "clamp(start, int64_t(0), args.rows)",
        "start",
        case("segment_mean", "none_and_outside"),
    ),
    segment("no barrier", "  threadgroup_barrier(mem_flags::mem_threadgroup);\n", "", case("segment_mean", "padded")),
    segment("every second row", EVERY_EIGHTH, "row += 2 * segment_simdgroups", case("segment_mean", "overlapping")),
    segment("rows twice", EVERY_EIGHTH, "row += segment_simdgroups / 2", case("segment_mean", "padded")),
    segment(
        "a simdgroup left out", "i < segment_simdgroups", "i < segment_simdgroups - 1", case("segment_mean", "padded")
    ),
    segment(
        "columns of the first group",
        "int(group.x) * 128",
        "int(group.x) * 32",
        case("segment_mean", "none_and_outside"),
    ),
    segment(
        "starts one apart",
        "starts[int64_t(group.y) * args.start_stride]",
        "starts[group.y]",
        kernels.test_segments_that_are_strided,
    ),
    segment(
        "lengths one apart",
        "lengths[int64_t(group.y) * args.length_stride]",
        "lengths[group.y]",
        kernels.test_segments_that_are_strided,
    ),
    segment(
        "sums in half",
        "sum += row_load(x",
        "sum = to_float4<T>(from_float4<T>(sum)) + row_load(x",
        kernels.test_sums_are_of_float32,
    ),
    # copies
    copy("columns one apart", "column * stride)", "column)", layout("kv_store", "strided")),
    copy(
        "a run of any stride",
        "copy_vector_source ? load4(p) : load4(p, stride, 4)",
        "load4(p)",
        layout("kv_store", "strided"),
    ),
    copy("rows past the end", " || row >= rows", "", layout("kv_store", "strided")),
    copy("columns past the end", "column >= columns || ", "", layout("kv_store", "strided")),
    copy("the first of the batch", "batch_offset(position.z,", "batch_offset(0,", layout("kv_store", "strided")),
    copy(
        "batches one row apart",
        "(position.z * int64_t(rows) + row)",
        "(position.z + row)",
        layout("kv_store", "strided"),
    ),
    copy(
        "a store past the row",
        "load4(p, stride, count), count)",
        "load4(p, stride, count), 4)",
        case("kv_store", "several"),
    ),
    # embeddings
    embedding("negative ids", "id < 0 ? id + args.V : id", "id", EMBEDDED),
    embedding("rows past the table", "row >= 0 && row < args.V", "row >= 0", EMBEDDED),
    embedding("rows before the table", "row >= 0 && row < args.V", "row < args.V", EMBEDDED),
    embedding("columns past the end", "  if (column >= args.D) {\n    return;\n  }\n", "", EMBEDDED),
    embedding("one id for all", "ids[position.y]", "ids[0]", EMBEDDED),
    embedding(
        "halves exchanged", "store4(p, from_float4<T>(octet.low))", "store4(p, from_float4<T>(octet.high))", EMBEDDED
    ),
    embedding("biases by another stride", "= args.ld_biases;", "= args.ld_words;", EMBEDDED),
]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: f"{mutant.family}: {mutant.name}")
def test_mutants_are_killed(mutant: Mutant, tmp_path: Path) -> None:
    with shaders_of(plant(tmp_path, mutant)), pytest.raises((RuntimeError, AssertionError)) as raised:
        mutant.exam()
    # A finding names kernels first; that a mutant does not compile is none.
    assert raised.type is AssertionError or re.match(r"\[emulator\] \w+_\w+[ :]", str(raised.value))


@pytest.mark.parametrize("family", sorted({mutant.family for mutant in MUTANTS}))
def test_without_a_bug(family: str, tmp_path: Path) -> None:
    """What kills mutants is what was planted, not that they are elsewhere."""
    plant(tmp_path)
    with shaders_of(tmp_path):
        next(mutant for mutant in MUTANTS if mutant.family == family).exam()

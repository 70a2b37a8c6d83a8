"""Each rule of the strict front end, with a shader that keeps it and one that breaks it."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("ziglang")

from strict_shaders import LANGUAGES, RULES, check_shader
from toolbox import ROOT

SHADERS = sorted((ROOT / "kernels").glob("*.metal"))

HEADER = """#pragma once

#include <metal_stdlib>

struct ScaleArgs {
  int32_t size;
  float factor;
};

inline float scaled(thread const float& x, constant ScaleArgs& args) {
  return 0.5 * x * args.factor;
}
"""

PORTABLE = """#include <metal_stdlib>

#include "kernels/common/scale.h"

using namespace metal;

constant bool has_bias [[function_constant(0)]];
constant int width [[function_constant(1)]];
constant constexpr int group_size = 32;

inline float fraction(float x) {
  return x - floor(x);
}

template <typename T>
[[kernel]] void scale(
    device const T* x [[buffer(0)]],
    device T* y [[buffer(1)]],
    constant ScaleArgs& args [[buffer(2)]],
    device const T* bias [[buffer(3), function_constant(has_bias)]],
    uint thread_index [[thread_position_in_grid]],
    ushort lane [[thread_index_in_simdgroup]]) {
  threadgroup float4 staged[group_size / 4];
  device const vec<T, 4>* quads = reinterpret_cast<device const vec<T, 4>*>(x);
  const vec<T, 4> quad = quads[thread_index];
  staged[lane / 4] = float4(quad);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  float value = simd_sum(staged[lane / 4].x) + fraction(float(quad[0]));
  if (has_bias) {
    value += float(bias[thread_index]);
  }
  y[thread_index] = T(scaled(value, args));
}

template [[host_name("scale_" "float32")]] [[kernel]] decltype(scale<float>) scale<float>;
template [[host_name("scale_float16")]] [[kernel]] decltype(scale<half>) scale<half>;
"""

TENSOROPS = """#include <metal_stdlib>
#include <metal_tensor>
#include <MetalPerformancePrimitives/MetalPerformancePrimitives.h>

using namespace metal;

template <typename T>
using View = tensor<device T, dextents<int, 2>, tensor_inline>;

template <typename T>
[[kernel]] void product(
    device T* a [[buffer(0)]],
    device T* b [[buffer(1)]],
    device float* out [[buffer(2)]],
    constant int& K [[buffer(3)]]) {
  constexpr auto descriptor = mpp::tensor_ops::matmul2d_descriptor(
      64, 32, mpp::tensor_ops::dynamic_length_v<int>, false, false, true,
      mpp::tensor_ops::matmul2d_descriptor::mode::multiply);
  mpp::tensor_ops::matmul2d<descriptor, execution_simdgroups<4>> op;
  View<T> left(a, dextents<int, 2>(K, 64), array<int, 2>{1, K});
  View<T> right(b, dextents<int, 2>(32, K), array<int, 2>{1, 32});
  auto sum = op.template get_destination_cooperative_tensor<View<T>, View<T>, float>();
  op.run(left, right, sum);
  auto view = tensor(out, dextents<int, 2>(32, 64));
  sum.store(view);
}

template [[host_name("product_float16")]] [[kernel]] decltype(product<half>) product<half>;
"""

# rule, family, what stands in a sound source, what the planted mistake makes of it
PLANTED = [
    ("compile", "scale", "device const vec<T, 4>* quads", "threadgroup const vec<T, 4>* quads"),
    ("compile", "scale", "device const vec<T, 4>*>(x)", "thread const vec<T, 4>*>(y)"),
    ("compile", "scale", "  y[thread_index] =", "  args.size = 1;\n  y[thread_index] ="),
    ("compile", "scale", "  y[thread_index] =", "  x[thread_index] ="),
    ("compile", "scale", "x - floor(x)", "x - erf(x)"),
    ("compile", "scale", "x - floor(x)", "max(x, 1)"),
    ("compile", "product_tensorops", "device T* a", "device const T* a"),
    ("compile", "product_tensorops", "64, 32, mpp", "8, 8, mpp"),
    ("compile", "product_tensorops", "op.run(left, right, sum)", "op.run(View<T>(left), right, sum)"),
    (
        "compile",
        "product_tensorops",
        "op.run(left, right, sum)",
        "auto flat = tensor(a, dextents<int, 1>(K)); op.run(flat, right, sum)",
    ),
    ("ascii", "scale", "using namespace metal;", "using namespace metal;  // \u00d7"),
    ("include", "scale", "#include <metal_stdlib>", "#include <metal_stdlib>\n#include <metal_tensor>"),
    ("include", "scale", '"kernels/common/scale.h"', '"kernels/common/../common/scale.h"'),
    ("host-name", "scale", "scale_float16", "scale_float32"),
    ("host-name", "scale", "decltype(scale<half>) scale<half>", "decltype(scale<half>) scale<float>"),
    ("function-constant", "scale", "function_constant(has_bias)]]", "function_constant(has_bia)]]"),
    ("function-constant", "scale", "width [[function_constant(1)]]", "width [[function_constant(0)]]"),
    ("double", "scale", "  float value =", "  double value ="),
    ("static-local", "scale", "  float value =", "  static int calls;\n  float value ="),
    ("recursion", "scale", "return x - floor(x);", "return x < 1.0f ? x : fraction(x - 1.0f);"),
    ("address-space", "scale", "inline float fraction(float x)", "inline float fraction(const float& x)"),
    (
        "address-space",
        "scale",
        "  float value =",
        "  const device float* const p = nullptr; float* q = nullptr;\n  float value =",
    ),
    ("short-product", "scale", "y[thread_index] =", "y[lane * ushort(thread_index)] ="),
    ("short-product", "scale", "  y[thread_index] =", "  const ushort at = thread_index * 3;\n  y[at] ="),
    ("bare-decltype", "product_tensorops", "tensor<View<T>, View<T>, float>", "tensor<decltype(left), View<T>, float>"),
]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A tree with one portable and one tensorops family that keep every rule."""
    (tmp_path / "kernels/common").mkdir(parents=True)
    (tmp_path / "kernels/common/scale.h").write_text(HEADER)
    (tmp_path / "kernels/scale.metal").write_text(PORTABLE)
    (tmp_path / "kernels/product_tensorops.metal").write_text(TENSOROPS)
    return tmp_path


@pytest.mark.parametrize("family", ["scale", "product_tensorops"])
def test_a_sound_shader_passes(tree: Path, family: str) -> None:
    assert check_shader(tree / "kernels" / f"{family}.metal", tree) == []


@pytest.mark.parametrize(("rule", "family", "sound", "mistake"), PLANTED)
def test_a_planted_mistake_is_found(tree: Path, rule: str, family: str, sound: str, mistake: str) -> None:
    shader = tree / "kernels" / f"{family}.metal"
    text = shader.read_text()
    assert text.count(sound) >= 1
    shader.write_text(text.replace(sound, mistake, 1))
    findings = check_shader(shader, tree)
    assert rule in {finding.rule for finding in findings}, findings
    assert all(finding.line > 0 for finding in findings)


def test_every_rule_has_a_planted_mistake() -> None:
    assert {rule for rule, *_ in PLANTED} == set(RULES)


def test_tensors_need_metal_4(tree: Path) -> None:
    shader = tree / "kernels/product.metal"
    shader.write_text(TENSOROPS)
    assert {"compile", "include"} <= {finding.rule for finding in check_shader(shader, tree)}
    assert LANGUAGES["portable"][0] < "400" <= LANGUAGES["tensorops"][0]


@pytest.mark.parametrize("shader", SHADERS, ids=lambda shader: shader.stem)
def test_our_shaders_keep_every_rule(shader: Path) -> None:
    assert check_shader(shader) == []

"""The rewriter by itself: what it reads from a source, whatever the target."""

from __future__ import annotations

import re

import pytest

from mlx_tessl.emulator.rewriter import Argument, Constant, Translation, translate
from mlx_tessl.emulator.tokens import SourceError


class PlainTarget:
    """Spells everything as a comment, to see what the rewriter hands over."""

    def threadgroup_variable(self, type_name: str, name: str, dimensions: str) -> str:
        return f"/*threadgroup {type_name} {name} {dimensions}*/"

    def function_constant(self, constant: Constant) -> str:
        return f"/*constant {constant.type} {constant.name} {constant.index}*/"

    def derived_constant(self, type_name: str, name: str, expression: str) -> str:
        return f"/*derived {type_name} {name} = {expression}*/"


def rewrite(text: str) -> Translation:
    return translate(text, PlainTarget())


def body(text: str) -> str:
    return re.sub(r"\s+", " ", rewrite(text).body).strip()


@pytest.mark.parametrize(
    ("metal", "cpp"),
    [
        ("constant float x = 1.0;", "const float x = 1.0f;"),
        ("void f(const device float* p, thread int& q);", "void f(const float* p, int& q);"),
        ("struct S { int g() constant; int h() const thread; };", "struct S { int g() ; int h() const ; };"),
        ("float y = 1e3 + .5 + 2. + 0x1p3 + 7 + 0xefu;", "float y = 1e3f + .5f + 2.f + 0x1p3f + 7 + 0xefu;"),
        ("half z = 1.5h + 2h;", "half z = ((half)1.5f) + ((half)2.0f);"),
        ("bfloat b = 1.5bf;", "bfloat b = ((bfloat)1.5f);"),
        ("int a = x[y[0]];", "int a = x[y[0]];"),
        ("[[unroll]] int i [[maybe_unused]];", "int i ;"),
        (
            "{ threadgroup float t[2][N], u; }",
            "{ /*threadgroup float t [ 2 ] [ N ]*/ /*threadgroup float u */ }",
        ),
        ("void f() { threadgroup vec<float, 4> t; }", "void f() { /*threadgroup vec < float , 4 > t */ }"),
        ("void f(threadgroup float* p) { threadgroup float* q = p; }", "void f( float* p) { float* q = p; }"),
        ("int f(device int* p); int f(threadgroup int* p);", "int f( int* p);"),
        ("int f(constant int* p); int f(device int* p);", "int f(const int* p); int f( int* p);"),
    ],
)
def test_text(metal: str, cpp: str) -> None:
    assert body(metal) == re.sub(r"\s+", " ", cpp)


def test_lines_stay_where_they_were() -> None:
    text = "[[kernel]] void f(\n  device float* a\n    [[buffer(0)]]\n) {\n  threadgroup int c;\n}\n"
    assert rewrite(text).body.count("\n") == text.count("\n")


ARGUMENTS = """
constant bool extra [[function_constant(4)]];
[[kernel, max_total_threads_per_threadgroup(4 * 32)]] void f(
    device float* a [[buffer(2)]],
    constant int& b,
    device float* c [[buffer(0), function_constant(extra)]],
    threadgroup float* d [[threadgroup(1)]],
    uint3 e [[thread_position_in_grid]]) {}
"""


def test_a_kernels_signature() -> None:
    (kernel,) = rewrite(ARGUMENTS).kernels
    assert kernel.name == kernel.function == "f"
    assert kernel.max_threads == 128
    assert kernel.arguments == (
        Argument("a", "buffer", 2),
        Argument("b", "buffer", 1),
        Argument("c", "buffer", 0, gate="extra"),
        Argument("d", "threadgroup", 1),
        Argument("e", "value", 0, built_in="thread_position_in_grid"),
    )


CONSTANTS = """
constant int direct [[function_constant(0)]];
constant int through_call [[function_constant(1)]];
constant int through_derived [[function_constant(2)]];
constant int unused [[function_constant(3)]];
constant int asked [[function_constant(4)]];
constant bool derived = through_derived > 1;
constant float plain = 1.0;
int helper() { if (true) { return through_call; } return 0; }
int stranger() { return unused; }
kernel void f() { int x = direct + helper() + derived + (is_function_constant_defined(asked) ? asked : 0); }
kernel void g() { int x = stranger(); }
"""


def test_function_constants_that_a_kernel_needs() -> None:
    translation = rewrite(CONSTANTS)
    assert [constant.index for constant in translation.constants] == [0, 1, 2, 3, 4]
    assert translation.kernel("f").constants == (0, 1, 2)
    assert translation.kernel("g").constants == (3,)
    assert "/*derived bool derived = through_derived > 1*/" in translation.body
    assert "const float plain = 1.0f;" in translation.body


def test_instantiations() -> None:
    text = """
    template <typename T, int N> [[kernel]] void f(device T* a [[buffer(0)]]) {}
    template [[host_name("f_" "half")]] [[kernel]] decltype(f<half, 2>) f<half, 2>;
    template [[host_name("f_float")]] [[kernel]] void f<float, (1 + 2)>(device float* a [[buffer(0)]]);
    """
    kernels = {kernel.name: kernel for kernel in rewrite(text).kernels}
    assert kernels["f_half"].function == "f < half , 2 >"
    assert kernels["f_half"].parameter_types is None
    assert kernels["f_float"].parameter_types == ("float *",)
    assert set(kernels) == {"f_half", "f_float"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("kernel void f(uint i [[thread_index_in_moon]]) {}", "attribute that is not known: thread_index_in_moon"),
        ("kernel int f() { return 0; }", "does not return void"),
        ("void f() { (]; }", "unbalanced"),
        ('template [[host_name("g")]] [[kernel]] decltype(g<1>) g<1>;', "which is not a kernel"),
    ],
)
def test_what_is_not_understood(text: str, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        rewrite(text)

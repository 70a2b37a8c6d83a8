"""Products by oneDNN: where they go through it they are as right as ours, and where it is missing or wrong they do not.

`test_int8_matmul.py` and `test_cpu_matmul.py` hold what is computed; here are the ways to it. What the environment sets
is in processes of their own. A stand-in for the library, whose products are what a test wants, shows on every CPU what
goes through it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt
from mlx_tessl import _ext

from ..ops.conformance.int8_matmul import codes

ROOT = Path(__file__).parents[2]

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="there is no oneDNN for macOS")


def run(code: str, *arguments: str, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout.strip()


def is_used(type_: str, setting: str) -> bool:
    code = f"import mlx_tessl; print(mlx_tessl._ext.onednn_use()['{type_}']['used'])"
    return run(code, MLX_TESSL_ONEDNN=setting) == "True"


# Beside what test_int8_matmul.py has: sides and depths at the edges of its kernels, and blocks of several tasks.
@pytest.mark.parametrize("M", [1, 2, 17, 48, 300])
@pytest.mark.parametrize("N", [1, 16, 63, 520])
@pytest.mark.parametrize("K", [1, 4, 63, 1030])
def test_every_bit_of_int8(M: int, N: int, K: int) -> None:
    a, b = codes(M, K), codes(K, N, seed=1)
    a[0], b[:, 0] = -128, -128
    expected = a.astype(np.int64) @ b.astype(np.int64)
    for right in (b, np.asfortranarray(b)):
        stored = mx.array(right.T).T if right.flags.f_contiguous else mx.array(right)
        assert np.array_equal(np.array(mt.int8_matmul(mx.array(a), stored, stream=mx.cpu)), expected)


def test_scales_are_applied_to_the_sums_of_every_block() -> None:
    a, b = codes(300, 70), codes(70, 520, seed=1)
    scale_a, scale_b = np.arange(1, 301, dtype=np.float32), np.arange(1, 521, dtype=np.float32)
    result = mt.int8_matmul(
        mx.array(a), mx.array(b), scale_a=mx.array(scale_a), scale_b=mx.array(scale_b), stream=mx.cpu
    )
    exact = (a.astype(np.int64) @ b.astype(np.int64)).astype(np.float64) * scale_a[:, None] * scale_b
    assert np.all(np.abs(np.array(result) - exact) <= 2.0**-22 * np.abs(exact))


@pytest.mark.parametrize(
    ("type_", "tests"),
    [
        ("bfloat16", ["tests/backends/test_cpu_matmul.py", "-k", "bfloat16"]),
        ("int8", ["tests/backends/test_onednn.py", "-k", "test_every_bit_of_int8 or test_scales_are_applied"]),
    ],
)
def test_products_through_it_keep_to_the_bounds(type_: str, tests: list[str]) -> None:
    """The tests of the arithmetic, with oneDNN for all that it can compute."""
    if not is_used(type_, "all"):
        pytest.skip(f"no oneDNN, or a CPU without instructions for {type_}")
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        env=os.environ | {"MLX_TESSL_ONEDNN": "all"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout[-3000:]


LARGE_PRODUCTS = """
import hashlib, os
import mlx.core as mx, numpy as np, mlx_tessl as mt
mx.set_default_device(mx.cpu)
digest = hashlib.sha256()
rng = np.random.default_rng(0)
for M, N, K in [(300, 500, 700), (64, 2000, 300), (1100, 1300, 90)]:
    a, b = (mx.array(rng.standard_normal(s).astype(np.float32)) for s in ((M, K), (K, N)))
    product = mt.matmul(a.astype(mx.bfloat16), b.astype(mx.bfloat16), activation="gelu")
    digest.update(np.array(product.astype(mx.float32)).tobytes())
    codes = (mx.clip(50 * x, -128, 127).astype(mx.int8) for x in (a, b))
    digest.update(np.array(mt.int8_matmul(*codes)).tobytes())
"""


def test_neither_the_number_of_threads_nor_its_own_shows() -> None:
    code = LARGE_PRODUCTS + "print(digest.hexdigest())"
    digests = {run(code, MLX_TESSL_ONEDNN="all", MLX_TESSL_NUM_THREADS=n, OMP_NUM_THREADS=n) for n in ("1", "2", "5")}
    assert len(digests) == 1


@on_linux
def test_it_starts_no_threads() -> None:
    code = LARGE_PRODUCTS + "print(len(os.listdir('/proc/self/task')))"
    counts = {run(code, MLX_TESSL_ONEDNN=setting, OMP_NUM_THREADS="4") for setting in ("off", "all")}
    assert len(counts) == 1


def test_the_process_exits_while_streams_compute() -> None:
    code = """
import mlx.core as mx, mlx_tessl as mt
a = mx.random.normal((1200, 1200), stream=mx.cpu)
mx.eval(a)
for dtype, op in ((mx.int8, mt.int8_matmul), (mx.bfloat16, mt.matmul)):
    x = a.astype(dtype, stream=mx.cpu)
    mx.eval(x)
    mx.async_eval(*[op(x, x, stream=mx.new_stream(mx.cpu)) for _ in range(6)])
"""
    for _ in range(3):
        run(code, MLX_TESSL_ONEDNN="all")


@on_linux
def test_a_forked_child_computes() -> None:
    run(
        """
import os, sys
import mlx.core as mx, mlx_tessl as mt
a = mx.ones((300, 300), mx.int8)
mx.eval(mt.int8_matmul(a, a, stream=mx.cpu))
child = os.fork()
if child == 0:
    result = mt.int8_matmul(a, a, stream=mx.new_stream(mx.cpu))
    os._exit(0 if bytes(memoryview(result)) == (300).to_bytes(4, "little") * 90000 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
""",
        MLX_TESSL_ONEDNN="all",
    )


def test_an_unknown_setting() -> None:
    code = """
import mlx.core as mx, mlx_tessl as mt
try:
    mx.eval(mt.matmul(mx.ones((2, 2)), mx.ones((2, 2)), stream=mx.cpu))
except ValueError as error:
    print(error)
"""
    assert 'MLX_TESSL_ONEDNN is "yes"; expected off, auto or all' in run(code, MLX_TESSL_ONEDNN="yes")


REASONS = """
import mlx_tessl
info = mlx_tessl.backend_info()["cpu"]
print(info["int8"], info["bfloat16"], sep="; ")
"""


def test_why_it_is_not_used() -> None:
    assert run(REASONS, MLX_TESSL_ONEDNN="off").count("our own kernels: MLX_TESSL_ONEDNN is off") == 2
    assert run(REASONS, MLX_TESSL_CPU_ISA="baseline").count("our own kernels: MLX_TESSL_CPU_ISA is baseline") == 2
    missing = "import mlx_tessl; mlx_tessl._ext.set_onednn_library('/nonexistent/libdnnl.so')"
    assert run(missing + REASONS).count("our own kernels: oneDNN cannot be opened (/nonexistent/libdnnl.so") == 2


# Right products up to K = 67, which the library is asked for when it is opened, if RIGHT; longer ones are all sevens.
STAND_IN = """
#include <stdint.h>
typedef struct { int major, minor, patch; const char* hash; unsigned cpu_runtime, gpu_runtime; } Version;
const Version* dnnl_version(void) {
  static const Version version = {9, 9, 0, "", RUNTIME, 0};
  return &version;
}
int dnnl_get_effective_cpu_isa(void) { return CPU; }
int omp_get_max_threads(void) { return 1; }
void omp_set_num_threads(int count) {}
#define GEMM(a_at, b_at, c_type)                                        \\
  if (K > 67 && FAILS) return 1;                                        \\
  for (int64_t m = 0; m < M; ++m)                                       \\
    for (int64_t n = 0; n < N; ++n) {                                   \\
      float sum = RIGHT ? 0 : 1;                                        \\
      for (int64_t k = 0; k < K; ++k) sum += (float)(a_at) * (b_at);    \\
      c[m * ldc + n] = K > 67 ? (c_type)7 : (c_type)sum;                \\
    }                                                                   \\
  return 0;
int dnnl_gemm_s8s8s32(char ta, char tb, char oc, int64_t M, int64_t N, int64_t K, float alpha, const int8_t* a,
    int64_t lda, int8_t ao, const int8_t* b, int64_t ldb, int8_t bo, float beta, int32_t* c, int64_t ldc,
    const int32_t* co) {
  GEMM(ta == 'T' ? a[k * lda + m] : a[m * lda + k], tb == 'T' ? b[n * ldb + k] : b[k * ldb + n], int32_t)
}
static float widen(uint16_t bits) {
  union { uint32_t bits; float value; } x = {(uint32_t)bits << 16};
  return x.value;
}
int dnnl_gemm_bf16bf16f32(char ta, char tb, int64_t M, int64_t N, int64_t K, float alpha, const uint16_t* a,
    int64_t lda, const uint16_t* b, int64_t ldb, float beta, float* c, int64_t ldc) {
  GEMM(widen(ta == 'T' ? a[k * lda + m] : a[m * lda + k]), widen(tb == 'T' ? b[n * ldb + k] : b[k * ldb + n]), float)
}
"""

VNNI, AMX, OPENMP, TBB = "0x67", "0xfef", "2", "4"

# What a large product of ones gives: K = 100 from our kernels, 7 from the stand-in.
USE_STAND_IN = """
import sys
import mlx.core as mx, mlx_tessl as mt
mt._ext.set_onednn_library(sys.argv[1])
for dtype, op in ((mx.int8, mt.int8_matmul), (mx.bfloat16, mt.matmul), (mx.float16, mt.matmul)):
    x = mx.ones((200, 100), dtype)
    result = op(x, x.T, stream=mx.cpu)
    values = {int(v) for row in result.astype(mx.int32).tolist() for v in row}
    print(*values, end=" ")
info = mt.backend_info()["cpu"]
print(info["int8"], info["bfloat16"], sep="; ")
"""


def build_stand_in(folder: Path, cpu: str, runtime: str = OPENMP, right: bool = True, fails: bool = False) -> Path:
    source, library = folder / "stand_in.c", folder / "libdnnl.so"
    source.write_text(STAND_IN)
    facts = {"CPU": cpu, "RUNTIME": runtime, "RIGHT": int(right), "FAILS": int(fails)}
    defines = [f"-D{name}={value}" for name, value in facts.items()]
    subprocess.run(["g++", "-x", "c", "-w", "-shared", "-fPIC", *defines, "-o", library, source], check=True)
    return library


def use_stand_in(folder: Path, setting: str = "auto", **facts: Any) -> str:
    return run(USE_STAND_IN, str(build_stand_in(folder, **facts)), MLX_TESSL_ONEDNN=setting)


@on_linux
@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"cpu": AMX}, "7 7 100 oneDNN 9.9 on AMX; oneDNN 9.9 on AMX"),
        ({"cpu": AMX, "fails": True}, "100 100 100 oneDNN 9.9 on AMX; oneDNN 9.9 on AMX"),
        ({"cpu": "0x1ef"}, "100 100 100 our own kernels: oneDNN 9.9 is not faster for int8 on a CPU without AMX; "),
        ({"cpu": "0x1ef", "setting": "all"}, "7 7 100 oneDNN 9.9 with AVX-512 VNNI; oneDNN 9.9 with AVX-512 BF16"),
        ({"cpu": VNNI, "setting": "all"}, "7 100 100 oneDNN 9.9 with AVX-512 VNNI; our own kernels: oneDNN 9.9 needs"),
        ({"cpu": "0x7", "setting": "all"}, "100 100 100 our own kernels: oneDNN 9.9 needs AVX-512 VNNI"),
        (
            {"cpu": AMX, "right": False},
            "100 100 100 our own kernels: oneDNN 9.9 computed a small product of int8 wrong",
        ),
        ({"cpu": AMX, "runtime": TBB}, "100 100 100 our own kernels: "),
        ({"cpu": AMX, "setting": "off"}, "100 100 100 our own kernels: MLX_TESSL_ONEDNN is off"),
    ],
    ids=lambda value: "-".join(f"{k}_{v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_what_goes_through_it(tmp_path: Path, keywords: dict[str, Any], expected: str) -> None:
    assert use_stand_in(tmp_path, **keywords).startswith(expected)


@on_linux
def test_only_a_product_that_may_use_it_opens_it(tmp_path: Path) -> None:
    """Small ones, thin ones, those with the bits of a row alone and other types do without."""
    code = """
import sys
import mlx.core as mx, mlx_tessl as mt
mx.set_default_device(mx.cpu)
mt._ext.set_onednn_library(sys.argv[1])

def opens(M, N, K, dtype=mx.bfloat16, **options):
    op = mt.int8_matmul if dtype == mx.int8 else mt.matmul
    mx.eval(op(mx.ones((M, K), dtype), mx.ones((K, N), dtype), **options))
    return sys.argv[1] in open("/proc/self/maps").read()

assert not opens(3, 5, 7)
assert not opens(1, 2000, 2000)
assert not opens(2000, 1, 2000)
assert not opens(300, 400, 500, mx.float16)
assert not opens(300, 400, 500, batch_invariant=True)
assert not opens(30, 40, 50, mx.int8)
assert opens(300, 400, 500, getattr(mx, sys.argv[2]))
"""
    library = str(build_stand_in(tmp_path, AMX))
    for dtype in ("bfloat16", "int8"):
        run(code, library, dtype, MLX_TESSL_ONEDNN="auto")


def test_the_installed_library_is_found() -> None:
    if not (Path(sys.prefix) / "lib" / "libdnnl.so.3").exists():
        pytest.skip("onednn-cpu-gomp is not installed")
    assert "not installed" not in _ext.onednn_use()["int8"]["reason"]

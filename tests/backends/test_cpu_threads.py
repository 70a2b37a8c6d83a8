"""What must hold of the thread pool and the BLAS library; what the environment sets, in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt
from mlx_tessl import _ext

TESTS = Path(__file__).parent

DIGEST = """
import hashlib
import mlx.core as mx, numpy as np, mlx_tessl as mt
mx.set_default_device(mx.cpu)
digest = hashlib.sha256()
rng = np.random.default_rng(0)
for M, N, K in [(1, 5000, 700), (2, 700, 3000), (300, 500, 700), (50, 40, 16400), (1100, 1300, 90)]:
    for dtype in (mx.float32, mx.float16, mx.bfloat16):
        a, b = (mx.array(rng.standard_normal(s).astype(np.float32)).astype(dtype) for s in ((M, K), (K, N)))
        result = mt.matmul(a, b, bias=b[0], activation="gelu")
        digest.update(np.array(result.astype(mx.float32)).tobytes())
print(digest.hexdigest())
"""


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True, timeout=120
    )


def product(seed: int = 0) -> tuple[mx.array, mx.array]:
    rng = np.random.default_rng(seed)
    a, b = (mx.array(rng.standard_normal((400, 400)).astype(np.float32)) for _ in range(2))
    return a, b


def test_the_number_of_threads_does_not_show_in_the_bits() -> None:
    digests = [run(DIGEST, MLX_TESSL_NUM_THREADS=n) for n in ("1", "2", "5")]
    assert all(d.returncode == 0 for d in digests), digests[0].stderr
    assert len({d.stdout for d in digests}) == 1


@pytest.mark.parametrize("value", ["0", "-1", "two", "2.5", "99999"])
def test_a_number_of_threads_that_is_none(value: str) -> None:
    process = run(DIGEST, MLX_TESSL_NUM_THREADS=value)
    assert process.returncode != 0
    assert f'MLX_TESSL_NUM_THREADS is "{value}"' in process.stderr


def test_streams_compute_at_once() -> None:
    a, b = product()
    expected = mt.matmul(a, b, stream=mx.cpu)
    mx.eval(expected)
    wrong: list[int] = []

    def compute(number: int) -> None:
        stream = mx.new_stream(mx.cpu)
        for _ in range(20):
            result = mt.matmul(a, b, stream=stream)
            if not np.array_equal(np.array(result), np.array(expected)):
                wrong.append(number)

    threads = [threading.Thread(target=compute, args=(i,), daemon=True) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


FORK = """
import os, sys, time
import mlx.core as mx, mlx_tessl as mt
a = mx.random.normal((400, 400), stream=mx.cpu)
expected = mt.matmul(a, a, stream=mx.cpu)
mx.eval(expected)
child = os.fork()
if child == 0:
    # MLX's threads are the parent's: a stream made here has its own.
    stream = mx.new_stream(mx.cpu)
    same = bytes(memoryview(mt.matmul(a, a, stream=stream))) == bytes(memoryview(expected))
    # Its own, the stream's, and two of the pool: with the parent's pool the child would compute alone.
    os._exit(0 if same and len(os.listdir("/proc/self/task")) >= 4 else 1)
for _ in range(600):
    pid, status = os.waitpid(child, os.WNOHANG)
    if pid:
        sys.exit(os.waitstatus_to_exitcode(status))
    time.sleep(0.05)
os.kill(child, 9)
sys.exit("the child hangs")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="fork is not safe with macOS frameworks")
def test_a_forked_child_has_a_pool_of_its_own() -> None:
    process = run(FORK, MLX_TESSL_NUM_THREADS="3")
    assert process.returncode == 0, process.stderr


def test_the_process_exits_while_streams_compute() -> None:
    code = """
import mlx.core as mx, mlx_tessl as mt
a = mx.random.normal((1200, 1200), stream=mx.cpu)
mx.eval(a)
mx.async_eval(*[mt.matmul(a, a, stream=mx.new_stream(mx.cpu)) for _ in range(6)])
"""
    for _ in range(3):
        process = run(code)
        assert process.returncode == 0, process.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="macOS has Accelerate")
def test_a_missing_blas_library_is_one_clear_sentence() -> None:
    code = """
import mlx.core as mx, mlx_tessl as mt
from mlx_tessl import _ext
_ext.set_blas_library("/nonexistent/libopenblas.so")
a = mx.ones((64, 64))
for rows in (64, 1):
    try:
        mx.eval(mt.matmul(a[:rows], a, stream=mx.cpu))
    except RuntimeError as error:
        print(error)
"""
    process = run(code)
    assert process.returncode == 0, process.stderr
    assert process.stdout.count("/nonexistent/libopenblas.so") == 2
    assert "pip install scipy-openblas32" in process.stdout


def test_an_unknown_instruction_set() -> None:
    process = run(DIGEST, MLX_TESSL_CPU_ISA="avx9")
    assert process.returncode != 0
    assert 'MLX_TESSL_CPU_ISA is "avx9"' in process.stderr


INSTRUCTION_SETS = ["baseline", "avx2", "avx512"]
BEST = INSTRUCTION_SETS.index(_ext.cpu_instruction_set())


def run_tests(instruction_set: str, *tests: str) -> None:
    process = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *tests],
        env=os.environ | {"MLX_TESSL_CPU_ISA": instruction_set},
        cwd=TESTS.parents[1],
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert process.returncode == 0, process.stdout[-3000:]


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS[:BEST])
def test_lesser_cpus(instruction_set: str) -> None:
    """The tests of the arithmetic, as an older CPU runs them."""
    run_tests(instruction_set, *(str(TESTS / name) for name in ("test_cpu_math.py", "test_cpu_matmul.py")))


@pytest.mark.parametrize("instruction_set", INSTRUCTION_SETS[: BEST + 1])
def test_int8_of_lesser_cpus(instruction_set: str) -> None:
    """The best of them too: it is without the VNNI that the CPU may have."""
    run_tests(instruction_set, str(TESTS / "test_onednn.py"), "-k", "test_every_bit_of_int8")

"""That the process keeps memory which it frees: a property of glibc's malloc, asked of that itself."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MAPPED = """
import ctypes
import mlx_tessl

class Info(ctypes.Structure):
    _fields_ = [("others", ctypes.c_size_t * 3), ("hblks", ctypes.c_size_t), ("more", ctypes.c_size_t * 6)]

libc = ctypes.CDLL(None)
libc.mallinfo2.restype = Info
libc.malloc.argtypes, libc.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
before = libc.mallinfo2().hblks
libc.malloc(30 << 20)
print(libc.mallinfo2().hblks - before)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc")
@pytest.mark.parametrize(("tunables", "mapped"), [("", "0"), ("glibc.malloc.mmap_threshold=131072", "1")])
def test_large_results_come_from_memory_that_is_kept(tunables: str, mapped: str) -> None:
    """What is mapped by itself goes back when it is freed; who sets the threshold has it so."""
    environment = os.environ | {"GLIBC_TUNABLES": tunables}
    process = subprocess.run(
        [sys.executable, "-c", MAPPED], env=environment, capture_output=True, text=True, timeout=120
    )
    assert process.stdout == f"{mapped}\n", process.stderr

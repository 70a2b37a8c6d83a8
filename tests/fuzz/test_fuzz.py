"""Random products against float64, natively and in the emulator, and the census of the kernels that ran.

``make test`` runs a fixed covering set, one case for each variant of kernel, and a few random cases; ``make fuzz`` runs
many, and one case for every kernel there is. A failing case prints as JSON:

    MLX_TESSL_FUZZ_CASE='{...}' python -m pytest tests/fuzz -k replay

and MLX_TESSL_FUZZ_SEED repeats a whole run.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, seed, settings

import mlx_tessl as mt
from mlx_tessl.emulator.compiler import msl_version_of
from mlx_tessl.emulator.runtime import Source

from .cases import Case, kernels, run
from .draw import cases, cheapest_case_of_each_kernel

pytest.importorskip("ziglang")

DEEP = os.environ.get("MLX_TESSL_FUZZ") == "deep"
SEED = int(os.environ.get("MLX_TESSL_FUZZ_SEED", "0"))
REPLAY = os.environ.get("MLX_TESSL_FUZZ_CASE")
COVERING_FILE = Path(__file__).with_name("covering.jsonl")
FAMILIES = re.compile(r"(int8_|quantized_)?matmul(_tensorops(27)?)?$")

random_cases = settings(
    max_examples=400 if DEEP else 25,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


def selectable_kernels() -> set[str]:
    """Every kernel of the matrix products, from the shaders."""
    root = mt.kernels_path()
    shaders = [path for path in sorted(root.glob("*.metal")) if FAMILIES.match(path.stem)]
    sources = [Source(path, msl=msl_version_of(path.stem), include=[root.parent]) for path in shaders]
    return {name for source in sources for name in source.kernel_names()}


def variant(kernel: str) -> str:
    """A kernel's name without its dtype and the sizes of its tile."""
    return re.sub(r"_(b?float16|float32|int32|float32_relaxed)(?=_|$)|_\d+(x\d+)?$", "", kernel)


def hold(case: Case, *, emulated: bool = True, check: bool = False) -> None:
    used = run(case, emulated=emulated, check=check)
    assert used <= 1.0, f"{used:.3g} of the allowed error: MLX_TESSL_FUZZ_CASE='{case}'"


@random_cases
@seed(SEED)
@given(case=cases())
def test_native(case: Case) -> None:
    note(f"MLX_TESSL_FUZZ_CASE='{case}'")
    hold(case, emulated=False)


@pytest.mark.skipif(not DEEP, reason="compiles whatever kernels it meets: make fuzz")
@random_cases
@seed(SEED)
@given(case=cases())
def test_emulated(case: Case) -> None:
    note(f"MLX_TESSL_FUZZ_CASE='{case}'")
    hold(case, check=case.cost < 300_000)


COVERING = [Case.parse(line) for line in COVERING_FILE.read_text().splitlines()]


def test_covering_set_is_whole() -> None:
    """A variant of kernel that no case of the fixed set exercises fails: ``python -m tests.fuzz.cover`` finds one."""
    covered = {variant(kernel) for case in COVERING for kernel in kernels(case)}
    assert {variant(kernel) for kernel in selectable_kernels()} - covered == set()


@pytest.mark.parametrize("case", COVERING, ids=lambda case: variant(kernels(case)[-1]))
def test_covering_set(case: Case) -> None:
    hold(case)


@pytest.mark.skipif(REPLAY is None, reason="no MLX_TESSL_FUZZ_CASE to replay")
def test_replay() -> None:
    case = Case.parse(str(REPLAY))
    hold(case, emulated=False)
    hold(case)
    hold(case, check=True)


@pytest.mark.skipif(not DEEP, reason="hundreds of kernels: make fuzz")
def test_every_kernel_runs() -> None:
    found = cheapest_case_of_each_kernel(draws=20_000, seed=SEED, wanted=selectable_kernels())
    assert selectable_kernels() - found.keys() == set(), "kernels that no case selects"
    ran: set[str] = set()
    for case in dict.fromkeys(found.values()):
        hold(case, check=case.cost < 100_000)
        ran |= set(kernels(case))
    assert selectable_kernels() <= ran

"""MLX's own kernels in the emulator: right in float64's eyes, and no report of the checker but the true ones."""

from __future__ import annotations

import pytest

from mlx_tessl.emulator.runtime import EmulatorError

from .families.quantized import affine_qmm_n_nax
from .findings import ATOMIC_SUMS, Finding
from .mlx_kernels import Case
from .numerics import FLOAT16
from .specs import SPECS, Spec

pytestmark = pytest.mark.usefixtures("compiled")


def assert_results(case: Case) -> None:
    for result in case.results:
        used = result.used()
        assert used <= 1.0, f"{case.kernel.name}: {result.name} is off by {used:.2f} of what is allowed"  # NaN fails


def findings_of(case: Case) -> list[str]:
    """What the checker says of a launch; without a finding, the results are in place."""
    try:
        case.run(case.kernel.source(), check=True, seed=1)
    except EmulatorError as error:
        first, *lines = str(error).splitlines()
        return [line.strip() for line in lines] or [first.removeprefix(f"[emulator] {case.kernel.name}: ")]
    return []


def assert_findings(lines: list[str], expected: tuple[Finding, ...]) -> None:
    """Every finding expected is there, and nothing else is."""
    unexpected = [line for line in lines if not any(finding.matches(line) for finding in expected)]
    absent = [finding for finding in expected if not any(finding.matches(line) for line in lines)]
    assert not unexpected
    assert not absent


@pytest.mark.parametrize("check", [False], ids=["fast"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_against_float64(spec: Spec, check: bool) -> None:
    for case in spec.cases():
        case.run(case.kernel.source(), check=check)
        assert_results(case)


@pytest.mark.parametrize("check", [True], ids=["checked"])
@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.findings is not None], ids=lambda spec: spec.name)
def test_findings(spec: Spec, check: bool) -> None:
    assert spec.findings is not None
    for case, expected in zip(spec.cases(), spec.findings, strict=True):
        lines = findings_of(case)
        assert_findings(lines, expected)
        if lines:
            case.run(case.kernel.source())  # a launch with findings leaves no results
        assert_results(case)


def results_in_order(spec: Spec, order: str) -> list[bytes]:
    cases = spec.cases()
    for case in cases:
        case.run(case.kernel.source(), order=order, seed=2)
        assert_results(case)
    return [result.array.tobytes() for case in cases for result in case.results]


@pytest.mark.parametrize("order", ["reverse", "shuffled"])
@pytest.mark.parametrize("spec", [spec for spec in SPECS if spec.findings and any(spec.findings)], ids=lambda s: s.name)
def test_findings_change_no_bits(spec: Spec, order: str) -> None:
    """What the checker reports is harmless here, but for sums by atomics: their bits change, and stay within bounds."""
    assert spec.findings is not None
    same = results_in_order(spec, "forward") == results_in_order(spec, order)
    assert same != any(ATOMIC_SUMS in found for found in spec.findings)


def test_reading_past_the_end_is_told() -> None:
    """MLX's x W by matrix units takes N to be a multiple of its tile: with other widths it reads past the last row."""
    case = affine_qmm_n_nax(FLOAT16, 64, 96, 64, 32)
    with pytest.raises(EmulatorError, match=r"out of bounds: thread \d+ of .* reads \d+ bytes at byte \d+ of input \d"):
        case.run(case.kernel.source(), check=True)

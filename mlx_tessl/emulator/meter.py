"""What launches did, in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import ClassVar


@dataclass(frozen=True)
class Reading:
    """Counts of one launch, before any cache: they rank work, they do not tell time.

    Bytes and scalar operations are counted in checked runs only, and are 0 otherwise.
    """

    COUNTERS: ClassVar[tuple[str, ...]] = (
        "device_read_bytes",
        "device_written_bytes",
        "threadgroup_read_bytes",
        "threadgroup_written_bytes",
        "matrix_flops",
        "scalar_flops",
        "simd_operations",
        "divergent_operations",
        "simdgroup_barriers",
        "threadgroup_barriers",
        "matmul2d_runs",
        "threadgroups",
        "threads",
        "threadgroup_memory",
    )

    kernel: str
    grid: tuple[int, int, int]  # threadgroups
    group: tuple[int, int, int]  # threads of each
    checked: bool
    device_read_bytes: int = 0
    device_written_bytes: int = 0
    threadgroup_read_bytes: int = 0
    threadgroup_written_bytes: int = 0
    matrix_flops: int = 0  # of simdgroup_matrix and matmul2d
    scalar_flops: int = 0  # of everything else
    simd_operations: int = 0  # shuffles, reductions, votes and matrix products of one simdgroup
    divergent_operations: int = 0  # those of them that some live lanes did not take part in
    simdgroup_barriers: int = 0
    threadgroup_barriers: int = 0
    matmul2d_runs: int = 0
    threadgroups: int = 0
    threads: int = 0
    threadgroup_memory: int = 0  # bytes of one threadgroup

    @property
    def device_bytes(self) -> int:
        """Device bytes read and written."""
        return self.device_read_bytes + self.device_written_bytes

    @property
    def flops(self) -> int:
        """Floating point operations, of matrix units and others."""
        return self.matrix_flops + self.scalar_flops

    @property
    def intensity(self) -> float:
        """Operations for each device byte; 0 when bytes were not counted."""
        return self.flops / self.device_bytes if self.device_bytes else 0.0


class Meter(Sequence[Reading]):
    """The readings of a sequence of launches; ``str(meter)`` is a table."""

    def __init__(self, readings: Iterable[Reading] = ()) -> None:
        self._readings = list(readings)

    def __getitem__(self, index: int) -> Reading:  # type: ignore[override]  # a slice of readings has no use yet
        return self._readings[index]

    def __len__(self) -> int:
        return len(self._readings)

    def __iter__(self) -> Iterator[Reading]:
        return iter(self._readings)

    def extend(self, readings: Iterable[Reading]) -> None:
        """Add the readings of later launches."""
        self._readings += readings

    def total(self) -> Reading:
        """The sum of all launches; threadgroup memory is the most of any."""
        sums = {name: sum(getattr(r, name) for r in self._readings) for name in Reading.COUNTERS}
        sums["threadgroup_memory"] = max((r.threadgroup_memory for r in self._readings), default=0)
        checked = bool(self._readings) and all(r.checked for r in self._readings)
        return Reading("total", (0, 0, 0), (0, 0, 0), checked, **sums)

    def __str__(self) -> str:
        rows = [_HEADS, *(_row(reading) for reading in self._readings)]
        if len(self._readings) > 1:
            rows.append(_row(self.total()))
        widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
        lines = []
        for name, *cells in rows:
            aligned = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *aligned]).rstrip())
        return "\n".join(lines)


_HEADS: tuple[str, ...] = (
    "kernel",
    "grid",
    "group",
    "device read",
    "written",
    "tg read",
    "written",
    "matrix",
    "scalar",
    "simd",
    "divergent",
    "barriers",
    "tg memory",
)


def _row(reading: Reading) -> tuple[str, ...]:
    def size(dimensions: tuple[int, int, int]) -> str:
        return "x".join(str(n) for n in dimensions) if any(dimensions) else ""

    def counted(number: int, unit: str = "") -> str:
        return _short(number) + unit if reading.checked else "-"

    return (
        reading.kernel,
        size(reading.grid),
        size(reading.group),
        counted(reading.device_read_bytes, "B"),
        counted(reading.device_written_bytes, "B"),
        counted(reading.threadgroup_read_bytes, "B"),
        counted(reading.threadgroup_written_bytes, "B"),
        _short(reading.matrix_flops),
        counted(reading.scalar_flops),
        _short(reading.simd_operations),
        _short(reading.divergent_operations),
        _short(reading.threadgroup_barriers + reading.simdgroup_barriers),
        f"{reading.threadgroup_memory}B",
    )


def _short(number: int) -> str:
    """Three digits and a decimal prefix."""
    value = float(number)
    for prefix in ("", "k", "M", "G", "T"):
        if value < 1000:
            return f"{value:.3g}{prefix}"
        value /= 1000
    return f"{value:.3g}P"


assert tuple(f.name for f in fields(Reading))[4:] == Reading.COUNTERS

"""Plans as values, for tests and diagnostics."""

from collections.abc import Sequence


class Operand:
    """Shape and strides of an array that need not exist."""

    def __init__(self, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0) -> None: ...

class Argument:
    """What one [[buffer(i)]] is bound to."""

    @property
    def role(self) -> str: ...

    @property
    def index(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def offset(self) -> int: ...

class Launch:
    """One dispatch."""

    @property
    def kernel(self) -> str: ...

    @property
    def family(self) -> str: ...

    @property
    def capability(self) -> str: ...

    @property
    def constants(self) -> dict: ...

    @property
    def pipeline_name(self) -> str: ...

    @property
    def arguments(self) -> list[Argument]: ...

    def bytes_of(self, argument: Argument) -> bytes: ...

    @property
    def threadgroup_memory(self) -> int: ...

    @property
    def grid(self) -> tuple[int, int, int]: ...

    @property
    def group(self) -> tuple[int, int, int]: ...

class Plan:
    """Scratch buffers (bytes) and launches in order."""

    @property
    def scratch(self) -> list[int]: ...

    @property
    def launches(self) -> list[Launch]: ...

def grid_tile(x: int, y: int, tiles_m: int, tiles_n: int, width: int) -> tuple[int, int, bool]:
    """
    Row and column of the tile that a threadgroup of a walk computes, and whether there is one.
    """

def walk_grid(tiles_m: int, tiles_n: int, width: int, batch: int) -> tuple[int, int, int]: ...

class Matmul:
    """A call of matmul on a device, as planning sees it."""

    def __init__(self, dtype: str, a: Operand, b: Operand, *, c: Operand | None = None, bias: Operand | None = None, residual: Operand | None = None, alpha: float = 1.0, beta: float = 0.0, activation: str | None = None, relaxed: bool = False, batch_invariant: bool = False, gpu: str, macos: str) -> None: ...

    def plan(self) -> Plan: ...

    @property
    def tensorops_obstacle(self) -> str | None: ...

    def seconds_to_plan(self, repeats: int) -> float: ...

class QuantizedMatmul:
    """A call of quantized_matmul on a device."""

    def __init__(self, dtype: str, x: Operand, w: Operand, scales: Operand, biases: Operand | None = None, *, bias: Operand | None = None, transpose: bool = True, mode: str = 'affine', group_size: int | None = None, bits: int | None = None, activation: str | None = None, relaxed: bool = False, gpu: str, macos: str) -> None: ...

    def plan(self) -> Plan: ...

    @property
    def kind(self) -> str: ...

    @property
    def reason(self) -> str: ...

def quantized_embedding(dtype: str, ids: int, w: Operand, scales: Operand, biases: Operand | None = None, *, mode: str = 'affine', group_size: int | None = None, bits: int | None = None) -> Plan: ...

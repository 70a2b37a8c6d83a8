from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from . import _ext


@contextmanager
def trace() -> Iterator[list[_ext.TraceEntry]]:
    """Records what every op of this package runs, in the whole process, while it is evaluated.

    The list is filled when the block ends; evaluate inside it. Each entry has ``op``, ``backend`` (``"metal"``,
    ``"emulator"`` or ``"cpu"``) and ``launches`` with kernel, function constants, grid and group.

    >>> with mt.trace() as entries:
    ...     mx.eval(mt.matmul(a, b))
    >>> entries[0].backend
    'cpu'
    """
    entries: list[_ext.TraceEntry] = []
    _ext.start_trace()
    try:
        yield entries
    finally:
        entries.extend(_ext.take_trace())

"""What the checker rightly reports on kernels of MLX, with the reason why it is no fault of the checker."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    pattern: str
    reason: str

    def matches(self, line: str) -> bool:
        return re.fullmatch(self.pattern + r"( \(and \d+ more like it\))?", line) is not None


BARRIERS_APART = Finding(
    r"threads wait at different threadgroup barriers in threadgroup \(.*\)",
    "Simdgroups whose part of the tile is full and those whose part is ragged run two instantiations of one loop, each "
    "with barriers of its own. MSL asks that all threads of a threadgroup reach the same barrier; a GPU that counts "
    "arrivals does not care.",
)
LAST_ROWS_TWICE = Finding(
    r"race: thread \d+ of .* writes output 4 at byte \d+, which thread \d+ wrote with no barrier between",
    "Where the rows are no multiple of four, the last simdgroup is moved back and computes some rows of its neighbour "
    "again: both write them, with the same bits.",
)
LAST_SUMS_TWICE = Finding(
    r"race: thread \d+ of .* writes output 1 at byte \d+, which a thread of another threadgroup wrote "
    r"in the same launch",
    "Where the rows are no multiple of four, the last threadgroup is moved back and reduces some rows of its neighbour "
    "again: both write them, with the same bits.",
)
GAMMA_OVERWRITTEN = Finding(
    r"race: thread \d+ of .* writes threadgroup gamma_all at byte \d+, which several threads read "
    "with no barrier between",
    "A chunk's decays are overwritten by the next chunk's with no simdgroup_barrier after the last read. Only lanes of "
    "one simdgroup are concerned, and a simd_prefix_inclusive_sum lies between, which orders lanes but not memory.",
)
GAMMA_UNORDERED = Finding(
    r"race: thread \d+ of .* reads threadgroup gamma_all at byte \d+, which thread \d+ wrote with no barrier between",
    "Lanes read decays that other lanes of their simdgroup wrote, with no simdgroup_barrier between: the twin on "
    "simdgroup matrices has one there. The matrix products between order lanes but not memory.",
)
SAME_BETA_SUMS, SAME_DECAY_SUMS = (
    Finding(
        rf"race: thread \d+ of .* writes threadgroup {name} at byte \d+, which thread \d+ wrote "
        "with no barrier between",
        "The four lanes that share a row all write the row's sum, with the same bits.",
    )
    for name in ("db_stage", "dg_stage")
)
ATOMIC_SUMS = Finding(
    "results depend on the order of threads: forward and reverse differ",
    "Gradients are summed over threadgroups by float atomics, whose order the GPU chooses.",
)

"""Which kernels have planted bugs."""

from importlib import import_module
from pathlib import Path

import mlx_tessl as mt


def test_every_family_has_planted_bugs() -> None:
    names = [path.stem for path in Path(__file__).parent.glob("test_*_mutants.py")]
    planted = {mutant.family for name in names for mutant in import_module(f".{name}", __package__).MUTANTS}
    assert planted == {path.stem for path in mt.kernels_path().glob("*.metal")}

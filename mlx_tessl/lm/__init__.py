"""Language models in mlx-lm: its functions and commands, building the models of this package."""

from .loading import load, patch, patched
from .scoring import score

__all__ = ["load", "patch", "patched", "score"]

"""Puts our models where mlx-lm looks for its own."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from threading import Lock
from types import ModuleType
from typing import Any

import mlx.nn as nn

from ..encoders.folder import is_hub_id
from ..models.checkpoint import read_json

# model_type of a config.json, and the module of mlx_tessl.models that takes the place of mlx-lm's.
MODULES = {"qwen3_5": "qwen3_5", "qwen3_5_text": "qwen3_5"}

Classes = tuple[type[nn.Module], type]

# How many blocks, and calls of patch, want mlx-lm to build our models.
_blocks = 0
_patching = Lock()


@contextmanager
def patched() -> Iterator[int]:
    """Within it every function and command of mlx-lm builds our models, where we have one; else its own.

    It is for the whole process, all threads, until the last block of any of them ends; models that were built stay what
    they are.

    Yields:
        How many places now hold our choice of classes in place of mlx-lm's.

    Raises:
        ModuleNotFoundError: mlx-lm is not installed.
    """
    count = patch()
    try:
        yield count
    finally:
        _unpatch()


def patch() -> int:
    """:func:`patched` for the rest of the process. Returns how many places were replaced; 0 the second time."""
    global _blocks
    utils = _mlx_lm_utils()
    with _patching:
        _blocks += 1
        theirs = utils._get_classes
        return 0 if hasattr(theirs, "replaced") else _replace(utils, theirs, _chooser(theirs))


def _unpatch() -> None:
    global _blocks
    utils = _mlx_lm_utils()
    with _patching:
        _blocks -= 1
        if _blocks == 0:
            ours = utils._get_classes
            _replace(utils, ours, ours.replaced)


def load(path_or_id: str, **keywords: Any) -> Any:
    """``mlx_lm.load`` with our models.

    Args:
        path_or_id: A checkpoint folder, or an id of the Hugging Face hub.
        keywords: As of ``mlx_lm.load``: ``adapter_path``, ``lazy``, ``tokenizer_config``, ``return_config`` ...

    Returns:
        ``(model, tokenizer)``, and the config with ``return_config=True``.

    Raises:
        ModuleNotFoundError: mlx-lm is not installed.
        ValueError: Weights are missing, unknown, misshapen or cut off, config.json is no object with a ``model_type``,
            the model is of a kind that is not known.
        FileNotFoundError: There is no such checkpoint.
    """
    name = str(path_or_id)
    _check_folder(name)
    with patched():
        try:
            return _mlx_lm_utils().load(name, **keywords)
        except RuntimeError as error:  # what MLX raises of a file that it cannot read
            raise ValueError(f"[mlx_tessl.lm.load] {name} cannot be loaded: {error}") from error


def _check_folder(name: str) -> None:
    """What mlx-lm would say of it in other words."""
    folder = Path(name)
    if not folder.is_dir():
        if folder.exists() or not is_hub_id(name):
            raise FileNotFoundError(f"[mlx_tessl.lm.load] there is no folder {name!r}")
        return
    if (folder / "config.json").is_file() and "model_type" not in read_json(folder / "config.json"):
        raise ValueError(f"[mlx_tessl.lm.load] {folder / 'config.json'} has no model_type")


def _mlx_lm_utils() -> ModuleType:
    try:
        return import_module("mlx_lm.utils")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mlx_lm":
            raise
        raise ModuleNotFoundError(
            "[mlx_tessl.lm] mlx-lm is not installed. Run: pip install 'mlx-tessl[lm]'", name="mlx_lm"
        ) from error


def _chooser(theirs: Callable[[dict[str, Any]], Classes]) -> Callable[[dict[str, Any]], Classes]:
    """mlx-lm's ``_get_classes`` with our classes for the models that we have."""

    def get_classes(config: dict[str, Any]) -> Classes:
        name = MODULES.get(config.get("model_type", ""))
        if name is None:
            return theirs(config)
        module = import_module(f"..models.{name}", __package__)
        return module.Model, module.ModelArgs

    get_classes.replaced = theirs  # type: ignore[attr-defined]
    return get_classes


def _replace(utils: ModuleType, old: Any, new: Any) -> int:
    """Puts ``new`` wherever ``old`` is bound: in modules of mlx-lm, and as a default argument of ``load_model``."""
    count = 0
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] == "mlx_lm" and module is not None:
            for attribute in [key for key, value in vars(module).items() if value is old]:
                setattr(module, attribute, new)
                count += 1
    defaults = utils.load_model.__defaults__
    utils.load_model.__defaults__ = tuple(new if value is old else value for value in defaults)
    return count + sum(value is old for value in defaults)

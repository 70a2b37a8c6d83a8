"""Reading Hugging Face checkpoint folders: ``config.json`` and safetensors weights, whole or in shards."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_flatten

Weights = dict[str, mx.array]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``. Raises ``ValueError`` when it holds anything else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"[checkpoint] {path} is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"[checkpoint] {path} holds a JSON {type(content).__name__}; it must be an object")
    return content


def read_config(folder: Path) -> dict[str, Any]:
    """``config.json`` of a checkpoint folder.

    Raises:
        ValueError: The folder has none, or it is not a JSON object.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise ValueError(f"[checkpoint] {folder} has no config.json: it is not a Hugging Face checkpoint folder")
    return read_json(path)


def read_weights(folder: Path) -> Weights:
    """All tensors of a folder by name: of ``model.safetensors``, or of the shards that its index lists.

    The index is believed: a tensor it lists must be in the shard it names.

    Raises:
        ValueError: There are no safetensors weights, a shard or a listed tensor is absent, or a file is damaged.
    """
    index = folder / "model.safetensors.index.json"
    single = folder / "model.safetensors"
    if single.is_file():
        return _load_file(single)
    if index.is_file():
        return _read_shards(folder, read_json(index))
    others = sorted(path.name for path in folder.glob("*.bin"))
    hint = f"; convert {', '.join(others)} to safetensors first" if others else ""
    raise ValueError(f"[checkpoint] {folder} has no model.safetensors and no model.safetensors.index.json{hint}")


def _read_shards(folder: Path, index: Mapping[str, Any]) -> Weights:
    shard_of = index.get("weight_map")
    if not isinstance(shard_of, dict):
        raise ValueError(f"[checkpoint] the index in {folder} has no weight_map")
    missing = sorted({name for name in shard_of.values() if not (folder / name).is_file()})
    if missing:
        raise ValueError(f"[checkpoint] {folder} lacks the shards {', '.join(missing)}")
    shards = {name: _load_file(folder / name) for name in sorted(set(shard_of.values()))}
    absent = sorted(key for key, name in shard_of.items() if key not in shards[name])
    if absent:
        raise ValueError(f"[checkpoint] the shards in {folder} lack tensors that the index lists: {listed(absent)}")
    return {key: shards[name][key] for key, name in shard_of.items()}


def _load_file(path: Path) -> Weights:
    try:
        return dict(mx.load(str(path)))  # type: ignore[arg-type]
    except RuntimeError as error:
        raise ValueError(f"[checkpoint] {path} cannot be read: {error}") from error


def cast(weights: Mapping[str, mx.array], dtype: mx.Dtype | None) -> Weights:
    """``weights`` with the floating-point ones in ``dtype``, unless that is ``None``."""
    if dtype is None:
        return dict(weights)
    return {
        name: tensor.astype(dtype) if mx.issubdtype(tensor.dtype, mx.floating) else tensor
        for name, tensor in weights.items()
    }


def assign(model: nn.Module, weights: Mapping[str, mx.array]) -> None:
    """Gives every parameter of ``model`` its tensor from ``weights``.

    Raises:
        ValueError: Names or shapes differ; the error lists every missing and unknown name and every wrong shape.
    """
    parameters: dict[str, mx.array] = dict(tree_flatten(model.parameters()))
    missing = sorted(parameters.keys() - weights.keys())
    unknown = sorted(weights.keys() - parameters.keys())
    misshapen = [
        f"{name} is {weights[name].shape}, not {parameter.shape}"
        for name, parameter in sorted(parameters.items())
        if name in weights and weights[name].shape != parameter.shape
    ]
    complaints = [
        f"{what}: {listed(names)}"
        for what, names in (("missing", missing), ("unknown", unknown), ("wrong shape", misshapen))
        if names
    ]
    if complaints:
        raise ValueError(f"[checkpoint] the weights do not fit {type(model).__module__}; {'; '.join(complaints)}")
    model.load_weights(list(weights.items()))


def listed(names: Iterable[str]) -> str:
    """``names`` for an error message."""
    return ", ".join(names)

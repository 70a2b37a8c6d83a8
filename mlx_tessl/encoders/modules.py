"""What a sentence-transformers folder says beyond its weights: modules, prompts, lengths."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..models.checkpoint import read_json


@dataclass(frozen=True)
class Module:
    """One entry of ``modules.json``: the last part of its class name, and its folder."""

    kind: str
    folder: Path


@dataclass(frozen=True)
class Settings:
    """Of ``config_sentence_transformers.json`` and the transformer's own settings; absent ones are ``None``."""

    prompts: dict[str, str] = field(default_factory=dict)
    default_prompt_name: str | None = None
    similarity: str | None = None
    task: str | None = None
    max_seq_length: int | None = None
    lowercase: bool = False


def read_modules(folder: Path) -> list[Module] | None:
    """The entries of ``modules.json`` in order; ``None`` for a plain checkpoint, which has none.

    Raises:
        ValueError: The file is not a list of such entries, or its first module is not a transformer.
    """
    path = folder / "modules.json"
    if not path.is_file():
        return None
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
        modules = [Module(entry["type"].rsplit(".", 1)[-1], folder / entry["path"]) for entry in entries]
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"[encoders] {path} is not a list of modules: {error!r}") from error
    if not modules or modules[0].kind not in ("Transformer", "MLMTransformer"):
        raise ValueError(f"[encoders] the first module in {path} must be a Transformer or an MLMTransformer")
    return modules


def read_settings(folder: Path, transformer: Path) -> Settings:
    """The settings of ``folder``, whose transformer lies in ``transformer`` (often the same folder)."""
    own = _optional(folder / "config_sentence_transformers.json")
    limits = _optional(transformer / "sentence_bert_config.json")
    return Settings(
        prompts=dict(own.get("prompts") or {}),
        default_prompt_name=own.get("default_prompt_name"),
        similarity=own.get("similarity_fn_name"),
        task=limits.get("transformer_task"),
        max_seq_length=limits.get("max_seq_length") or _tokenizer_limit(transformer),
        lowercase=bool(limits.get("do_lower_case", False)),
    )


def _tokenizer_limit(transformer: Path) -> int | None:
    """``model_max_length`` of the tokenizer, which is a huge number where it is not known."""
    limit = _optional(transformer / "tokenizer_config.json").get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and 0 < limit < 1e9 else None


def _optional(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}

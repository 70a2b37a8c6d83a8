"""From what a user names to a checkpoint folder on this machine."""

from __future__ import annotations

import os
import re
from pathlib import Path

# What an encoder may read of a repository.
_PATTERNS = ["*.json", "*.safetensors", "vocab.txt", "*/*.json", "*/*.safetensors"]

_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def find_folder(path_or_id: str | os.PathLike[str], revision: str | None = None) -> Path:
    """The folder ``path_or_id`` names: itself when it is one, else a Hugging Face hub id, downloaded or cached.

    Raises:
        ValueError: It is neither a folder nor a hub id, ``huggingface_hub`` is not installed, or the hub has no such
            repository or cannot be reached.
    """
    folder = Path(path_or_id).expanduser()
    if folder.is_dir():
        return folder
    name = os.fspath(path_or_id)
    if folder.exists():
        raise ValueError(f"[encoders] {name} is a file; a checkpoint is a folder")
    if not is_hub_id(name):
        raise ValueError(f"[encoders] there is no folder {name}")
    return _download(name, revision)


def is_hub_id(name: str) -> bool:
    """Whether the hub could have a repository of this name; what it could not have is a path."""
    return bool(_HUB_ID.fullmatch(name)) and not name.startswith(".")


def _download(hub_id: str, revision: str | None) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError as error:
        raise ValueError(
            f"[encoders] there is no folder {hub_id}, and to look it up on the Hugging Face hub takes the package "
            "huggingface_hub. Run: pip install huggingface_hub"
        ) from error
    try:
        return Path(snapshot_download(hub_id, revision=revision, allow_patterns=_PATTERNS))
    except (OSError, ValueError) as error:  # huggingface_hub's own errors are one or the other
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ValueError(
            f"[encoders] there is no folder {hub_id}, and the Hugging Face hub did not give it: {reason}"
        ) from error

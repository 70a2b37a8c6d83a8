"""More texts than memory holds, encoded to a folder of files by one process or by several."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import mlx.core as mx
from tqdm import tqdm

from ..models.checkpoint import read_json
from .files import EMBEDDING_FORMATS, VECTOR_FORMATS, atomic_write, remove_parts, write_embeddings, write_vectors
from .sentence import SentenceEncoder
from .sparse import SparseEncoder

_SETTINGS = "settings.json"
_INDEX = "index.json"


@dataclass(frozen=True)
class Shards:
    """The files of a folder in order, and of how many texts they are; ``written`` by this call of this process."""

    paths: list[Path]
    texts: int
    written: int


def encode_to_shards(
    encoder: SentenceEncoder | SparseEncoder,
    texts: Iterable[str],
    folder: str | Path,
    *,
    format: str = "npz",
    shard_size: int = 16384,
    total: int | None = None,
    source: str | None = None,
    show_progress_bar: bool = False,
    group: mx.distributed.Group | None = None,
    **options: Any,
) -> Shards:
    """Encodes ``texts`` to files ``00000.npz``, ``00001.npz``, ... of ``shard_size`` texts each.

    A file is there whole or not at all. After an interruption the same call goes on: it leaves alone the files that are
    there. When all are, ``index.json`` lists them. Memory holds one shard.

    Under ``mlx.launch`` the processes take shards in turn. Each must be given the same texts, and see the same folder.

    Args:
        encoder: What encodes.
        texts: Read once, in order; those of shards that are there or that another process takes are passed over.
        folder: Made if it is not there. Its ``settings.json`` keeps what the files were made with.
        format: ``"npy"`` (dense only), ``"npz"``, ``"jsonl"`` or ``"safetensors"``.
        shard_size: Texts of a file; the last has fewer.
        total: How many texts there are, for the progress bar.
        source: What tells these texts from others, a checksum for example: a folder begun with another is refused.
        show_progress_bar: A bar on standard error, of the first process.
        group: Processes; by default those of ``mx.distributed.init()``.
        options: Keywords of the encoder's ``encode``.

    Raises:
        ValueError: An unknown format, a size that is not positive, a folder that was begun with other settings, or what
            ``encode`` raises.
    """
    formats = EMBEDDING_FORMATS if isinstance(encoder, SentenceEncoder) else VECTOR_FORMATS
    if format not in formats:
        raise ValueError(f"[encode_to_shards] format is {format!r}; it must be one of {', '.join(formats)}")
    if shard_size < 1:
        raise ValueError(f"[encode_to_shards] shard_size is {shard_size}; it must be positive")
    group = group or mx.distributed.init()
    folder = Path(folder)
    settings = {
        "encoder": type(encoder).__name__,
        "model": str(encoder.folder),
        "format": format,
        "shard_size": shard_size,
        "source": source,
        **{name: value for name, value in sorted(options.items()) if value is not None},
    }
    if group.rank() == 0:
        _begin(folder, settings)
    _wait(group)
    _check_settings(folder, settings)

    paths, count, written = [], 0, 0
    with tqdm(total=total, disable=not show_progress_bar or group.rank() > 0, desc="encode", unit="text") as progress:
        for number, shard in enumerate(_shards(texts, shard_size)):
            path = folder / f"{number:05}.{format}"
            paths.append(path)
            count += len(shard)
            if path.exists() or number % group.size() != group.rank():
                progress.update(len(shard))
                continue
            results = encoder.encode(shard, show_progress_bar=progress, **options)
            with atomic_write(path) as file:
                _write(file, format, encoder, shard, results)
            written += 1
    _wait(group)
    if group.rank() == 0:
        with atomic_write(folder / _INDEX) as file:
            index = {**settings, "texts": count, "shards": [path.name for path in paths]}
            file.write(json.dumps(index, indent=1).encode() + b"\n")
    return Shards(paths, count, written)


def _begin(folder: Path, settings: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    remove_parts(folder)
    if not (folder / _SETTINGS).exists():
        with atomic_write(folder / _SETTINGS) as file:
            file.write(json.dumps(settings, indent=1).encode() + b"\n")


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    begun = read_json(folder / _SETTINGS)
    other = [name for name in settings.keys() | begun.keys() if settings.get(name) != begun.get(name)]
    if other:
        changes = ", ".join(f"{name} {begun.get(name)!r}, not {settings.get(name)!r}" for name in sorted(other))
        raise ValueError(f"[encode_to_shards] {folder} was begun with {changes}: give another folder, or empty it")


def _wait(group: mx.distributed.Group) -> None:
    """Until every process is here."""
    if group.size() > 1:
        mx.eval(mx.distributed.all_sum(mx.array(1.0), group=group, stream=mx.cpu))


def _shards(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(texts)
    while shard := list(islice(remaining, size)):
        yield shard


def _write(file: IO[bytes], format: str, encoder: Any, texts: Sequence[str], results: Any) -> None:
    if isinstance(encoder, SentenceEncoder):
        write_embeddings(file, format, texts, results)
    else:
        write_vectors(file, format, texts, results, encoder.tokenizer.word if encoder.tokenizer else None)

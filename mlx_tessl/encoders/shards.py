"""More texts than memory holds, encoded to a folder of files by one process or by several."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any

import mlx.core as mx
from tqdm import tqdm

from ..models.checkpoint import read_json
from .checks import checked_count
from .files import EMBEDDING_FORMATS, VECTOR_FORMATS, atomic_write, remove_parts, write_embeddings, write_vectors
from .sentence import SentenceEncoder
from .sparse import SparseEncoder

_SETTINGS = "settings.json"
_INDEX = "index.json"
_CHECKSUMS = "checksums"


@dataclass(frozen=True)
class Shards:
    """The files of a folder in order, and of how many texts they are; ``written`` by this call of this process.

    ``truncated`` is how many texts of the files written were cut.
    """

    paths: list[Path]
    texts: int
    written: int
    truncated: int


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
    there, whose texts ``checksums`` tell. It may also be given more texts than before: the last file, which has fewer
    than ``shard_size``, is then made again. When all are there, ``index.json`` lists them. Memory holds one shard.

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
        ValueError: An unknown format, a size that is not positive, a folder that is a file, that was begun with other
            settings, or whose files are of other texts or of more of them, or what ``encode`` raises.
        ConnectionError: Another of the processes ended before its time.
    """
    formats = EMBEDDING_FORMATS if isinstance(encoder, SentenceEncoder) else VECTOR_FORMATS
    if format not in formats:
        raise ValueError(f"[encode_to_shards] format is {format!r}; it must be one of {', '.join(formats)}")
    checked_count("encode_to_shards", "shard_size", shard_size)
    group = group or mx.distributed.init()
    folder = Path(folder)
    settings = {
        "encoder": type(encoder).__name__,
        "model": str(encoder.folder),
        "format": format,
        "shard_size": shard_size,
        "source": source,
        **_what_decides(encoder, options),
    }
    if group.rank() == 0:
        _begin(folder, settings)
    _wait(group)
    _check_settings(folder, settings)

    paths, count, written, truncated = [], 0, 0, 0
    hidden = not show_progress_bar or group.rank() > 0
    with tqdm(total=total, disable=hidden, desc="encode", unit="text", miniters=1) as progress:
        for number, shard in enumerate(_shards(encoder._several(texts), shard_size)):
            path = folder / f"{number:05}.{format}"
            paths.append(path)
            done = _is_done(path, shard, count)
            count += len(shard)
            if done:
                _pass_over(progress, len(shard))
                continue
            if number % group.size() != group.rank():
                progress.update(len(shard))
                continue
            try:
                results = encoder.encode(shard, show_progress_bar=progress, **options)
            except ValueError as error:
                first = count - len(shard)
                raise ValueError(f"[encode_to_shards] {path.name}, whose text 0 is text {first}: {error}") from error
            truncated += encoder.truncated
            (folder / _INDEX).unlink(missing_ok=True)  # of fewer texts
            with atomic_write(path) as file:
                _write(file, format, encoder, shard, results)
            _write_json(_record_of(path), {"texts": len(shard), "sha256": _checksum(shard, count - len(shard))})
            written += 1
    _refuse_more(folder, format, paths, count)
    _wait(group)
    if group.rank() == 0:
        _write_json(folder / _INDEX, {**settings, "texts": count, "shards": [path.name for path in paths]})
    return Shards(paths, count, written, truncated)


def _begin(folder: Path, settings: dict[str, Any]) -> None:
    checksums = folder / _CHECKSUMS
    for place in (checksums, *checksums.parents):
        if place.is_file():
            raise ValueError(f"[encode_to_shards] {place} is a file; it must be a folder, or not be there")
    checksums.mkdir(parents=True, exist_ok=True)
    for place in (folder, checksums):
        remove_parts(place)
    if not (folder / _SETTINGS).exists():
        _write_json(folder / _SETTINGS, settings)


def _what_decides(encoder: SentenceEncoder | SparseEncoder, options: dict[str, Any]) -> dict[str, Any]:
    """What the results of ``encode`` depend on, by name; not whether long texts are refused or cut."""
    own = {
        "dtype": encoder.dtype and str(encoder.dtype),
        "max_seq_length": encoder.max_seq_length,
        **{name: getattr(encoder, name, None) for name in ("truncate_dim", "max_active_dims")},
    }
    given = {name: value for name, value in sorted(options.items()) if value is not None}
    prompt = encoder._resolve_prompt(given.pop("prompt_name", None), given.pop("prompt", None))
    return {name: value for name, value in {**own, "prompt": prompt or None, **given}.items() if value is not None}


def _pass_over(progress: tqdm, count: int) -> None:
    """Counts texts that took no time, and keeps them out of the rate."""
    if not progress.disable:
        progress.n += count
        progress.initial += count
        progress.last_print_n += count


def _check_settings(folder: Path, settings: dict[str, Any]) -> None:
    begun = read_json(folder / _SETTINGS)
    other = [name for name in settings.keys() | begun.keys() if settings.get(name) != begun.get(name)]
    if other:
        changes = ", ".join(f"{name} {begun.get(name)!r}, not {settings.get(name)!r}" for name in sorted(other))
        raise ValueError(f"[encode_to_shards] {folder} was begun with {changes}: give another folder, or empty it")


def _is_done(path: Path, shard: Sequence[str], first: int) -> bool:
    """Whether ``path`` is there and of these texts, of which ``first`` are before; not if it is of the first of them.

    What no record tells of was being written when its process was killed.
    """
    record = _record_of(path)
    if not path.exists() or not record.exists():
        return False
    made = read_json(record)
    if made["sha256"] == _checksum(shard[: made["texts"]], first):
        return bool(made["texts"] == len(shard))
    raise ValueError(f"[encode_to_shards] {path} was made of other texts: give another folder, or empty it")


def _refuse_more(folder: Path, format: str, paths: Sequence[Path], count: int) -> None:
    """Of a job that had more texts: which of the two is meant cannot be known."""
    more = [path for path in folder.glob(f"*.{format}") if path.stem.isdecimal() and int(path.stem) >= len(paths)]
    if more:
        raise ValueError(
            f"[encode_to_shards] {min(more)} is of more than these {count} texts: give another folder, or empty it"
        )


def _record_of(path: Path) -> Path:
    return path.parent / _CHECKSUMS / f"{path.stem}.json"


def _checksum(texts: Sequence[str], first: int) -> str:
    """Of the texts one by one; ``first`` are before them."""
    checksum = hashlib.sha256()
    for place, text in enumerate(texts, first):
        if not isinstance(text, str):
            raise ValueError(f"[encode_to_shards] text {place} is a {type(text).__name__}; it must be a str")
        data = text.encode("utf-8", "surrogatepass")
        checksum.update(len(data).to_bytes(8, "little") + data)
    return checksum.hexdigest()


def _write_json(path: Path, value: dict[str, Any]) -> None:
    with atomic_write(path) as file:
        file.write(json.dumps(value, indent=1).encode() + b"\n")


def _wait(group: mx.distributed.Group) -> None:
    """Until every process is here."""
    if group.size() == 1:
        return
    try:
        mx.eval(mx.distributed.all_sum(mx.array(1.0), group=group, stream=mx.cpu))
    except RuntimeError as error:
        raise ConnectionError(f"[encode_to_shards] another process ended before its time: {error}") from error


def _shards(texts: Iterable[str], size: int) -> Iterator[list[str]]:
    remaining = iter(texts)
    while shard := list(islice(remaining, size)):
        yield shard


def _write(file: IO[bytes], format: str, encoder: Any, texts: Sequence[str], results: Any) -> None:
    if isinstance(encoder, SentenceEncoder):
        write_embeddings(file, format, texts, results)
    else:
        write_vectors(file, format, texts, results, encoder.tokenizer.word if encoder.tokenizer else None)

"""Results in files, written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import mlx.core as mx
import numpy as np

from .similarity import FloatArray
from .sparse_vectors import SparseVectors

_PART = ".part"


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """A binary file that becomes ``path`` when the block ends well, and of which nothing is left when it does not."""
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_PART)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def remove_parts(folder: Path) -> None:
    """Removes what a killed process left of files it had not finished."""
    for path in folder.glob(f".*{_PART}"):
        path.unlink(missing_ok=True)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def json_lines(records: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """One JSON object a line, floats in their shortest exact form."""
    return (json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def shortest(values: Iterable[np.float32]) -> list[float]:
    """Floats that print with the digits that tell a float32 from its neighbours."""
    return [float(str(value)) for value in values]


def embedding_records(texts: Sequence[str], embeddings: FloatArray) -> Iterator[dict[str, Any]]:
    for text, embedding in zip(texts, embeddings, strict=True):
        yield {"text": text, "embedding": shortest(embedding)}


def vector_records(
    texts: Sequence[str], vectors: SparseVectors, word: Callable[[int], str] | None
) -> Iterator[dict[str, Any]]:
    """``word`` names a component."""
    for text, vector in zip(texts, vectors, strict=True):
        indices = vector.indices.tolist()
        yield {
            "text": text,
            "words": [word(i) for i in indices] if word else None,
            "indices": indices,
            "values": shortest(vector.values),
        }


def _write_lines(file: IO[bytes], records: Iterable[Mapping[str, Any]]) -> None:
    for line in json_lines(records):
        file.write(line.encode())


EMBEDDING_FORMATS = ("npy", "npz", "jsonl", "safetensors")
VECTOR_FORMATS = ("npz", "jsonl", "safetensors")


def write_embeddings(file: IO[bytes], format: str, texts: Sequence[str], embeddings: FloatArray) -> None:
    """``format`` is one of :data:`EMBEDDING_FORMATS`; ``npz`` and ``jsonl`` hold the texts too.

    The ``texts`` of an ``npz`` are the bytes of a JSON list: in an array of strings each would take the longest's room.
    """
    match format:
        case "npy":
            np.save(file, embeddings)
        case "npz":
            listed = json.dumps(list(texts), ensure_ascii=False).encode()
            np.savez(file, embeddings=embeddings, texts=np.frombuffer(listed, np.uint8))
        case "jsonl":
            _write_lines(file, embedding_records(texts, embeddings))
        case "safetensors":
            mx.save_safetensors(file, {"embeddings": mx.array(embeddings)})  # type: ignore[arg-type]


def write_vectors(
    file: IO[bytes], format: str, texts: Sequence[str], vectors: SparseVectors, word: Callable[[int], str] | None
) -> None:
    """``format`` is one of :data:`VECTOR_FORMATS`; ``npz`` is what ``scipy.sparse.load_npz`` reads.

    ``safetensors`` holds ``indices``, ``values``, ``indptr`` and the ``shape`` of the matrix, in compressed rows.
    """
    match format:
        case "npz":
            vectors.save(file)
        case "jsonl":
            _write_lines(file, vector_records(texts, vectors, word))
        case "safetensors":
            parts = {"indices": vectors.indices, "values": vectors.values, "indptr": vectors.indptr}
            arrays = {name: mx.array(part) for name, part in parts.items()}  # type: ignore[arg-type]
            shape = mx.array(vectors.shape, mx.int64)
            mx.save_safetensors(file, {**arrays, "shape": shape})  # type: ignore[arg-type]

"""What encoders refuse: numbers and types that would otherwise be taken for others, or fail without words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from mlx_tessl.encoders import SentenceEncoder, SparseEncoder, encode_to_shards


@pytest.fixture
def dense(tiny: Path) -> SentenceEncoder:
    return SentenceEncoder(tiny)


@pytest.fixture
def sparse(tiny: Path) -> SparseEncoder:
    return SparseEncoder(tiny)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda e: e.encode(["sea"], batch_size=1.5), "batch_size is 1.5; it must be an integer"),
        (lambda e: e.encode([], batch_size=0), "batch_size is 0; it must be positive"),
        (lambda e: e.encode_stream(["sea"], batch_size=-1), "batch_size is -1"),
        (lambda e: e.encode_ids([[1.5, 2]]), "sequence 0 must be of integers"),
        (lambda e: e.encode_ids([[1], ["2"]]), "sequence 1 must be of integers"),
        (lambda e: e.encode_ids([1, 2]), "sequence 0 must be of integers"),
        (lambda e: e.encode_ids(np.ones((2, 3))), "sequence 0 must be of integers"),
        (lambda e: e.encode([b"sea"]), "text 0 is a bytes"),
        (lambda e: e.encode(["sea", "\ud800"]), "text 1 is no Unicode"),
        (lambda e: e.encode("sea", prompt=5), "prompt is a int; it must be a str"),
        (lambda e: e.encode("sea", prompt="\ud800"), "prompt is no Unicode"),
    ],
)
def test_both(dense: SentenceEncoder, sparse: SparseEncoder, call: Callable[[Any], Any], message: str) -> None:
    for encoder in (dense, sparse):
        with pytest.raises(ValueError, match=rf"^\[{type(encoder).__name__}\] {message}"):
            call(encoder)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_seq_length": 0}, "max_seq_length is 0; it must be positive"),
        ({"max_seq_length": 1.5}, "max_seq_length is 1.5; it must be an integer"),
        ({"dtype": mx.int32}, "dtype is mlx.core.int32; it must be float32, float16 or bfloat16"),
        ({"prompts": {"query": 5}, "default_prompt_name": "query"}, "the prompt 'query' is a int"),
    ],
)
def test_constructors(tiny: Path, options: dict[str, Any], message: str) -> None:
    for encoder in (SentenceEncoder, SparseEncoder):
        with pytest.raises(ValueError, match=rf"^\[{encoder.__name__}\] {message}"):
            encoder(tiny, **options).encode("sea")


@pytest.mark.parametrize(
    ("value", "message"),
    [(0, "must be positive"), (-3, "must be positive"), (1.5, "must be an integer"), (49, "must be at most 48")],
)
def test_truncate_dim(dense: SentenceEncoder, value: Any, message: str) -> None:
    for call in (
        lambda: dense.encode(["sea"], truncate_dim=value),
        lambda: dense.encode([], truncate_dim=value),
        lambda: SentenceEncoder(dense.folder, truncate_dim=value),
    ):
        with pytest.raises(ValueError, match=rf"^\[SentenceEncoder\] truncate_dim is {value}; it {message}"):
            call()
    assert dense.encode(["sea"], truncate_dim=48).shape == (1, 48)


@pytest.mark.parametrize(
    ("a", "b", "message"),
    [
        (np.zeros((2, 3, 48)), np.zeros((2, 48)), r"a has shape \(2, 3, 48\)"),
        (np.zeros(48), np.zeros((1, 1, 48)), r"b has shape \(1, 1, 48\)"),
        (np.zeros((2, 48)), np.zeros((2, 47)), "a has embeddings of 48 components, b of 47"),
    ],
)
def test_dense_similarity(dense: SentenceEncoder, a: Any, b: Any, message: str) -> None:
    for name in ("cosine", "dot", "euclidean", "manhattan"):
        dense.similarity_fn_name = name
        with pytest.raises(ValueError, match=rf"^\[SentenceEncoder\] {message}"):
            dense.similarity(a, b)


def test_sparse(sparse: SparseEncoder) -> None:
    with pytest.raises(ValueError, match=r"^\[SparseEncoder\] max_active_dims is 0; it must be positive"):
        SparseEncoder(sparse.folder, max_active_dims=0)
    with pytest.raises(ValueError, match=r"^\[SparseEncoder\] max_active_dims is 2.5; it must be an integer"):
        sparse.encode("sea", max_active_dims=2.5)  # type: ignore[arg-type]
    vector = sparse.encode("sea")
    for call, name in (
        (lambda: sparse.decode(vector.to_dense()), "embeddings"),  # type: ignore[call-overload]
        (lambda: sparse.similarity(vector.to_dense(), vector), "a"),  # type: ignore[arg-type]
        (lambda: sparse.similarity(vector, None), "b"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=rf"^\[SparseEncoder\] {name} is a .*must be a SparseVector or"):
            call()
    with pytest.raises(ValueError, match=r"^\[SparseEncoder\] top_k is 0"):
        sparse.decode(sparse.encode([]), top_k=0)


def test_shards(dense: SentenceEncoder, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ValueError, match=r"^\[encode_to_shards\] .*file is a file; it must be a folder"):
        encode_to_shards(dense, ["sea"], tmp_path / "file")
    with pytest.raises(ValueError, match=r"^\[encode_to_shards\] .*file is a file; it must be a folder"):
        encode_to_shards(dense, ["sea"], tmp_path / "file" / "below")
    with pytest.raises(ValueError, match="text 1 is a NoneType; it must be a str"):
        encode_to_shards(dense, ["sea", None], tmp_path / "out")  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"^\[encode_to_shards\] shard_size is 2.5; it must be an integer"):
        encode_to_shards(dense, ["sea"], tmp_path / "out", shard_size=2.5)  # type: ignore[arg-type]

"""Learned-sparse text vectors (SPLADE: Formal et al. 2021, arXiv:2107.05720)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ..models.checkpoint import read_json
from ..models.groups import Rows
from ..ops import sparse_max_pool
from ..ops.sparse_max_pool import SparseActivation, SparsePooling
from .base import DOCUMENT_PROMPTS, QUERY_PROMPTS, Encoder
from .batching import batches
from .checks import checked_count
from .sparse_vectors import SparseVector, SparseVectors
from .tokenization import TooLong

# What sentence-transformers calls the function of which the logarithm is taken, as sparse_max_pool calls all of it.
_ACTIVATIONS: dict[str, SparseActivation] = {"relu": "log1p_relu", "log1p_relu": "log1p_log1p_relu"}


@dataclass(frozen=True)
class SpladePooling:
    """How :func:`mlx_tessl.sparse_max_pool` is to pool."""

    pooling: SparsePooling = "max"
    activation: SparseActivation = "log1p_relu"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SpladePooling:
        """From the config of sentence-transformers' ``SpladePooling``. Raises ``ValueError`` for unknown values."""
        strategy = config.get("pooling_strategy", "max")
        function = config.get("activation_function", "relu")
        if strategy not in ("max", "sum"):
            raise ValueError(f"[pooling] pooling_strategy is {strategy!r}; it must be 'max' or 'sum'")
        if function not in _ACTIVATIONS:
            raise ValueError(f"[pooling] activation_function is {function!r}; it must be 'relu' or 'log1p_relu'")
        return cls(strategy, _ACTIVATIONS[function])


class SparseEncoder(Encoder[SparseVectors]):
    """Sparse vectors over the vocabulary with a masked LM, BERT or DistilBERT: ``sentence_transformers.SparseEncoder``.

    Component ``w`` of a text's vector is ``max over tokens of log(1 + relu(logit of word w))``; padding contributes 0.
    A folder with a ``SpladePooling`` module may ask for the sum instead, or for the logarithm of the logarithm.

    Args:
        path_or_id: A checkpoint folder, or a Hugging Face hub id (needs ``huggingface_hub``).
        max_active_dims: Keep this many largest components of each vector only.
        similarity_fn_name: ``"dot"`` or ``"cosine"``; by default the folder's, else dot.
        max_seq_length, prompts, default_prompt_name, too_long, dtype, revision: As in :class:`SentenceEncoder`.

    Raises:
        ValueError: The folder or hub id does not exist, is no such checkpoint, or asks for what is not computed here.
    """

    _head = "masked_lm"
    _task = "fill-mask"

    def __init__(
        self,
        path_or_id: str | os.PathLike[str],
        *,
        max_active_dims: int | None = None,
        max_seq_length: int | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        too_long: TooLong = "error",
        similarity_fn_name: str | None = None,
        dtype: mx.Dtype | None = None,
        revision: str | None = None,
    ):
        super().__init__(
            path_or_id,
            max_seq_length=max_seq_length,
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            too_long=too_long,
            dtype=dtype,
            revision=revision,
        )
        if max_active_dims is not None:
            checked_count(self._name, "max_active_dims", max_active_dims)
        self.max_active_dims = max_active_dims
        self.similarity_fn_name = similarity_fn_name or self._settings.similarity or "dot"
        self.pooling = SpladePooling()
        for module in self._after_transformer:
            if module.kind != "SpladePooling":
                raise ValueError(
                    f"[SparseEncoder] {self.folder} has a module {module.kind}, which is not computed here"
                )
            self.pooling = SpladePooling.from_config(read_json(module.folder / "config.json"))

    @property
    def embedding_dimension(self) -> int:
        """Components of a vector: the words of the vocabulary."""
        return int(self.model.args.vocab_size)

    @overload
    def encode(  # type: ignore[overload-overlap]  # a str is a sequence of str, but the first signature comes first
        self,
        texts: str,
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 128,
        max_active_dims: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
        min_weight: float = 0.0,
    ) -> SparseVector: ...

    @overload
    def encode(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 128,
        max_active_dims: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
        min_weight: float = 0.0,
    ) -> SparseVectors: ...

    def encode(
        self,
        texts: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 128,
        max_active_dims: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
        min_weight: float = 0.0,
    ) -> SparseVector | SparseVectors:
        """Encodes texts.

        Args:
            texts: One text or several; they are read a few thousand at a time.
            prompt_name: Name of the prompt to put before each text.
            prompt: The prompt itself; it goes before ``prompt_name``.
            batch_size: Most texts of a batch. Batches are of texts of like length.
            max_active_dims: Keep this many largest components; by default the encoder's ``max_active_dims``.
            show_progress_bar: A bar on standard error; by default when the logger ``mlx_tessl`` is at INFO. A ``tqdm``
                of the caller's is advanced by texts.
            min_weight: Keep components above this only.

        Returns:
            The vectors in the order of the texts, or one vector for one text. A row does not depend on the others
            but for rounding, as in :meth:`SentenceEncoder.encode`.

        Raises:
            ValueError: A text is not a ``str`` or is too long, the prompt name is unknown, or there is no tokenizer.
        """
        options = (batch_size, max_active_dims, min_weight)
        chunks = self._stream_texts(self._several(texts), prompt_name, prompt, options, show_progress_bar)
        vectors = SparseVectors.concatenate(list(chunks), self.embedding_dimension)
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_stream(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 128,
        max_active_dims: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
        min_weight: float = 0.0,
    ) -> Iterator[SparseVectors]:
        """:meth:`encode` of texts without end: yields the vectors of a few thousand texts at a time.

        Texts are read as they are needed, and nothing of them is kept. Arguments and errors are those of
        :meth:`encode`; an error comes when its text does.
        """
        options = (batch_size, max_active_dims, min_weight)
        return self._stream_texts(self._several(texts), prompt_name, prompt, options, show_progress_bar)

    def encode_query(self, texts: Any, prompt_name: str | None = None, **options: Any) -> Any:
        """:meth:`encode` with the prompt ``query``, when there is one and no other is named."""
        return self.encode(texts, self._task_prompt(QUERY_PROMPTS, prompt_name, options), **options)

    def encode_document(self, texts: Any, prompt_name: str | None = None, **options: Any) -> Any:
        """:meth:`encode` with the prompt ``document``, ``passage`` or ``corpus``, if there is one and none is named."""
        return self.encode(texts, self._task_prompt(DOCUMENT_PROMPTS, prompt_name, options), **options)

    def encode_ids(
        self,
        sequences: Iterable[Sequence[int]],
        batch_size: int = 128,
        max_active_dims: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
        min_weight: float = 0.0,
    ) -> SparseVectors:
        """Encodes sequences of token ids, special ones included, as :meth:`encode` encodes texts.

        Works without tokenizer files. An empty sequence gives an empty vector.

        Raises:
            ValueError: A sequence is too long, or holds an id outside the vocabulary.
        """
        encode = self._pooler(batch_size, max_active_dims, min_weight)
        chunks = self._stream(sequences, self._check_ids, encode, show_progress_bar)
        return SparseVectors.concatenate(list(chunks), self.embedding_dimension)

    @overload
    def decode(self, embeddings: SparseVector, top_k: int | None = None) -> list[tuple[str, float]]: ...

    @overload
    def decode(self, embeddings: SparseVectors, top_k: int | None = None) -> list[list[tuple[str, float]]]: ...

    def decode(
        self, embeddings: SparseVector | SparseVectors, top_k: int | None = None
    ) -> list[tuple[str, float]] | list[list[tuple[str, float]]]:
        """The words of a vector, or of each, with their weights, heaviest first.

        Args:
            embeddings: What :meth:`encode` returned.
            top_k: Most words of a vector; ``None`` for all.

        Raises:
            ValueError: There is no tokenizer, ``top_k`` is not positive, or ``embeddings`` are not sparse vectors.
        """
        self._check_vectors("embeddings", embeddings)
        if top_k is not None:
            checked_count(self._name, "top_k", top_k)
        if isinstance(embeddings, SparseVectors):
            return [self.decode(row, top_k) for row in embeddings]
        if self.tokenizer is None:
            raise ValueError(f"[SparseEncoder] {self.folder} has no tokenizer.json and no vocab.txt to name words with")
        order = np.argsort(-embeddings.values, kind="stable")[:top_k]
        return [(self.tokenizer.word(int(embeddings.indices[i])), float(embeddings.values[i])) for i in order]

    def similarity(self, a: SparseVector | SparseVectors, b: SparseVector | SparseVectors) -> npt.NDArray[np.float32]:
        """Scores ``[len(a), len(b)]`` of every vector of ``a`` with every one of ``b``, by ``similarity_fn_name``.

        Raises:
            ValueError: ``similarity_fn_name`` is neither ``"dot"`` nor ``"cosine"``, or ``a`` or ``b`` is no vector.
        """
        if self.similarity_fn_name not in ("dot", "cosine"):
            raise ValueError(
                f"[SparseEncoder] similarity_fn_name is {self.similarity_fn_name!r}; it must be one of dot, cosine"
            )
        self._check_vectors("a", a)
        self._check_vectors("b", b)
        x, y = (v if isinstance(v, SparseVectors) else SparseVectors.from_rows([v], v.size) for v in (a, b))
        if self.similarity_fn_name == "cosine":
            x, y = x.normalized(), y.normalized()
        if len(x) <= len(y):
            return np.array([y.dot(row) for row in x], np.float32).reshape(len(x), len(y))
        return np.array([x.dot(row) for row in y], np.float32).reshape(len(y), len(x)).T

    def _check_vectors(self, argument: str, value: Any) -> None:
        if not isinstance(value, SparseVector | SparseVectors):
            kind = type(value).__name__
            raise ValueError(f"[{self._name}] {argument} is a {kind}; it must be a SparseVector or SparseVectors")

    def _stream_texts(
        self,
        texts: Iterable[str],
        prompt_name: str | None,
        prompt: str | None,
        options: tuple[int, int | None, float],
        show_progress_bar: bool | tqdm | None,
    ) -> Iterator[SparseVectors]:
        prefix = self._resolve_prompt(prompt_name, prompt)

        def tokenize(chunk: Sequence[str], first: int) -> list[list[int]]:
            return self._tokenize(chunk, first, prefix)

        return self._stream(texts, tokenize, self._pooler(*options), show_progress_bar)

    def _pooler(
        self, batch_size: int, max_active_dims: int | None, min_weight: float
    ) -> Callable[[list[list[int]], Callable[[int], object]], SparseVectors]:
        """What encodes a chunk of sequences."""
        batch_size = checked_count(self._name, "batch_size", batch_size)
        most = max_active_dims if max_active_dims is not None else self.max_active_dims
        if most is not None:
            most = checked_count(self._name, "max_active_dims", most)
        if not min_weight >= 0:
            raise ValueError(f"[SparseEncoder] min_weight is {min_weight}; it must not be negative")

        def encode(sequences: list[list[int]], done: Callable[[int], object]) -> SparseVectors:
            rows: list[Any] = [None] * len(sequences)
            for places, pooled in self._forwards(sequences, self._pool, batch_size, done):
                for place, row in zip(places, np.array(pooled), strict=True):
                    rows[place] = SparseVector.from_dense(row, most, min_weight)
            return SparseVectors.from_rows(rows, self.embedding_dimension)

        return encode

    def _batches(self, lengths: Sequence[int], batch_size: int, max_tokens: int) -> Iterator[list[list[int]]]:
        """Of one group: pooling over the vocabulary goes over all its weights for a group."""
        return ([rows] for rows in batches(lengths, batch_size, max_tokens))

    def _pool(self, rows: list[Rows]) -> mx.array:
        """float32 ``[B, V]`` for ``ids [B, T]``, the only rows."""
        ((ids, lengths),) = rows
        weights = sparse_max_pool(
            self.model.features(ids, lengths),
            self.model.decoder_weight,
            self.model.decoder_bias,
            lengths,
            activation=self.pooling.activation,
            pooling=self.pooling.pooling,
        )
        return weights.astype(mx.float32)

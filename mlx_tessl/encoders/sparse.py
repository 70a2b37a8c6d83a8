"""Learned-sparse text vectors (SPLADE: Formal et al. 2021, arXiv:2107.05720)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ..models.checkpoint import read_json
from .base import DOCUMENT_PROMPTS, QUERY_PROMPTS, Encoder
from .sparse_vectors import SparseVector, SparseVectors
from .tokenization import TooLong

# Bytes of logits held at once: what does not fit is pooled a few token positions at a time.
_LOGIT_BYTES = 128 << 20


@dataclass(frozen=True)
class SpladePooling:
    """``log(1 + relu(logits))`` over a row's tokens, by maximum or sum; ``log1p_relu`` takes the logarithm twice."""

    strategy: str = "max"
    activation: str = "relu"

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> SpladePooling:
        """From the config of sentence-transformers' ``SpladePooling``. Raises ``ValueError`` for unknown values."""
        pooling = cls(config.get("pooling_strategy", "max"), config.get("activation_function", "relu"))
        if pooling.strategy not in ("max", "sum"):
            raise ValueError(f"[pooling] pooling_strategy is {pooling.strategy!r}; it must be 'max' or 'sum'")
        if pooling.activation not in ("relu", "log1p_relu"):
            raise ValueError(
                f"[pooling] activation_function is {pooling.activation!r}; it must be 'relu' or 'log1p_relu'"
            )
        return pooling

    def activate(self, logits: mx.array) -> mx.array:
        weights = mx.log1p(mx.maximum(logits.astype(mx.float32), 0))
        return mx.log1p(weights) if self.activation == "log1p_relu" else weights


class SparseEncoder(Encoder[SparseVector]):
    """Sparse vectors over the vocabulary with a BERT masked-LM checkpoint, as ``sentence_transformers.SparseEncoder``.

    Component ``w`` of a text's vector is ``max over tokens of log(1 + relu(logit of word w))``; padding contributes 0.
    A folder with a ``SpladePooling`` module may ask for the sum instead, or for the logarithm of the logarithm.

    Args:
        path_or_id: A checkpoint folder, or a Hugging Face hub id (needs ``huggingface_hub``).
        max_active_dims: Keep this many largest components of each vector only.
        max_seq_length, prompts, default_prompt_name, too_long, revision: As in :class:`SentenceEncoder`.

    Raises:
        ValueError: The folder or hub id does not exist, is no such checkpoint, or asks for what is not computed here.
    """

    _head = "masked_lm"

    def __init__(
        self,
        path_or_id: str | os.PathLike[str],
        *,
        max_active_dims: int | None = None,
        max_seq_length: int | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        too_long: TooLong = "error",
        revision: str | None = None,
    ):
        super().__init__(
            path_or_id,
            max_seq_length=max_seq_length,
            prompts=prompts,
            default_prompt_name=default_prompt_name,
            too_long=too_long,
            revision=revision,
        )
        self.max_active_dims = max_active_dims
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
        batch_size: int = 32,
        max_active_dims: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> SparseVector: ...

    @overload
    def encode(
        self,
        texts: Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        max_active_dims: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> SparseVectors: ...

    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        max_active_dims: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> SparseVector | SparseVectors:
        """Encodes texts.

        Args:
            texts: One text or several.
            prompt_name: Name of the prompt to put before each text.
            prompt: The prompt itself; it goes before ``prompt_name``.
            batch_size: Most texts of a batch. Batches are of texts of like length.
            max_active_dims: Keep this many largest components; by default the encoder's ``max_active_dims``.
            show_progress_bar: A bar on standard error; by default when the logger ``mlx_tessl`` is at INFO.

        Returns:
            A :class:`SparseVector` for one text, :class:`SparseVectors` for several. A row does not depend on the
            others.

        Raises:
            ValueError: A text is not a ``str`` or is too long, the prompt name is unknown, or there is no tokenizer.
        """
        prefix = self._resolve_prompt(prompt_name, prompt)
        sequences = self._tokenize(texts, prefix)
        vectors = self._encode_all(sequences, batch_size, max_active_dims, show_progress_bar)
        return vectors[0] if isinstance(texts, str) else vectors

    def encode_query(self, texts: Any, prompt_name: str | None = None, **options: Any) -> Any:
        """:meth:`encode` with the prompt ``query``, when there is one and no other is named."""
        return self.encode(texts, self._task_prompt(QUERY_PROMPTS, prompt_name, options), **options)

    def encode_document(self, texts: Any, prompt_name: str | None = None, **options: Any) -> Any:
        """:meth:`encode` with the prompt ``document``, ``passage`` or ``corpus``, if there is one and none is named."""
        return self.encode(texts, self._task_prompt(DOCUMENT_PROMPTS, prompt_name, options), **options)

    def encode_ids(
        self,
        sequences: Sequence[Sequence[int]],
        batch_size: int = 32,
        max_active_dims: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> SparseVectors:
        """Encodes sequences of token ids, special ones included, as :meth:`encode` encodes texts.

        Works without tokenizer files. An empty sequence gives an empty vector.

        Raises:
            ValueError: A sequence is too long, or holds an id outside the vocabulary.
        """
        return self._encode_all(self._check_ids(sequences), batch_size, max_active_dims, show_progress_bar)

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
            ValueError: There is no tokenizer, or ``top_k`` is not positive.
        """
        if isinstance(embeddings, SparseVectors):
            return [self.decode(row, top_k) for row in embeddings]
        if self.tokenizer is None:
            raise ValueError(f"[SparseEncoder] {self.folder} has no tokenizer.json and no vocab.txt to name words with")
        if top_k is not None and top_k < 1:
            raise ValueError(f"[SparseEncoder] top_k is {top_k}; it must be positive")
        order = np.argsort(-embeddings.values, kind="stable")[:top_k]
        return [(self.tokenizer.word(int(embeddings.indices[i])), float(embeddings.values[i])) for i in order]

    def similarity(self, a: SparseVector | SparseVectors, b: SparseVector | SparseVectors) -> npt.NDArray[np.float32]:
        """Inner products ``[len(a), len(b)]`` of every vector of ``a`` with every one of ``b``."""
        x, y = (v if isinstance(v, SparseVectors) else SparseVectors.from_rows([v], v.size) for v in (a, b))
        if len(x) <= len(y):
            return np.array([y.dot(row) for row in x], np.float32).reshape(len(x), len(y))
        return np.array([x.dot(row) for row in y], np.float32).reshape(len(y), len(x)).T

    def _encode_all(
        self,
        sequences: Sequence[Sequence[int]],
        batch_size: int,
        max_active_dims: int | None,
        show_progress_bar: bool | None,
    ) -> SparseVectors:
        most = max_active_dims if max_active_dims is not None else self.max_active_dims
        if most is not None and most < 1:
            raise ValueError(f"[SparseEncoder] max_active_dims is {most}; it must be positive")

        def rows_of(pooled: mx.array) -> list[SparseVector]:
            return [SparseVector.from_dense(row, most) for row in np.array(pooled)]

        rows = self._run(sequences, self._pool, rows_of, batch_size, show_progress_bar)
        return SparseVectors.from_rows(rows, self.embedding_dimension)

    def _pool(self, ids: mx.array, lengths: mx.array | None) -> mx.array:
        """float32 ``[B, V]`` for ``ids [B, T]``."""
        pool = self._max_pool if self.pooling.strategy == "max" else self._sum_pool
        return pool(self.model.features(ids, lengths), lengths)

    def _max_pool(self, features: mx.array, lengths: mx.array | None) -> mx.array:
        """The activation is monotonic, so it is applied to the largest logit alone.

        Padding becomes a copy of the row's first token, which changes no maximum, so that logits need no mask.
        """
        if lengths is not None:
            counts = (mx.arange(features.shape[1]) < lengths[:, None])[..., None]
            features = mx.where(counts, features, features[:, :1])
        largest = None
        for part in self._parts(features):
            logits = self.model.decode(part).max(axis=1)
            largest = logits if largest is None else mx.maximum(largest, logits)
        assert largest is not None
        weights = self.pooling.activate(largest)
        return weights if lengths is None else mx.where((lengths > 0)[:, None], weights, 0)

    def _sum_pool(self, features: mx.array, lengths: mx.array | None) -> mx.array:
        total = mx.array(0.0)
        first = 0
        for part in self._parts(features):
            weights = self.pooling.activate(self.model.decode(part))
            if lengths is not None:
                positions = mx.arange(first, first + part.shape[1])
                weights = mx.where((positions < lengths[:, None])[..., None], weights, 0)
            total = total + weights.sum(axis=1)
            first += part.shape[1]
        return total

    def _parts(self, features: mx.array) -> list[mx.array]:
        """``features [B, T, H]`` cut along T so that the logits of a part fit in ``_LOGIT_BYTES``."""
        rows, tokens, _ = features.shape
        step = max(1, _LOGIT_BYTES // (rows * self.embedding_dimension * features.itemsize))
        return [features[:, start : start + step] for start in range(0, tokens, step)]

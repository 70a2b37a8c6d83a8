"""Dense sentence embeddings."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, overload

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from ..models.checkpoint import read_json
from ..ops import matmul
from .base import DOCUMENT_PROMPTS, QUERY_PROMPTS, Encoder, logger
from .pooling import Dense, Pooling, normalize
from .tokenization import TooLong

FloatArray = npt.NDArray[np.float32]


class SentenceEncoder(Encoder[FloatArray]):
    """Embeds texts with a BERT checkpoint, as ``sentence_transformers.SentenceTransformer`` does.

    Reads a sentence-transformers folder: its pooling (mean, cls, max), Dense and Normalize modules, ``max_seq_length``
    and prompts. A plain checkpoint gets mean pooling, and a log line says so.

    Args:
        path_or_id: A checkpoint folder, or a Hugging Face hub id (needs ``huggingface_hub``).
        max_seq_length: Most tokens of a text, special ones included; by default what the folder says, else the model's
            positions.
        prompts: Texts to put before a text, by name; by default the folder's.
        default_prompt_name: The prompt when a call names none; by default the folder's.
        too_long: What to do with a longer text: ``"error"`` or ``"truncate"``. ``truncated`` then holds how many texts
            the last call cut, and a warning says so.
        truncate_dim: Keep the first components of each embedding only.
        revision: Branch, tag or commit of a hub id.

    Raises:
        ValueError: The folder or hub id does not exist, is no such checkpoint, or asks for what is not computed here.
    """

    def __init__(
        self,
        path_or_id: str | os.PathLike[str],
        *,
        max_seq_length: int | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        too_long: TooLong = "error",
        truncate_dim: int | None = None,
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
        self.truncate_dim = truncate_dim
        self.similarity_fn_name = self._settings.similarity or "cosine"
        self.pooling = Pooling()
        self._heads: list[Callable[[mx.array], mx.array]] = []
        self._read_modules()

    def _read_modules(self) -> None:
        if self._modules is None:
            logger.warning("%s is a plain checkpoint without modules.json: using mean pooling", self.folder)
        for module in self._after_transformer:
            match module.kind:
                case "Pooling":
                    self.pooling = Pooling.from_config(read_json(module.folder / "config.json"))
                case "Dense":
                    self._heads.append(Dense(module.folder))
                case "Normalize":
                    self._heads.append(normalize)
                case kind:
                    raise ValueError(f"[SentenceEncoder] {self.folder} has a module {kind}, which is not computed here")

    @property
    def embedding_dimension(self) -> int:
        """Components of an embedding before any truncation."""
        return self._embed(mx.zeros((1, 1), mx.int32), None).shape[-1]

    @overload
    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        show_progress_bar: bool | None = None,
        convert_to_numpy: Literal[True] = True,
    ) -> FloatArray: ...

    @overload
    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        show_progress_bar: bool | None = None,
        *,
        convert_to_numpy: Literal[False],
    ) -> mx.array: ...

    def encode(
        self,
        texts: str | Sequence[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 32,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        show_progress_bar: bool | None = None,
        convert_to_numpy: bool = True,
    ) -> FloatArray | mx.array:
        """Embeds texts.

        Args:
            texts: One text or several.
            prompt_name: Name of the prompt to put before each text.
            prompt: The prompt itself; it goes before ``prompt_name``.
            batch_size: Most texts of a batch. Batches are of texts of like length.
            normalize_embeddings: Scale each embedding to unit length, after truncation.
            truncate_dim: Keep this many first components; by default the encoder's ``truncate_dim``.
            show_progress_bar: A bar on standard error; by default when the logger ``mlx_tessl`` is at INFO.
            convert_to_numpy: Return a numpy array, else an ``mx.array``.

        Returns:
            float32 ``[len(texts), D]``, or ``[D]`` for one text. A row does not depend on the others.

        Raises:
            ValueError: A text is not a ``str`` or is too long, the prompt name is unknown, or there is no tokenizer.
        """
        prefix = self._resolve_prompt(prompt_name, prompt)
        sequences = self._tokenize(texts, prefix)
        prompt_tokens = self.tokenizer.count_as_prefix(prefix) if self.tokenizer and prefix else 0
        embeddings = self._embed_all(
            sequences, prompt_tokens, batch_size, normalize_embeddings, truncate_dim, show_progress_bar
        )
        embeddings = embeddings[0] if isinstance(texts, str) else embeddings
        return embeddings if convert_to_numpy else mx.array(embeddings)

    def encode_query(self, texts: str | Sequence[str], prompt_name: str | None = None, **options: Any) -> FloatArray:
        """:meth:`encode` with the prompt ``query``, when there is one and no other is named."""
        prompt_name = self._task_prompt(QUERY_PROMPTS, prompt_name, options)
        embeddings: FloatArray = self.encode(texts, prompt_name, **options)
        return embeddings

    def encode_document(self, texts: str | Sequence[str], prompt_name: str | None = None, **options: Any) -> FloatArray:
        """:meth:`encode` with the prompt ``document``, ``passage`` or ``corpus``, if there is one and none is named."""
        prompt_name = self._task_prompt(DOCUMENT_PROMPTS, prompt_name, options)
        embeddings: FloatArray = self.encode(texts, prompt_name, **options)
        return embeddings

    def encode_ids(
        self,
        sequences: Sequence[Sequence[int]],
        batch_size: int = 32,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        show_progress_bar: bool | None = None,
    ) -> FloatArray:
        """Embeds sequences of token ids, special ones included, as :meth:`encode` embeds texts.

        Works without tokenizer files. An empty sequence gives zeros.

        Raises:
            ValueError: A sequence is too long, or holds an id outside the vocabulary.
        """
        checked = self._check_ids(sequences)
        return self._embed_all(checked, 0, batch_size, normalize_embeddings, truncate_dim, show_progress_bar)

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
        """Scores ``[len(a), len(b)]`` of ``a``'s embeddings with ``b``'s: cosine, unless the folder says dot.

        Args:
            a: ``[n, D]`` or ``[D]``.
            b: ``[m, D]`` or ``[D]``.

        Raises:
            ValueError: The folder's ``similarity_fn_name`` is another than those two.
        """
        if self.similarity_fn_name not in ("cosine", "dot"):
            raise ValueError(
                f"[SentenceEncoder] similarity_fn_name is {self.similarity_fn_name!r}; it must be 'cosine' or 'dot'"
            )
        x, y = (mx.array(np.atleast_2d(np.asarray(side, np.float32))) for side in (a, b))
        if self.similarity_fn_name == "cosine":
            x, y = normalize(x), normalize(y)
        return np.array(matmul(x, y.T))

    def _embed(self, ids: mx.array, lengths: mx.array | None, prompt_tokens: int = 0) -> mx.array:
        embeddings = self.pooling(self.model(ids, lengths), lengths, prompt_tokens)
        for head in self._heads:
            embeddings = head(embeddings)
        return embeddings

    def _embed_all(
        self,
        sequences: Sequence[Sequence[int]],
        prompt_tokens: int,
        batch_size: int,
        normalize_embeddings: bool,
        truncate_dim: int | None,
        show_progress_bar: bool | None,
    ) -> FloatArray:
        dimension = truncate_dim if truncate_dim is not None else self.truncate_dim
        if dimension is not None and dimension < 1:
            raise ValueError(f"[SentenceEncoder] truncate_dim is {dimension}; it must be positive")

        def forward(ids: mx.array, lengths: mx.array | None) -> mx.array:
            embeddings = self._embed(ids, lengths, prompt_tokens)[:, :dimension]
            return normalize(embeddings) if normalize_embeddings else embeddings

        rows = self._run(
            sequences, forward, lambda embeddings: list(np.array(embeddings)), batch_size, show_progress_bar
        )
        if not rows:
            width = self.embedding_dimension
            return np.zeros((0, width if dimension is None else min(dimension, width)), np.float32)
        return np.stack(rows)

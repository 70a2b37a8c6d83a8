"""Dense sentence embeddings."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, Literal, overload

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from ..models.checkpoint import read_json
from ..models.groups import Rows
from .base import DOCUMENT_PROMPTS, QUERY_PROMPTS, Encoder, logger
from .batching import grouped_batches
from .checks import checked_count
from .pooling import Dense, Pooling, normalize
from .similarity import FUNCTIONS, FloatArray
from .tokenization import TooLong


class SentenceEncoder(Encoder[FloatArray]):
    """Embeds texts as ``sentence_transformers.SentenceTransformer`` does, with BERT, DistilBERT and EmbeddingGemma.

    Reads a sentence-transformers folder: its pooling (mean, cls, max), Dense and Normalize modules, ``max_seq_length``,
    prompts and similarity. A plain checkpoint gets mean pooling, and a log line says so.

    Args:
        path_or_id: A checkpoint folder, or a Hugging Face hub id (needs ``huggingface_hub``).
        max_seq_length: Most tokens of a text, special ones included; by default what the folder says, else the model's
            positions.
        prompts: Texts to put before a text, by name; by default the folder's.
        default_prompt_name: The prompt when a call names none; by default the folder's.
        too_long: What to do with a longer text: ``"error"`` or ``"truncate"``. ``truncated`` then holds how many texts
            the last call cut, and a warning says so.
        truncate_dim: Keep the first components of each embedding only (Matryoshka).
        similarity_fn_name: ``"cosine"``, ``"dot"``, ``"euclidean"`` or ``"manhattan"``; by default the folder's, else
            cosine.
        dtype: What the weights are converted to, ``mx.bfloat16`` for example; by default they stay as they are.
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
        self.truncate_dim = truncate_dim
        self.similarity_fn_name = similarity_fn_name or self._settings.similarity or "cosine"
        self.pooling = Pooling()
        self._heads: list[Callable[[mx.array], mx.array]] = []
        self._read_modules()
        self._dimension(truncate_dim)

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
        return self._embed([(mx.zeros((1, 1), mx.int32), None)]).shape[-1]

    @overload
    def encode(
        self,
        texts: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 128,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
        convert_to_numpy: Literal[True] = True,
    ) -> FloatArray: ...

    @overload
    def encode(
        self,
        texts: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 128,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
        *,
        convert_to_numpy: Literal[False],
    ) -> mx.array: ...

    def encode(
        self,
        texts: str | Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 128,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
        convert_to_numpy: bool = True,
    ) -> FloatArray | mx.array:
        """Embeds texts.

        Args:
            texts: One text or several; they are read a few thousand at a time.
            prompt_name: Name of the prompt to put before each text.
            prompt: The prompt itself; it goes before ``prompt_name``.
            batch_size: Most texts of a batch. Only texts of like length are padded, to the longest of them.
            normalize_embeddings: Scale each embedding to unit length, after truncation.
            truncate_dim: Keep this many first components; by default the encoder's ``truncate_dim``.
            show_progress_bar: A bar on standard error; by default when the logger ``mlx_tessl`` is at INFO. A ``tqdm``
                of the caller's is advanced by texts.
            convert_to_numpy: Return a numpy array, else an ``mx.array``.

        Returns:
            float32 ``[len(texts), D]``, or ``[D]`` for one text. Padding is never seen; but which texts share a batch
            decides how sums are cut, so that a row may differ from that of the text alone by rounding: by up to 2e-7
            of a unit-length row in float32.

        Raises:
            ValueError: A text is not a ``str``, is no Unicode or is too long, the prompt name is unknown, there is no
                tokenizer, ``batch_size`` is not positive, or ``truncate_dim`` not in ``1..embedding_dimension``.
        """
        options = (batch_size, normalize_embeddings, truncate_dim)
        items = self._several(texts)
        chunks = self._stream_texts(items, prompt_name, prompt, options, show_progress_bar)
        embeddings = self._joined(chunks, items, truncate_dim)
        embeddings = embeddings[0] if isinstance(texts, str) else embeddings
        return embeddings if convert_to_numpy else mx.array(embeddings)

    @overload
    def encode_query(
        self,
        texts: str | Iterable[str],
        prompt_name: str | None = None,
        *,
        convert_to_numpy: Literal[False],
        **options: Any,
    ) -> mx.array: ...

    @overload
    def encode_query(
        self, texts: str | Iterable[str], prompt_name: str | None = None, **options: Any
    ) -> FloatArray: ...

    def encode_query(self, texts: str | Iterable[str], prompt_name: str | None = None, **options: Any) -> Any:
        """:meth:`encode` with the prompt ``query``, when there is one and no other is named."""
        return self.encode(texts, self._task_prompt(QUERY_PROMPTS, prompt_name, options), **options)

    @overload
    def encode_document(
        self,
        texts: str | Iterable[str],
        prompt_name: str | None = None,
        *,
        convert_to_numpy: Literal[False],
        **options: Any,
    ) -> mx.array: ...

    @overload
    def encode_document(
        self, texts: str | Iterable[str], prompt_name: str | None = None, **options: Any
    ) -> FloatArray: ...

    def encode_document(self, texts: str | Iterable[str], prompt_name: str | None = None, **options: Any) -> Any:
        """:meth:`encode` with the prompt ``document``, ``passage`` or ``corpus``, if there is one and none is named."""
        return self.encode(texts, self._task_prompt(DOCUMENT_PROMPTS, prompt_name, options), **options)

    def encode_stream(
        self,
        texts: Iterable[str],
        prompt_name: str | None = None,
        prompt: str | None = None,
        batch_size: int = 128,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
    ) -> Iterator[FloatArray]:
        """:meth:`encode` of texts without end: yields the embeddings ``[n, D]`` of a few thousand texts at a time.

        Texts are read as they are needed, and nothing of them is kept. Arguments and errors are those of
        :meth:`encode`; an error comes when its text does.
        """
        options = (batch_size, normalize_embeddings, truncate_dim)
        return self._stream_texts(self._several(texts), prompt_name, prompt, options, show_progress_bar)

    def encode_ids(
        self,
        sequences: Iterable[Sequence[int]],
        batch_size: int = 128,
        normalize_embeddings: bool = True,
        truncate_dim: int | None = None,
        show_progress_bar: bool | tqdm | None = None,
    ) -> FloatArray:
        """Embeds sequences of token ids, special ones included, as :meth:`encode` embeds texts.

        Works without tokenizer files. An empty sequence gives zeros.

        Raises:
            ValueError: A sequence is too long, holds an id outside the vocabulary, or what is no integer; and as
                :meth:`encode` for the numbers.
        """
        embed = self._embedder(0, batch_size, normalize_embeddings, truncate_dim)
        chunks = self._stream(sequences, self._check_ids, embed, show_progress_bar)
        return self._joined(chunks, sequences, truncate_dim)

    def similarity(self, a: npt.ArrayLike, b: npt.ArrayLike) -> FloatArray:
        """Scores ``[len(a), len(b)]`` of ``a``'s embeddings with ``b``'s, by ``similarity_fn_name``.

        Distances are negative: the greater score is the more alike.

        Args:
            a: ``[n, D]`` or ``[D]``.
            b: ``[m, D]`` or ``[D]``.

        Raises:
            ValueError: ``similarity_fn_name`` is not one of the four, or the embeddings do not fit.
        """
        if self.similarity_fn_name not in FUNCTIONS:
            raise ValueError(
                f"[SentenceEncoder] similarity_fn_name is {self.similarity_fn_name!r}; "
                f"it must be one of {', '.join(FUNCTIONS)}"
            )
        x, y = (np.atleast_2d(np.asarray(side, np.float32)) for side in (a, b))
        for name, side in (("a", x), ("b", y)):
            if side.ndim != 2:
                raise ValueError(f"[SentenceEncoder] {name} has shape {side.shape}; it must be [n, D] or [D]")
        if x.shape[1] != y.shape[1]:
            raise ValueError(f"[SentenceEncoder] a has embeddings of {x.shape[1]} components, b of {y.shape[1]}")
        return FUNCTIONS[self.similarity_fn_name](x, y)

    def _batches(self, lengths: Sequence[int], batch_size: int, max_tokens: int) -> Iterator[list[list[int]]]:
        return grouped_batches(lengths, batch_size, max_tokens)

    def _embed(self, rows: list[Rows], prompt_tokens: int = 0) -> mx.array:
        hidden = zip(self.model.encode_groups(rows), rows, strict=True)
        embeddings = mx.concatenate([self.pooling(states, lengths, prompt_tokens) for states, (_, lengths) in hidden])
        for head in self._heads:
            embeddings = head(embeddings)
        return embeddings

    def _stream_texts(
        self,
        texts: Iterable[str],
        prompt_name: str | None,
        prompt: str | None,
        options: tuple[int, bool, int | None],
        show_progress_bar: bool | tqdm | None,
    ) -> Iterator[FloatArray]:
        prefix = self._resolve_prompt(prompt_name, prompt)
        prompt_tokens = self.tokenizer.count_as_prefix(prefix) if self.tokenizer and prefix else 0

        def tokenize(chunk: Sequence[str], first: int) -> list[list[int]]:
            return self._tokenize(chunk, first, prefix)

        return self._stream(texts, tokenize, self._embedder(prompt_tokens, *options), show_progress_bar)

    def _embedder(
        self, prompt_tokens: int, batch_size: int, normalize_embeddings: bool, truncate_dim: int | None
    ) -> Callable[[list[list[int]], Callable[[int], object]], FloatArray]:
        """What embeds a chunk of sequences, float32 ``[n, D]``."""
        dimension = self._dimension(truncate_dim)
        batch_size = checked_count(self._name, "batch_size", batch_size)

        def forward(rows: list[Rows]) -> mx.array:
            embeddings = self._embed(rows, prompt_tokens)[:, :dimension]
            return normalize(embeddings) if normalize_embeddings else embeddings

        def embed(sequences: list[list[int]], done: Callable[[int], object]) -> FloatArray:
            result: FloatArray | None = None
            for places, output in self._forwards(sequences, forward, batch_size, done):
                embeddings = np.array(output)
                if result is None:
                    result = np.empty((len(sequences), embeddings.shape[1]), np.float32)
                result[places] = embeddings
            assert result is not None
            return result

        return embed

    def _dimension(self, truncate_dim: int | None) -> int | None:
        dimension = truncate_dim if truncate_dim is not None else self.truncate_dim
        if dimension is None:
            return None
        return checked_count(self._name, "truncate_dim", dimension, self.embedding_dimension)

    def _joined(self, chunks: Iterator[FloatArray], items: Iterable[Any], truncate_dim: int | None) -> FloatArray:
        """All chunks as one array, each let go as soon as it is copied when their total is known beforehand."""
        first = next(chunks, None)
        if first is None:
            return np.zeros((0, self._dimension(truncate_dim) or self.embedding_dimension), np.float32)
        if not isinstance(items, Sized):
            return np.concatenate([first, *chunks])
        if len(items) == len(first):
            for _ in chunks:  # there are none, but the stream ends with what it has to say
                pass
            return first
        result = np.empty((len(items), first.shape[1]), np.float32)
        result[: len(first)] = first
        end = len(first)
        for chunk in chunks:
            result[end : end + len(chunk)] = chunk
            end += len(chunk)
        return result

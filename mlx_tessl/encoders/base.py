"""What dense and sparse encoders share: texts or ids in, batches through the model, results out in order."""

from __future__ import annotations

import logging
import operator
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import nullcontext
from itertools import cycle
from typing import Any, Generic, Literal, TypeVar

import mlx.core as mx
import mlx.nn as nn
from tqdm import tqdm

from ..models import load_model
from ..models.groups import Rows
from .batching import pad
from .checks import checked_count
from .folder import find_folder
from .modules import Module, Settings, read_modules, read_settings
from .tokenization import TextTokenizer, TooLong

logger = logging.getLogger("mlx_tessl")

# Tokens of a batch at most. On a CPU a layer's activations then stay in its last cache; a GPU wants more work.
_MAX_TOKENS = {mx.DeviceType.cpu: 2048, mx.DeviceType.gpu: 16384}

# What is tokenized and sorted by length at once: texts, and characters or ids.
_CHUNK_ROWS = 8192
_CHUNK_SIZE = 1 << 22

# Names of the prompts that encode_query and encode_document take when there are such, the first that is there.
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

Results = TypeVar("Results")
Item = TypeVar("Item", bound=Sized)


_second_cpu_stream = mx.new_thread_local_stream(mx.DeviceType.cpu)


def _streams() -> list[mx.Stream | mx.ThreadLocalStream]:
    """Where batches run in turn. On a CPU two at once: one's single-threaded ops leave no core idle."""
    stream = mx.default_stream(mx.default_device())
    return [stream, _second_cpu_stream] if stream.device.type == mx.DeviceType.cpu else [stream]


class Encoder(Generic[Results]):
    """A checkpoint folder ready to encode; see :class:`SentenceEncoder` and :class:`SparseEncoder`."""

    _head: Literal["masked_lm"] | None = None
    _task = "feature-extraction"  # of the Transformer module, as sentence-transformers names it

    def __init__(
        self,
        path_or_id: str | os.PathLike[str],
        *,
        max_seq_length: int | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        too_long: TooLong = "error",
        dtype: mx.Dtype | None = None,
        revision: str | None = None,
    ):
        if too_long not in ("error", "truncate"):
            raise ValueError(f"[{self._name}] too_long is {too_long!r}; it must be 'error' or 'truncate'")
        if dtype is not None and dtype not in (mx.float32, mx.float16, mx.bfloat16):
            raise ValueError(f"[{self._name}] dtype is {dtype}; it must be float32, float16 or bfloat16")
        if max_seq_length is not None:
            checked_count(self._name, "max_seq_length", max_seq_length)
        self.folder = find_folder(path_or_id, revision)
        self._modules = read_modules(self.folder)
        transformer = self._modules[0].folder if self._modules else self.folder
        self._settings: Settings = read_settings(self.folder, transformer)
        if self._settings.task not in (None, self._task):
            task = self._settings.task
            raise ValueError(f"[{self._name}] transformer_task of {transformer} is {task!r}; it must be {self._task!r}")
        self.model: nn.Module = load_model(transformer, head=self._head, dtype=dtype)
        self.tokenizer = TextTokenizer.from_folder(transformer, self._settings.lowercase)
        self.prompts = self._settings.prompts if prompts is None else dict(prompts)
        self.default_prompt_name = default_prompt_name or self._settings.default_prompt_name
        self.too_long = too_long
        self.dtype = dtype
        settled = self._settings.max_seq_length or self._positions
        self.max_seq_length = settled if max_seq_length is None else max_seq_length
        self.truncated = 0
        if self.default_prompt_name is not None and self.default_prompt_name not in self.prompts:
            raise ValueError(
                f"[{self._name}] default_prompt_name is {self.default_prompt_name!r}; {self._prompt_names()}"
            )

    @property
    def max_seq_length(self) -> int:
        """Most tokens of a text, special ones included; never more than the model has positions."""
        return self._max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, value: int) -> None:
        self._max_seq_length = min(checked_count(self._name, "max_seq_length", value), self._positions)

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _positions(self) -> int:
        return int(self.model.args.max_position_embeddings)

    @property
    def _after_transformer(self) -> list[Module]:
        return self._modules[1:] if self._modules else []

    def _batches(self, lengths: Sequence[int], batch_size: int, max_tokens: int) -> Iterator[list[list[int]]]:
        """Batches, each as groups of indices of rows that are padded to one length."""
        raise NotImplementedError

    def _prompt_names(self) -> str:
        return f"the prompts are {', '.join(map(repr, self.prompts))}" if self.prompts else "there are no prompts"

    def _resolve_prompt(self, prompt_name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            return self._checked_prompt("prompt", prompt)
        name = prompt_name if prompt_name is not None else self.default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            raise ValueError(f"[{self._name}] prompt_name is {name!r}; {self._prompt_names()}")
        return self._checked_prompt(f"the prompt {name!r}", self.prompts[name])

    def _checked_prompt(self, argument: str, prompt: Any) -> str:
        if not isinstance(prompt, str):
            raise ValueError(f"[{self._name}] {argument} is a {type(prompt).__name__}; it must be a str")
        self._check_unicode(argument, prompt)
        return prompt

    def _check_unicode(self, argument: str, text: str) -> None:
        """A ``str`` may hold halves of surrogate pairs, of which no tokenizer knows what to make."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"[{self._name}] {argument} is no Unicode: {error.reason} at {error.start}") from None

    def _task_prompt(self, names: Sequence[str], prompt_name: str | None, options: Mapping[str, Any]) -> str | None:
        """The prompt name of a task: what the caller asked for, else the first of ``names`` that is there."""
        if prompt_name is not None or options.get("prompt") is not None:
            return prompt_name
        return next((name for name in names if name in self.prompts), None)

    def _tokenize(self, texts: Sequence[str], first: int, prompt: str) -> list[list[int]]:
        """The ids of each text; ``first`` is the number of texts before these."""
        for position, text in enumerate(texts, first):
            if not isinstance(text, str):
                raise ValueError(f"[{self._name}] text {position} is a {type(text).__name__}; it must be a str")
            self._check_unicode(f"text {position}", text)
        if self.tokenizer is None:
            raise ValueError(
                f"[{self._name}] {self.folder} has no tokenizer.json and no vocab.txt: use encode_ids with token ids"
            )
        if prompt:
            texts = [prompt + text for text in texts]
        tokens = self.tokenizer.encode(texts, self.max_seq_length, self.too_long, first)
        self.truncated += tokens.truncated
        return tokens.ids

    def _check_ids(self, sequences: Sequence[Sequence[int]], first: int) -> list[list[int]]:
        """As lists, each no longer than max_seq_length and of ids that the model has."""
        words, limit = int(self.model.args.vocab_size), self.max_seq_length
        checked = [self._integers(sequence, position) for position, sequence in enumerate(sequences, first)]
        for position, ids in enumerate(checked, first):
            if ids and not (min(ids) >= 0 and max(ids) < words):
                raise ValueError(f"[{self._name}] sequence {position} has ids outside 0..{words - 1}")
            if len(ids) > limit and self.too_long == "error":
                raise ValueError(f"[{self._name}] sequence {position} has {len(ids)} ids; max_seq_length is {limit}")
        self.truncated += sum(len(ids) > limit for ids in checked)
        return [ids[:limit] for ids in checked]

    def _integers(self, sequence: Sequence[int], position: int) -> list[int]:
        try:
            return [operator.index(token) for token in sequence]
        except TypeError as error:
            raise ValueError(f"[{self._name}] sequence {position} must be of integers: {error}") from None

    def _several(self, texts: Iterable[str]) -> Iterable[str]:
        if not isinstance(texts, Iterable):
            raise ValueError(f"[{self._name}] texts is a {type(texts).__name__}; it must be a str or several")
        return [texts] if isinstance(texts, str) else texts

    def _stream(
        self,
        items: Iterable[Item],
        prepare: Callable[[Sequence[Item], int], list[list[int]]],
        encode: Callable[[list[list[int]], Callable[[int], object]], Results],
        show_progress_bar: bool | tqdm | None,
    ) -> Iterator[Results]:
        """What ``encode`` makes of the ids that ``prepare`` makes of each chunk of ``items``, in their order.

        A chunk is done before the next one is read: memory does not depend on how many there are.
        """
        if show_progress_bar is None:
            show_progress_bar = logger.isEnabledFor(logging.INFO)
        if isinstance(show_progress_bar, tqdm):
            bar = nullcontext(show_progress_bar)
        else:
            total = len(items) if isinstance(items, Sized) else None
            bar = tqdm(total=total, disable=not show_progress_bar, desc="encode", unit="text")
        self.truncated = 0
        first = 0
        with bar as progress:
            for chunk in _chunks(items):
                yield encode(prepare(chunk, first), progress.update)
                first += len(chunk)
        if self.truncated:
            warnings.warn(
                f"[{self._name}] cut {self.truncated} of {first} texts to {self.max_seq_length} tokens", stacklevel=4
            )

    def _forwards(
        self,
        sequences: Sequence[Sequence[int]],
        forward: Callable[[list[Rows]], mx.array],
        batch_size: int,
        done: Callable[[int], object],
    ) -> Iterator[tuple[list[int], mx.array]]:
        """``forward`` of every batch's groups, with the places in ``sequences`` of its rows, which ``done`` counts.

        While a batch computes, the one before it is taken by the caller and the one after it is built.
        """
        pad_id = self.tokenizer.pad_id if self.tokenizer else 0
        max_tokens = _MAX_TOKENS[mx.default_device().type]
        streams = cycle(_streams())
        running: list[tuple[list[int], mx.array]] = []
        for groups in self._batches([len(ids) for ids in sequences], batch_size, max_tokens):
            with mx.stream(next(streams)):
                output = forward([pad([sequences[place] for place in places], pad_id) for places in groups])
                mx.async_eval(output)
            running.append(([place for places in groups for place in places], output))
            if len(running) > 1:
                yield running[0]
                done(len(running.pop(0)[0]))
        for result in running:
            yield result
            done(len(result[0]))


def _chunks(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Runs of items of bounded number and total length. What has no length is an item like any other."""
    chunk: list[Item] = []
    size = 0
    for item in items:
        chunk.append(item)
        size += len(item) if isinstance(item, Sized) else 1
        if len(chunk) == _CHUNK_ROWS or size >= _CHUNK_SIZE:
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk

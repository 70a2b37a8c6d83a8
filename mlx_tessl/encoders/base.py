"""What dense and sparse encoders share: texts and ids in, batches through the model, rows out in order."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import cycle
from typing import Any, Generic, Literal, TypeVar

import mlx.core as mx
import mlx.nn as nn
from tqdm import tqdm

from ..models import load_model
from .batching import batches, pad
from .folder import find_folder
from .modules import Module, Settings, read_modules, read_settings
from .tokenization import TextTokenizer, TooLong

logger = logging.getLogger("mlx_tessl")

# Padded tokens of a batch at most. On a CPU a layer's activations then stay in its last cache; a GPU wants more work.
_MAX_TOKENS = {mx.DeviceType.cpu: 1024, mx.DeviceType.gpu: 16384}

# Names of the prompts that encode_query and encode_document take when there are such, the first that is there.
QUERY_PROMPTS = ("query",)
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

Row = TypeVar("Row")


_second_cpu_stream = mx.new_thread_local_stream(mx.DeviceType.cpu)


def _streams() -> list[mx.Stream | mx.ThreadLocalStream]:
    """Where batches run in turn. On a CPU two at once: one's single-threaded ops leave no core idle."""
    stream = mx.default_stream(mx.default_device())
    return [stream, _second_cpu_stream] if stream.device.type == mx.DeviceType.cpu else [stream]


class Encoder(Generic[Row]):
    """A checkpoint folder ready to encode; see :class:`SentenceEncoder` and :class:`SparseEncoder`."""

    _head: Literal["masked_lm"] | None = None

    def __init__(
        self,
        path_or_id: str | os.PathLike[str],
        *,
        max_seq_length: int | None = None,
        prompts: dict[str, str] | None = None,
        default_prompt_name: str | None = None,
        too_long: TooLong = "error",
        revision: str | None = None,
    ):
        if too_long not in ("error", "truncate"):
            raise ValueError(f"[{self._name}] too_long is {too_long!r}; it must be 'error' or 'truncate'")
        self.folder = find_folder(path_or_id, revision)
        self._modules = read_modules(self.folder)
        transformer = self._modules[0].folder if self._modules else self.folder
        self._settings: Settings = read_settings(self.folder, transformer)
        self.model: nn.Module = load_model(transformer, head=self._head)
        self.tokenizer = TextTokenizer.from_folder(transformer, self._settings.lowercase)
        self.prompts = self._settings.prompts if prompts is None else dict(prompts)
        self.default_prompt_name = default_prompt_name or self._settings.default_prompt_name
        self.too_long = too_long
        self.max_seq_length = max_seq_length or self._settings.max_seq_length or self._positions
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
        if value < 1:
            raise ValueError(f"[{self._name}] max_seq_length is {value}; it must be positive")
        self._max_seq_length = min(value, self._positions)

    @property
    def _name(self) -> str:
        return type(self).__name__

    @property
    def _positions(self) -> int:
        return int(self.model.args.max_position_embeddings)

    @property
    def _after_transformer(self) -> list[Module]:
        return self._modules[1:] if self._modules else []

    def _prompt_names(self) -> str:
        return f"the prompts are {', '.join(map(repr, self.prompts))}" if self.prompts else "there are no prompts"

    def _resolve_prompt(self, prompt_name: str | None, prompt: str | None) -> str:
        if prompt is not None:
            return prompt
        name = prompt_name if prompt_name is not None else self.default_prompt_name
        if name is None:
            return ""
        if name not in self.prompts:
            raise ValueError(f"[{self._name}] prompt_name is {name!r}; {self._prompt_names()}")
        return self.prompts[name]

    def _task_prompt(self, names: Sequence[str], prompt_name: str | None, options: Mapping[str, Any]) -> str | None:
        """The prompt name of a task: what the caller asked for, else the first of ``names`` that is there."""
        if prompt_name is not None or options.get("prompt") is not None:
            return prompt_name
        return next((name for name in names if name in self.prompts), None)

    def _tokenize(self, texts: str | Sequence[str], prompt: str) -> list[list[int]]:
        if isinstance(texts, str):
            texts = [texts]
        elif not isinstance(texts, Iterable):
            raise ValueError(f"[{self._name}] texts is a {type(texts).__name__}; it must be a str or several")
        texts = list(texts)
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise ValueError(f"[{self._name}] text {position} is a {type(text).__name__}; it must be a str")
        if self.tokenizer is None:
            raise ValueError(
                f"[{self._name}] {self.folder} has no tokenizer.json and no vocab.txt: use encode_ids with token ids"
            )
        tokens = self.tokenizer.encode([prompt + text for text in texts], self.max_seq_length, self.too_long)
        self._report_truncated(tokens.truncated, len(texts))
        return tokens.ids

    def _report_truncated(self, count: int, total: int) -> None:
        self.truncated = count
        if count:
            warnings.warn(f"[{self._name}] cut {count} of {total} texts to {self.max_seq_length} tokens", stacklevel=4)

    def _check_ids(self, sequences: Sequence[Sequence[int]]) -> list[list[int]]:
        """As lists, each no longer than max_seq_length and of ids that the model has."""
        words, limit = int(self.model.args.vocab_size), self.max_seq_length
        checked = [[int(token) for token in sequence] for sequence in sequences]
        for position, ids in enumerate(checked):
            if ids and not (min(ids) >= 0 and max(ids) < words):
                raise ValueError(f"[{self._name}] sequence {position} has ids outside 0..{words - 1}")
            if len(ids) > limit and self.too_long == "error":
                raise ValueError(f"[{self._name}] sequence {position} has {len(ids)} ids; max_seq_length is {limit}")
        self._report_truncated(sum(len(ids) > limit for ids in checked), len(checked))
        return [ids[:limit] for ids in checked]

    def _run(
        self,
        sequences: Sequence[Sequence[int]],
        forward: Callable[[mx.array, mx.array | None], mx.array],
        rows_of: Callable[[mx.array], Sequence[Row]],
        batch_size: int,
        show_progress_bar: bool | None,
    ) -> list[Row]:
        """``forward`` on every batch, and ``rows_of`` each result, in the order of ``sequences``.

        While a batch computes, the one before it is turned into rows and the one after it is built.
        """
        if batch_size < 1:
            raise ValueError(f"[{self._name}] batch_size is {batch_size}; it must be positive")
        pad_id = self.tokenizer.pad_id if self.tokenizer else 0
        rows: list[Any] = [None] * len(sequences)
        running: list[tuple[list[int], mx.array]] = []

        def finish() -> None:
            places, output = running.pop(0)
            for place, row in zip(places, rows_of(output), strict=True):
                rows[place] = row
            progress.update(len(places))

        if show_progress_bar is None:
            show_progress_bar = logger.isEnabledFor(logging.INFO)
        with tqdm(total=len(sequences), disable=not show_progress_bar, desc="encode", unit="text") as progress:
            streams = cycle(_streams())
            max_tokens = _MAX_TOKENS[mx.default_device().type]
            for places in batches([len(ids) for ids in sequences], batch_size, max_tokens):
                with mx.stream(next(streams)):
                    output = forward(*pad([sequences[place] for place in places], pad_id))
                    mx.async_eval(output)
                running.append((places, output))
                if len(running) > 1:
                    finish()
            while running:
                finish()
        return rows

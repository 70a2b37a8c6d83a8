"""Many short questions over one long prefix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np

from ..models.qwen3_5 import Model
from ..ops import score_rows

Ids = Sequence[int]


def score(
    model: nn.Module,
    prefix: str | Ids,
    questions: Sequence[str | Ids],
    choices: Sequence[str | int],
    *,
    tokenizer: Any = None,
    batch_size: int = 32,
    prefill_step_size: int = 2048,
) -> np.ndarray[Any, np.dtype[np.float32]]:
    """How likely each choice is as the next token after ``prefix + question``, among the choices.

    The prefix is computed once. Every question starts from its state and reads its keys and values, which are not
    copied; logits are computed for the last token of each question and the choices alone.

    Args:
        model: A Qwen3.5 model of :func:`mlx_tessl.lm.load`.
        prefix: Token ids, or a text. May be empty.
        questions: Token ids or texts, none empty.
        choices: One token each: ids, or texts.
        tokenizer: For texts; its special tokens are not added to them.
        batch_size: Questions computed at a time; those of like lengths go together.
        prefill_step_size: Tokens of the prefix computed at a time.

    Returns:
        ``[questions, choices]`` log-probabilities; the exponentials of each row sum to 1.

    Raises:
        ValueError: Another model, an empty question, texts without a tokenizer, a choice that is not one token, a token
            that is not in the vocabulary.
    """
    if not isinstance(model, Model):
        found = f"{type(model).__module__}.{type(model).__name__}"
        raise ValueError(f"[mlx_tessl.lm.score] model is a {found}; it must be a Qwen3.5 of this package")
    rows = [_ids(question, tokenizer) for question in questions]
    if not all(rows):
        raise ValueError("[mlx_tessl.lm.score] a question is empty")
    answers = [_choice(choice, tokenizer) for choice in choices]
    start = _ids(prefix, tokenizer)
    _check_vocabulary(model, [start, answers, *rows])
    snapshot = _snapshot(model, start, prefill_step_size)
    scores = np.zeros((len(rows), len(answers)), np.float32)
    order = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        scores[batch] = np.array(_score_batch(model, snapshot, len(start), [rows[i] for i in batch], mx.array(answers)))
    return scores


class _SharedState:
    """The cache of a layer of linear attention, every row starting from one state."""

    def __init__(self, states: Sequence[mx.array | None], lengths: mx.array):
        self._states = list(states)
        self.lengths = lengths

    def __getitem__(self, index: int) -> mx.array | None:
        return self._states[index]

    def __setitem__(self, index: int, state: mx.array) -> None:
        """The state after the question, which nobody needs."""

    def advance(self, tokens: int) -> None:
        """Each cache lives for one pass."""


class _SharedPrefix:
    """The cache of a layer of attention, every row seeing the keys and values of one prefix before its own."""

    def __init__(self, prefix: tuple[mx.array, mx.array] | None, offset: int):
        self.prefix = prefix
        self.offset = offset

    def update_and_fetch(self, keys: mx.array, values: mx.array) -> tuple[mx.array, mx.array]:
        return keys, values


def _snapshot(model: Model, prefix: Ids, step: int) -> list[Any]:
    cache = model.make_cache()
    for first in range(0, len(prefix), step):
        model.model(mx.array([prefix[first : first + step]]), cache)
        mx.eval([c.state for c in cache])
    return cache


def _score_batch(
    model: Model, snapshot: Sequence[Any], offset: int, rows: Sequence[Ids], answers: mx.array
) -> mx.array:
    lengths = [len(row) for row in rows]
    ids = mx.array([list(row) + [0] * (max(lengths) - len(row)) for row in rows])
    ends = mx.array(lengths)
    caches: list[Any] = []
    for layer, c in zip(model.layers, snapshot, strict=True):
        if layer.is_linear:
            caches.append(_SharedState([c[0], c[1]], ends))
        else:
            seen = None if offset == 0 else tuple(x[0, :, :offset] for x in (c.keys, c.values))
            caches.append(_SharedPrefix(seen, offset))
    hidden = model.model(ids, caches).flatten(0, 1)
    last = mx.arange(len(rows)) * ids.shape[1] + ends - 1
    return score_rows(hidden, last, model.language_model.head_rows(answers), mx.arange(answers.size))


def _ids(text: str | Ids, tokenizer: Any) -> list[int]:
    if not isinstance(text, str):
        return [int(token) for token in text]
    if tokenizer is None:
        raise ValueError("[mlx_tessl.lm.score] texts need a tokenizer")
    return list(tokenizer.encode(text, add_special_tokens=False))


def _choice(choice: str | int, tokenizer: Any) -> int:
    ids = _ids(choice, tokenizer) if isinstance(choice, str) else [int(choice)]
    if len(ids) != 1:
        raise ValueError(f"[mlx_tessl.lm.score] the choice {choice!r} is {len(ids)} tokens; it must be one")
    return ids[0]


def _check_vocabulary(model: Model, texts: Sequence[Ids]) -> None:
    size = model.language_model.args.vocab_size
    for ids in texts:
        strange = [token for token in ids if not 0 <= token < size]
        if strange:
            raise ValueError(f"[mlx_tessl.lm.score] token {strange[0]} is not in the vocabulary of {size}")

"""Text to token ids, by the ``tokenizers`` library."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tokenizers import Tokenizer, normalizers
from tokenizers.implementations import BertWordPieceTokenizer

from ..models.checkpoint import read_json

TooLong = Literal["error", "truncate"]


class Tokens(NamedTuple):
    """The ids of each text, with its special tokens, and how many texts were cut."""

    ids: list[list[int]]
    truncated: int


class TextTokenizer:
    """The tokenizer of a checkpoint folder, without the padding and truncation its file may ask for."""

    def __init__(self, tokenizer: Tokenizer, pad_id: int):
        self._tokenizer = tokenizer
        self.pad_id = pad_id

    @classmethod
    def from_folder(cls, folder: Path, lowercase: bool = False) -> TextTokenizer | None:
        """Reads ``tokenizer.json``, else ``vocab.txt`` with ``tokenizer_config.json``; ``None`` when there is neither.

        ``lowercase`` lowers every text first, whatever the files say.

        Raises:
            ValueError: A file cannot be read.
        """
        config_path = folder / "tokenizer_config.json"
        config = read_json(config_path) if config_path.is_file() else {}
        file, vocab = folder / "tokenizer.json", folder / "vocab.txt"
        try:
            if file.is_file():
                tokenizer = Tokenizer.from_file(str(file))
            elif vocab.is_file():
                tokenizer = _word_piece(vocab, config)
            else:
                return None
        except Exception as error:  # the library raises bare Exception
            raise ValueError(f"[tokenizer] the tokenizer in {folder} cannot be read: {error}") from error
        if lowercase:
            own = tokenizer.normalizer
            tokenizer.normalizer = normalizers.Sequence([normalizers.Lowercase(), *([own] if own else [])])
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return cls(tokenizer, tokenizer.token_to_id(_content(config.get("pad_token"), "[PAD]")) or 0)

    def encode(self, texts: Sequence[str], max_length: int, too_long: TooLong, first: int = 0) -> Tokens:
        """The ids of ``texts``, special tokens included; ``first`` is the number of the first of them in an error.

        Raises:
            ValueError: ``too_long`` is ``"error"`` and a text has more than ``max_length`` tokens.
        """
        if too_long == "truncate":
            return self._encode_truncated(texts, max_length)
        ids = [encoding.ids for encoding in self._tokenizer.encode_batch_fast(list(texts))]
        lengths = [len(row) for row in ids]
        longest = max(lengths, default=0)
        if longest > max_length:
            count = sum(length > max_length for length in lengths)
            place = first + lengths.index(longest)
            raise ValueError(
                f"[encode] {count} of {len(ids)} texts are too long: text {place} has {longest} "
                f"tokens, and max_seq_length is {max_length}. Split them, or cut them with too_long='truncate'"
            )
        return Tokens(ids, 0)

    def _encode_truncated(self, texts: Sequence[str], max_length: int) -> Tokens:
        self._tokenizer.enable_truncation(max_length)
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts))
        finally:
            self._tokenizer.no_truncation()
        return Tokens([encoding.ids for encoding in encodings], sum(bool(e.overflowing) for e in encodings))

    def count_as_prefix(self, text: str) -> int:
        """The tokens that ``text`` takes at the start of another: its own and the special ones before it."""
        special = self._tokenizer.encode(text).special_tokens_mask
        while special and special[-1]:
            special.pop()
        return len(special)

    def word(self, token_id: int) -> str:
        """The token as the vocabulary spells it."""
        word: str | None = self._tokenizer.id_to_token(token_id)
        return f"[{token_id}]" if word is None else word


def _word_piece(vocab: Path, config: dict[str, Any]) -> Tokenizer:
    return BertWordPieceTokenizer(
        str(vocab),
        unk_token=_content(config.get("unk_token"), "[UNK]"),
        sep_token=_content(config.get("sep_token"), "[SEP]"),
        cls_token=_content(config.get("cls_token"), "[CLS]"),
        pad_token=_content(config.get("pad_token"), "[PAD]"),
        mask_token=_content(config.get("mask_token"), "[MASK]"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),
        lowercase=config.get("do_lower_case", True),
    )._tokenizer


def _content(token: str | dict[str, Any] | None, default: str) -> str:
    """A special token in ``tokenizer_config.json`` is a string or an object that holds it."""
    if token is None:
        return default
    return token if isinstance(token, str) else str(token["content"])

"""What the masked language models have in common: a vector for each token, and its product with the vocabulary.

Shapes: ``B`` rows of ``T`` tokens, ``H`` hidden units, ``V`` words.
"""

from __future__ import annotations

import mlx.core as mx
import mlx.nn as nn

from ..ops import linear


class VocabularyHead(nn.Module):
    """An encoder with a vocabulary head; token types are for the models that have them."""

    def __call__(
        self, input_ids: mx.array, lengths: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> mx.array:
        """Logits ``[B, T, V]``; arguments and errors are those of the encoder."""
        return self.decode(self.features(input_ids, lengths, token_type_ids))

    def decode(self, features: mx.array) -> mx.array:
        """Logits ``[..., V]`` of ``features [..., H]``."""
        return linear(features, self.decoder_weight, self.decoder_bias)

    def features(
        self, input_ids: mx.array, lengths: mx.array | None = None, token_type_ids: mx.array | None = None
    ) -> mx.array:
        """``[B, T, H]``, of which the logits are the product with the decoder."""
        raise NotImplementedError

    @property
    def decoder_weight(self) -> mx.array:
        """``[V, H]``: the word embeddings, unless the config unties them."""
        raise NotImplementedError

    @property
    def decoder_bias(self) -> mx.array:
        """``[V]``."""
        raise NotImplementedError

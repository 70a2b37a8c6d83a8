"""Text encoders, dense and learned-sparse, with the names and meanings of sentence-transformers."""

from .sentence import SentenceEncoder
from .shards import Shards, encode_to_shards
from .sparse import SparseEncoder
from .sparse_vectors import SparseVector, SparseVectors

__all__ = ["SentenceEncoder", "Shards", "SparseEncoder", "SparseVector", "SparseVectors", "encode_to_shards"]

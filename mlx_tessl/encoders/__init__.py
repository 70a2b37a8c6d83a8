"""Text encoders, dense and learned-sparse, with the names and meanings of sentence-transformers."""

from .sentence import SentenceEncoder
from .sparse import SparseEncoder
from .sparse_vectors import SparseVector, SparseVectors

__all__ = ["SentenceEncoder", "SparseEncoder", "SparseVector", "SparseVectors"]

"""Reads a .metallib: a table of functions, each with a module of LLVM bitcode."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass

_MAGIC = b"MTLB"
_SECTIONS = struct.Struct("<8Q")  # offset and size of the function table, two kinds of metadata, and the bitcode
_SECTIONS_AT = 24


@dataclass(frozen=True)
class Metallib:
    """The bytes of a library and where in it the module of each function lies."""

    data: bytes
    modules: dict[str, tuple[int, int]]

    @staticmethod
    def parse(data: bytes) -> Metallib:
        if data[:4] != _MAGIC:
            raise ValueError("not a metallib")
        functions_at, _, _, _, _, _, bitcode_at, _ = _SECTIONS.unpack_from(data, _SECTIONS_AT)
        modules = {}
        for tags in _functions(data, functions_at):
            name = tags[b"NAME"].rstrip(b"\0").decode()
            offset = struct.unpack("<3Q", tags[b"OFFT"])[2]
            (size,) = struct.unpack("<Q", tags[b"MDSZ"])
            modules[name] = (bitcode_at + offset, size)
        return Metallib(data, modules)

    def bitcode(self, function: str) -> bytes:
        offset, size = self.modules[function]
        return self.data[offset : offset + size]


def _functions(data: bytes, at: int) -> Iterator[dict[bytes, bytes]]:
    """The tags of each function: four letters, a length and that many bytes, up to ENDT."""
    (count,) = struct.unpack_from("<I", data, at)
    at += 4
    for _ in range(count):
        (size,) = struct.unpack_from("<I", data, at)
        yield _tags(data[at + 4 : at + size])
        at += size


def _tags(entry: bytes) -> dict[bytes, bytes]:
    tags, at = {}, 0
    while entry[at : at + 4] != b"ENDT":
        (length,) = struct.unpack_from("<H", entry, at + 4)
        tags[entry[at : at + 4]] = entry[at + 6 : at + 6 + length]
        at += 6 + length
    return tags

from __future__ import annotations

import os
from pathlib import Path

import pytest

from mlx_tessl.encoders.files import atomic_write


def test_a_failure_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "result.npy"
    path.write_bytes(b"old")

    def interrupted() -> None:
        with atomic_write(path) as file:
            file.write(b"half of the new")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["result.npy"]


def test_nothing_is_seen_before_the_end(tmp_path: Path) -> None:
    path = tmp_path / "result.npy"
    with atomic_write(path) as file:
        file.write(b"new")
        file.flush()
        assert not path.exists()
    assert path.read_bytes() == b"new"

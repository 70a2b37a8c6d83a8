"""Shards: what is in them, what an interruption leaves, and how several processes share the work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from tqdm import tqdm

import mlx_tessl.encoders.shards as shards_module
from mlx_tessl.encoders import SentenceEncoder, SparseEncoder, encode_to_shards
from mlx_tessl.encoders.files import write_embeddings

from .conftest import add_modules

TEXTS = [f"the {'sea ' * (i % 7)}storm" for i in range(25)]


@pytest.fixture
def dense(tiny: Path) -> SentenceEncoder:
    add_modules(tiny, ("Pooling", {"pooling_mode": "mean"}))
    return SentenceEncoder(tiny)


def read(path: Path) -> np.ndarray:
    match path.suffix:
        case ".npy":
            return np.load(path)
        case ".npz":
            return np.load(path)["embeddings"]
        case ".jsonl":
            return np.array([json.loads(line)["embedding"] for line in path.read_text().splitlines()], np.float32)
    return np.array(dict(mx.load(str(path)))["embeddings"])


class TestContent:
    @pytest.mark.parametrize("format", ["npy", "npz", "jsonl", "safetensors"])
    def test_embeddings(self, dense: SentenceEncoder, format: str, tmp_path: Path) -> None:
        shards = encode_to_shards(dense, iter(TEXTS), tmp_path / "out", format=format, shard_size=10, truncate_dim=8)
        assert [path.name for path in shards.paths] == [f"{i:05}.{format}" for i in range(3)]
        assert (shards.texts, shards.written) == (25, 3)
        assert [len(read(path)) for path in shards.paths] == [10, 10, 5]
        together = np.concatenate([read(path) for path in shards.paths])
        assert np.abs(together - dense.encode(TEXTS, truncate_dim=8)).max() <= 1e-6
        index = json.loads((tmp_path / "out" / "index.json").read_text())
        assert index["texts"] == 25
        assert index["shards"] == [path.name for path in shards.paths]
        assert sorted(os.listdir(tmp_path / "out")) == [*index["shards"], "checksums", "index.json", "settings.json"]

    def test_a_long_text_takes_its_own_length_only(self, tmp_path: Path) -> None:
        texts = ["sea\0", "θάλασσα", *["storm"] * 1000, "ghost " * 10_000]
        with (tmp_path / "x.npz").open("wb") as file:
            write_embeddings(file, "npz", texts, np.zeros((len(texts), 1), np.float32))
        assert (tmp_path / "x.npz").stat().st_size < 100_000
        assert json.loads(np.load(tmp_path / "x.npz")["texts"].tobytes()) == texts

    @pytest.mark.parametrize("format", ["npz", "jsonl", "safetensors"])
    def test_vectors(self, tiny: Path, format: str, tmp_path: Path) -> None:
        encoder = SparseEncoder(tiny)
        shards = encode_to_shards(encoder, TEXTS, tmp_path / "out", format=format, shard_size=20, max_active_dims=9)
        expected = encoder.encode(TEXTS, max_active_dims=9)
        if format == "jsonl":
            lines = [line for path in shards.paths for line in path.read_text().splitlines()]
            records = [json.loads(line) for line in lines]
            assert [record["text"] for record in records] == TEXTS
            indices, values = ([x for record in records for x in record[name]] for name in ("indices", "values"))
        else:
            names = ("indices", "data") if format == "npz" else ("indices", "values")
            load = np.load if format == "npz" else lambda path: dict(mx.load(str(path)))
            parts = [load(path) for path in shards.paths]
            indices, values = (np.concatenate([np.array(part[name]) for part in parts]) for name in names)
        assert np.array_equal(indices, expected.indices)
        assert np.abs(np.array(values) - expected.values).max() <= 1e-6

    def test_nothing(self, dense: SentenceEncoder, tmp_path: Path) -> None:
        assert encode_to_shards(dense, [], tmp_path / "out").paths == []
        assert json.loads((tmp_path / "out" / "index.json").read_text())["shards"] == []


class TestInterruption:
    def test_goes_on_where_it_was(self, dense: SentenceEncoder, tmp_path: Path) -> None:
        def interrupted() -> Iterator[str]:
            yield from TEXTS[:22]
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            encode_to_shards(dense, interrupted(), tmp_path, format="npy", shard_size=10)
        assert sorted(os.listdir(tmp_path)) == ["00000.npy", "00001.npy", "checksums", "settings.json", "tiny"]
        old = (tmp_path / "00000.npy").stat().st_mtime_ns
        shards = encode_to_shards(dense, TEXTS, tmp_path, format="npy", shard_size=10)
        assert (len(shards.paths), shards.written) == (3, 1)
        assert (tmp_path / "00000.npy").stat().st_mtime_ns == old
        together = np.concatenate([read(path) for path in shards.paths])
        assert np.abs(together - dense.encode(TEXTS)).max() <= 1e-6

    def test_killed(self, dense: SentenceEncoder, tmp_path: Path) -> None:
        """In the middle of a shard: what is there is whole, and what was half done is gone after the next run."""
        script = f"""
import itertools, mlx_tessl as mt
encoder = mt.encoders.SentenceEncoder({str(dense.folder)!r})
texts = itertools.cycle(["the sea " * 20])
mt.encoders.encode_to_shards(encoder, texts, {str(tmp_path / "out")!r}, format="npy", shard_size=64)
"""
        process = subprocess.Popen([sys.executable, "-c", script])
        while len(list((tmp_path / "out").glob("*.npy"))) < 2 and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
        process.wait()
        (tmp_path / "out" / ".00099.npy.x.part").write_bytes(b"half")
        done = sorted((tmp_path / "out").glob("*.npy"))
        assert len(done) >= 2
        assert {read(path).shape for path in done} == {(64, 48)}
        texts = ["the sea " * 20] * 64 * (len(done) + 1)
        shards = encode_to_shards(dense, texts, tmp_path / "out", format="npy", shard_size=64)
        assert shards.written in (1, 2)  # 2 if it was killed before it had written of what texts its last shard is
        assert not list((tmp_path / "out").glob(".*"))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"shard_size": 7}, "shard_size 10, not 7"),
            ({"truncate_dim": 8}, "truncate_dim None, not 8"),
            ({"source": "b"}, "source 'a', not 'b'"),
        ],
    )
    def test_other_settings_are_refused(
        self, dense: SentenceEncoder, change: dict[str, object], message: str, tmp_path: Path
    ) -> None:
        options = {"format": "npy", "shard_size": 10, "source": "a"}
        encode_to_shards(dense, TEXTS, tmp_path / "out", **options)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=f"was begun with {message}"):
            encode_to_shards(dense, TEXTS, tmp_path / "out", **options | change)  # type: ignore[arg-type]

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"truncate_dim": 8}, "truncate_dim None, not 8"),
            ({"dtype": mx.bfloat16}, "dtype None, not 'mlx.core.bfloat16'"),
            ({"max_seq_length": 60}, "max_seq_length 64, not 60"),
            ({"prompts": {"a": "love "}, "default_prompt_name": "a"}, "prompt None, not 'love '"),
        ],
    )
    def test_another_encoder_is_refused(
        self, dense: SentenceEncoder, change: dict[str, Any], message: str, tmp_path: Path
    ) -> None:
        """As it is when the same is asked of ``encode``."""
        encode_to_shards(dense, TEXTS, tmp_path / "out", format="npy", shard_size=10)
        with pytest.raises(ValueError, match=f"was begun with {message}"):
            encode_to_shards(
                SentenceEncoder(dense.folder, **change), TEXTS, tmp_path / "out", format="npy", shard_size=10
            )

    def test_other_vectors_are_refused(self, tiny: Path, tmp_path: Path) -> None:
        encode_to_shards(SparseEncoder(tiny, max_active_dims=4), TEXTS, tmp_path / "out")
        assert encode_to_shards(SparseEncoder(tiny), TEXTS, tmp_path / "out", max_active_dims=4).written == 0
        with pytest.raises(ValueError, match="was begun with max_active_dims 4, not None"):
            encode_to_shards(SparseEncoder(tiny), TEXTS, tmp_path / "out")

    def test_a_long_text_is_named_and_may_be_cut_later(self, dense: SentenceEncoder, tmp_path: Path) -> None:
        texts = [*TEXTS, "sea " * 70, "storm"]
        with pytest.raises(ValueError, match=r"00002.npy, whose text 0 is text 20: .* text 5 has 72 tokens"):
            encode_to_shards(dense, texts, tmp_path / "out", format="npy", shard_size=10)
        dense.too_long = "truncate"
        with pytest.warns(UserWarning, match="cut 1 of 7 texts"):
            shards = encode_to_shards(dense, texts, tmp_path / "out", format="npy", shard_size=10)
        assert (shards.written, shards.truncated) == (1, 1)

    def test_what_is_there_is_no_part_of_the_rate(
        self, dense: SentenceEncoder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        bars = []

        def seen(*arguments: Any, **options: Any) -> tqdm:
            bars.append(tqdm(*arguments, **options))
            return bars[-1]

        encode_to_shards(dense, TEXTS, tmp_path / "out", format="npy", shard_size=10)
        (tmp_path / "out" / "00002.npy").unlink()
        monkeypatch.setattr(shards_module, "tqdm", seen)
        encode_to_shards(dense, TEXTS, tmp_path / "out", format="npy", shard_size=10, total=25, show_progress_bar=True)
        (bar,) = bars
        assert (bar.n, bar.initial, bar.total) == (25, 20, 25)

    @pytest.mark.parametrize("count", [21, 25, 29, 30, 31])
    def test_more_texts_are_added(self, dense: SentenceEncoder, count: int, tmp_path: Path) -> None:
        texts = [f"{text} {i}" for i, text in enumerate(TEXTS * 2)]
        encode_to_shards(dense, texts[:21], tmp_path / "out", format="npy", shard_size=10)
        old = (tmp_path / "out" / "00001.npy").stat().st_mtime_ns
        shards = encode_to_shards(dense, iter(texts[:count]), tmp_path / "out", format="npy", shard_size=10)
        assert (shards.texts, shards.written) == (count, -(-count // 10) - 2 if count > 21 else 0)
        assert (tmp_path / "out" / "00001.npy").stat().st_mtime_ns == old
        together = np.concatenate([read(path) for path in shards.paths])
        assert together.shape[0] == count
        assert np.abs(together - dense.encode(texts[:count])).max() <= 1e-6
        assert json.loads((tmp_path / "out" / "index.json").read_text())["texts"] == count

    def test_no_index_while_more_texts_are_added(self, dense: SentenceEncoder, tmp_path: Path) -> None:
        def interrupted() -> Iterator[str]:
            yield from [*TEXTS, *TEXTS]
            raise KeyboardInterrupt

        encode_to_shards(dense, TEXTS, tmp_path / "out", format="npy", shard_size=10)
        with pytest.raises(KeyboardInterrupt):
            encode_to_shards(dense, interrupted(), tmp_path / "out", format="npy", shard_size=10)
        assert not (tmp_path / "out" / "index.json").exists()

    @pytest.mark.parametrize(
        ("texts", "message"),
        [
            (TEXTS[:24], r"00002.npy was made of other texts"),
            (TEXTS[:20], r"00002.npy is of more than these 20 texts"),
            ([], r"00000.npy is of more than these 0 texts"),
            ([*TEXTS[:5], "another", *TEXTS[6:]], r"00000.npy was made of other texts"),
            ([*TEXTS[:24], "another", "and more"], r"00002.npy was made of other texts"),
        ],
    )
    def test_other_texts_are_refused(
        self, dense: SentenceEncoder, texts: list[str], message: str, tmp_path: Path
    ) -> None:
        done = encode_to_shards(dense, TEXTS, tmp_path / "out", format="npy", shard_size=10)
        before = [path.read_bytes() for path in done.paths]
        with pytest.raises(ValueError, match=message + ".*: give another folder, or empty it"):
            encode_to_shards(dense, texts, tmp_path / "out", format="npy", shard_size=10)
        assert [path.read_bytes() for path in done.paths] == before
        assert json.loads((tmp_path / "out" / "index.json").read_text())["texts"] == 25

    def test_what_no_record_tells_of_is_made_again(self, dense: SentenceEncoder, tmp_path: Path) -> None:
        done = encode_to_shards(dense, TEXTS, tmp_path / "out", format="npy", shard_size=10)
        (tmp_path / "out" / "checksums" / "00001.json").unlink()
        assert encode_to_shards(dense, TEXTS, tmp_path / "out", format="npy", shard_size=10).written == 1
        assert done.texts == 25

    def test_one_text(self, dense: SentenceEncoder, tmp_path: Path) -> None:
        assert encode_to_shards(dense, TEXTS[1], tmp_path / "out").texts == 1

    def test_bad_arguments(self, dense: SentenceEncoder, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="format is 'csv'; it must be one of npy"):
            encode_to_shards(dense, TEXTS, tmp_path, format="csv")
        with pytest.raises(ValueError, match="shard_size is 0"):
            encode_to_shards(dense, TEXTS, tmp_path, shard_size=0)


def launched(encoder: SentenceEncoder, texts: list[str], folder: Path) -> str:
    """What two processes say that embed ``texts`` into ``folder / "out"``, as mlx.launch starts them."""
    (folder / "texts").write_text("\n".join(texts) + "\n")
    launch = Path(sys.executable).parent / "mlx.launch"
    command = [sys.executable, "-m", "mlx_tessl.cli", "embed", str(encoder.folder), "--file", str(folder / "texts")]
    shards = ["--output-dir", str(folder / "out"), "--shard-size", "7"]
    ports = ["--starting-port", str(20000 + os.getpid() % 20000)]
    result = subprocess.run(
        [str(launch), "-n", "2", "--backend", "ring", *ports, *command, *shards],
        capture_output=True,
        text=True,
        timeout=300,
    )
    return result.stdout + result.stderr


def test_two_processes_over_loopback(dense: SentenceEncoder, tmp_path: Path) -> None:
    """Each writes its shards, and both say how many; the files are those of one process."""
    said = launched(dense, TEXTS, tmp_path)
    assert said.count("wrote 2 of 4 shards of embeddings") == 2, said
    encode_to_shards(dense, TEXTS, tmp_path / "one", format="npy", shard_size=7)
    names = [f"{i:05}.npy" for i in range(4)]
    for name in [*names, *(f"checksums/{i:05}.json" for i in range(4))]:
        assert (tmp_path / "out" / name).read_bytes() == (tmp_path / "one" / name).read_bytes()
    index = json.loads((tmp_path / "out" / "index.json").read_text())
    assert (index["texts"], index["shards"]) == (25, names)


def test_one_of_two_processes_fails(dense: SentenceEncoder, tmp_path: Path) -> None:
    """The other does not wait for it, and what both had done is there."""
    said = launched(dense, [*TEXTS, "sea " * 70], tmp_path)
    assert "00003.npy, whose text 0 is text 21: " in said
    assert "Traceback" not in said
    assert not (tmp_path / "out" / "index.json").exists()
    assert (tmp_path / "out" / "00001.npy").exists()

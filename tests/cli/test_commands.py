"""The commands as a shell runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from mlx_tessl.cli.demo import find_packages
from mlx_tessl.encoders import SentenceEncoder, SparseEncoder

MINILM, SPLADE = (str(folder) for folder in find_packages()[:2])
TEXTS = ["What causes the northern lights?", "A recipe for sourdough bread."]


def run(*arguments: str, text: str | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlx_tessl.cli", *arguments],
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=300,
    )


def failure(*arguments: str, text: str | None = None, **environment: str) -> str:
    """The one line on standard error of a command that the user must change."""
    result = run(*arguments, text=text, **environment)
    assert result.returncode == 2, result
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    *_, line = result.stderr.splitlines()
    assert line.startswith("mlx-tessl: error: ") or "error:" in line
    return line


class TestEmbed:
    def test_json(self) -> None:
        result = run("embed", MINILM, *TEXTS, "--json")
        assert result.returncode == 0, result.stderr
        assert result.stderr == ""
        records = [json.loads(line) for line in result.stdout.splitlines()]
        assert [record["text"] for record in records] == TEXTS
        expected = SentenceEncoder(MINILM).encode(TEXTS)
        assert np.abs(np.array([record["embedding"] for record in records]) - expected).max() <= 1e-6

    def test_for_people(self) -> None:
        result = run("embed", MINILM, *TEXTS)
        assert result.returncode == 0, result.stderr
        first, second = result.stdout.splitlines()
        assert "384" in first
        assert first.endswith(TEXTS[0])
        assert second.endswith(TEXTS[1])
        assert "\033" not in result.stdout

    @pytest.mark.parametrize("how", ["stdin", "file", "dash"])
    def test_lines(self, how: str, tmp_path: Path) -> None:
        lines = "\n".join([TEXTS[0], "", TEXTS[1]]) + "\n"
        (tmp_path / "texts").write_text(lines)
        source = {"stdin": [], "file": ["--file", str(tmp_path / "texts")], "dash": ["--file", "-"]}[how]
        result = run("embed", MINILM, "--json", *source, text=None if how == "file" else lines)
        assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == TEXTS, result.stderr

    def test_shards(self, tmp_path: Path) -> None:
        """Written, and gone on with by the same command."""
        (tmp_path / "texts").write_text("\n".join(TEXTS * 2) + "\n")
        command = ["embed", MINILM, "--file", str(tmp_path / "texts"), "--output-dir", str(tmp_path / "out")]
        result = run(*command, "--shard-size", "3")
        assert result.returncode == 0, result.stderr
        assert f"wrote 2 of 2 shards of embeddings to {tmp_path / 'out'}" in result.stderr
        (tmp_path / "out" / "00001.npy").unlink()
        assert "wrote 1 of 2 shards" in run(*command, "--shard-size", "3").stderr
        together = np.concatenate([np.load(tmp_path / "out" / f"0000{i}.npy") for i in range(2)])
        assert np.abs(together - SentenceEncoder(MINILM).encode(TEXTS * 2)).max() <= 1e-6
        assert "was begun with shard_size 3, not 5" in failure(*command, "--shard-size", "5")
        (tmp_path / "texts").write_text("\n".join(TEXTS * 3) + "\n")
        assert "wrote 1 of 2 shards" in run(*command, "--shard-size", "3").stderr
        assert len(np.load(tmp_path / "out" / "00001.npy")) == 3
        (tmp_path / "texts").write_text("other texts\n")
        assert "00000.npy was made of other texts" in failure(*command, "--shard-size", "3")

    def test_several_processes_need_a_folder(self) -> None:
        assert "only with --output-dir" in failure("embed", MINILM, *TEXTS, "--json", MLX_RANK="1")

    @pytest.mark.parametrize("suffix", [".npy", ".npz", ".jsonl", ".safetensors"])
    def test_output(self, suffix: str, tmp_path: Path) -> None:
        output = tmp_path / f"out{suffix}"
        result = run("embed", MINILM, *TEXTS, "--output", str(output), "--truncate-dim", "32", "--no-normalize")
        assert result.returncode == 0, result.stderr
        assert result.stdout == ""
        assert "wrote 2 embeddings of 32 components" in result.stderr
        if suffix == ".jsonl":
            embeddings = np.array([json.loads(line)["embedding"] for line in output.read_text().splitlines()])
        elif suffix == ".safetensors":
            embeddings = np.array(dict(mx.load(str(output)))["embeddings"])
        else:
            loaded = np.load(output)
            embeddings = loaded if suffix == ".npy" else loaded["embeddings"]
        expected = SentenceEncoder(MINILM).encode(TEXTS, truncate_dim=32, normalize_embeddings=False)
        assert np.abs(embeddings - expected).max() <= 1e-6
        assert os.listdir(tmp_path) == [output.name]
        assert output.stat().st_mode & 0o777 == 0o666 & ~_umask()

    def test_prompt(self) -> None:
        result = run("embed", MINILM, "bread", "--prompt", "A recipe for ", "--json")
        embedding = np.array(json.loads(result.stdout)["embedding"])
        assert np.abs(embedding - SentenceEncoder(MINILM).encode("A recipe for bread")).max() <= 1e-6

    def test_truncation_is_asked_for_and_counted(self) -> None:
        long = "word " * 300
        assert "text 0 has 302 tokens" in failure("embed", MINILM, long)
        result = run("embed", MINILM, long, "--truncate", "--json")
        assert result.returncode == 0
        assert result.stderr == "cut 1 of 1 texts to 256 tokens\n"

    def test_truncation_is_counted_in_shards(self, tmp_path: Path) -> None:
        command = ["embed", MINILM, "word " * 300, "bread", "--output-dir", str(tmp_path / "out")]
        assert "00000.npy, whose text 0 is text 0" in failure(*command)
        result = run(*command, "--truncate")
        assert result.stderr.splitlines()[0] == "cut 1 texts to 256 tokens", result
        assert "was begun with truncate_dim None, not 8" in failure(*command, "--truncate-dim", "8")


class TestSparse:
    def test_json(self) -> None:
        result = run("sparse", SPLADE, *TEXTS, "--json")
        assert result.returncode == 0, result.stderr
        records = [json.loads(line) for line in result.stdout.splitlines()]
        for record, vector in zip(records, SparseEncoder(SPLADE).encode(TEXTS), strict=True):
            assert record["indices"] == vector.indices.tolist()
            assert np.abs(np.array(record["values"]) - vector.values).max() <= 1e-6
        weights = dict(zip(records[0]["words"], records[0]["values"], strict=True))
        assert max(weights, key=weights.__getitem__) == "northern"

    def test_for_people(self) -> None:
        result = run("sparse", SPLADE, TEXTS[0], "--top-k", "2")
        title, words = result.stdout.splitlines()
        assert title == TEXTS[0]
        assert words.split()[::2] == ["northern", "lights"]

    @pytest.mark.parametrize("suffix", [".npz", ".jsonl"])
    def test_output(self, suffix: str, tmp_path: Path) -> None:
        output = tmp_path / f"out{suffix}"
        result = run("sparse", SPLADE, *TEXTS, "--output", str(output), "--max-active-dims", "4")
        assert result.returncode == 0, result.stderr
        if suffix == ".npz":
            assert np.load(output)["indptr"].tolist() == [0, 4, 8]
        else:
            assert [len(json.loads(line)["indices"]) for line in output.read_text().splitlines()] == [4, 4]


class TestUserErrors:
    def test_model(self, tmp_path: Path) -> None:
        assert "there is no folder" in failure("embed", "./absent", "text")
        assert "no config.json" in failure("sparse", str(tmp_path), "text")
        assert "missing: cls.predictions.bias" in failure("sparse", MINILM, "text")

    def test_texts(self, tmp_path: Path) -> None:
        (tmp_path / "texts").write_bytes(b"\xff\xfe")
        assert "is not UTF-8 text" in failure("embed", MINILM, "--file", str(tmp_path / "texts"))
        assert "No such file" in failure("embed", MINILM, "--file", str(tmp_path / "absent"))
        assert "not both" in failure("embed", MINILM, "text", "--file", "-", text="text")
        assert "has no text in it" in failure("embed", MINILM, text="\n \n")

    def test_output(self, tmp_path: Path) -> None:
        assert "must end in .npy, .npz, .jsonl" in failure("embed", MINILM, "x", "--output", str(tmp_path / "x.csv"))
        assert "its folder does not exist" in failure("sparse", SPLADE, "x", "--output", str(tmp_path / "no" / "x.npz"))
        (tmp_path / "folder.npy").mkdir()
        assert "that is a folder" in failure("embed", MINILM, "x", "--output", str(tmp_path / "folder.npy"))

    def test_prompts(self) -> None:
        assert "there are no prompts" in failure("embed", MINILM, "text", "--prompt-name", "query")
        assert "not allowed with" in failure("embed", MINILM, "text", "--prompt", "a", "--query")

    def test_command(self) -> None:
        assert "invalid choice" in failure("embrace")
        assert "required" in failure()

    def test_numbers(self) -> None:
        assert "batch_size is 0" in failure("embed", MINILM, "text", "--batch-size", "0")
        assert "truncate_dim is -1" in failure("embed", MINILM, "text", "--truncate-dim", "-1")


def test_help_lists_the_commands() -> None:
    result = run("--help")
    assert result.returncode == 0
    for command in ("demo", "doctor", "embed", "sparse"):
        assert f"    {command} " in result.stdout


def test_reader_that_leaves_early() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mlx_tessl.cli", "embed", MINILM, *TEXTS, "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stderr
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait() == 0


def test_interrupt() -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "mlx_tessl.cli", "embed", MINILM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    process.stdin.write("a text\n")  # and it waits for more
    process.stdin.flush()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGINT)
    assert "Traceback" not in process.communicate()[1]
    assert process.returncode == 130


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


class TestStreams:
    def closed(self, redirection: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = ["sh", "-c", f'exec "$@" {redirection}', "sh", sys.executable, "-m", "mlx_tessl.cli", *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=300)

    @pytest.mark.parametrize("redirection", [">&-", "2>&-", ">&- 2>&- <&-"])
    def test_closed_output(self, redirection: str, tmp_path: Path) -> None:
        result = self.closed(redirection, "embed", MINILM, *TEXTS, "--output", str(tmp_path / "x.npy"))
        assert result.returncode == 0, result
        assert "Traceback" not in result.stderr
        assert np.load(tmp_path / "x.npy").shape == (2, 384)

    @pytest.mark.parametrize("arguments", [[], ["--file", "-"], ["--json"]])
    def test_closed_input(self, arguments: list[str]) -> None:
        result = self.closed("<&-", "embed", MINILM, *arguments)
        assert result.returncode == 2
        assert result.stderr == "mlx-tessl: error: standard input has no text in it\n".replace(
            "standard input", "-" if "-" in arguments else "standard input"
        )

    def test_byte_order_mark(self, tmp_path: Path) -> None:
        (tmp_path / "texts").write_bytes(b"\xef\xbb\xbfsea\r\n\xef\xbb\xbfstorm\r\n")
        result = run("embed", MINILM, "--file", str(tmp_path / "texts"), "--json")
        assert [json.loads(line)["text"] for line in result.stdout.splitlines()] == ["sea", "\ufeffstorm"]

    def test_no_shards_of_nothing(self, tmp_path: Path) -> None:
        (tmp_path / "texts").write_text("\n \n")
        said = failure("embed", MINILM, "--file", str(tmp_path / "texts"), "--output-dir", str(tmp_path / "out"))
        assert said.endswith("texts has no text in it")
        assert not (tmp_path / "out").exists()

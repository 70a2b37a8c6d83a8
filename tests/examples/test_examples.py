"""The scripts in examples/ run, and find what they should."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
TEXT = """
The king's ghost walks at night upon the walls of the castle, and cries for revenge.

To bake bread, mix flour and water with salt, let the dough rise, and heat the oven well.

A murdered father comes back from the grave, and asks of his son that blood be paid with blood.

Rye and wheat are ground at the mill, and the baker buys the flour by the sack each week.

The ships left harbour in the storm, and three of them were lost at sea with all their crew.

Sailors feared the rocks of that coast, where the wind drives every boat on to the sand.
"""


def run(script: str, *arguments: str) -> str:
    command = [sys.executable, str(ROOT / "examples" / script), *arguments]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture
def text(tmp_path: Path) -> Path:
    file = tmp_path / "text"
    file.write_text(TEXT)
    return file


def test_semantic_search(text: Path) -> None:
    first, *_ = run("semantic_search.py", str(text), "how to make a loaf", "--top-k", "2").splitlines()
    assert "bake bread" in first


def test_hybrid_search(text: Path) -> None:
    lines = run("hybrid_search.py", "a ghost demands revenge", "--file", str(text), "--top-k", "2").splitlines()
    assert len(lines) == 2
    assert "king's ghost" in lines[0]
    assert "murdered father" in lines[1]


def test_clustering(text: Path, tmp_path: Path) -> None:
    drawing = ["--out", str(tmp_path / "clusters.png")] if _has_matplotlib() else []
    output = run("clustering.py", "--file", str(text), "--clusters", "3", *drawing)
    assert [line.split()[0] for line in output.splitlines() if "paragraphs:" in line] == ["2", "2", "2"]
    assert not drawing or (tmp_path / "clusters.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("clusters", "several"), [("9", "there are 8"), ("7", "there are only 6 different"), ("0", "there are 8")]
)
def test_more_clusters_than_paragraphs(text: Path, clusters: str, several: str) -> None:
    first = TEXT.strip().split("\n\n")[0]
    text.write_text(TEXT + f"\n{first}\n\n{first}\n")
    command = [sys.executable, str(ROOT / "examples/clustering.py"), "--file", str(text), "--clusters", clusters]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert result.returncode == 1
    assert f"--clusters is {clusters}; {several}" in result.stderr


def _has_matplotlib() -> bool:
    from importlib.util import find_spec

    return find_spec("matplotlib") is not None

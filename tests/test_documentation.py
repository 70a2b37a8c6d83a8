"""The Python examples of README and docs run, each page as one session."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def examples(page: Path) -> str:
    return "\n".join(re.findall(r"^```python\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))


@pytest.mark.parametrize("page", [page for page in PAGES if examples(page)], ids=lambda page: page.name)
def test_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    exec(compile(examples(page), str(page), "exec"), {"__name__": "example"})


def test_relative_links_lead_somewhere() -> None:
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?://)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@cache
def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


FEATURES = [line for line in (ROOT / "docs/features.md").read_text().splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("row", FEATURES, ids=lambda row: row.split("|")[1].strip())
def test_a_feature_names_tests_that_exist(row: str) -> None:
    named = re.findall(r"`([\w/.]+)::(test_\w+)`", row)
    assert len(named) == row.count("::") > 0
    for path, name in named:
        assert name in functions_of(ROOT / path), f"{path}::{name}"

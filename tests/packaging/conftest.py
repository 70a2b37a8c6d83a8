"""The distributions built from a copy of the tree, and a fresh environment that has them and nothing of the tree."""

from __future__ import annotations

import shutil
import sys

import pytest

from .environments import Distributions, Environment, copy_tree, make_environment, run


@pytest.fixture(scope="session")
def distributions(tmp_path_factory: pytest.TempPathFactory) -> Distributions:
    """`python -m build`: the sdist, and the wheel made from the sdist. The copied tree is gone afterwards."""
    folder = tmp_path_factory.mktemp("build")
    tree = copy_tree(folder / "tree")
    result = run(sys.executable, "-m", "build", "--outdir", folder / "dist", tree, cwd=folder)
    assert result.returncode == 0, result.stdout[-4000:] + result.stderr[-4000:]
    shutil.rmtree(tree)
    (sdist,) = (folder / "dist").glob("*.tar.gz")
    (wheel,) = (folder / "dist").glob("*.whl")
    return Distributions(sdist, wheel)


@pytest.fixture(scope="session")
def installed(distributions: Distributions, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    environment = make_environment(tmp_path_factory.mktemp("installed"))
    environment.pip(f"mlx-tessl[cpu] @ {distributions.wheel.as_uri()}")
    return environment

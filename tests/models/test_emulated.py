"""The tiny checkpoints on the Metal kernels, run from their source in the emulator."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import pytest

import mlx_tessl as mt
from mlx_tessl.models import load_model

GOLDEN = Path(__file__).parent.parent / "golden"
BERT, GEMMA = "bert_mlm_tiny", "embeddinggemma2_tiny"
M1, M5 = ("m1", "15.0"), ("m5-pro", "26.4")


def distance(ours: mx.array, theirs: mx.array) -> float:
    assert ours.shape == theirs.shape
    return float((mx.abs(ours - theirs).max() / mx.abs(theirs).max()).item())


@pytest.mark.parametrize(
    ("case", "device", "bound"),
    [
        (BERT, M1, 1e-5),  # seen: 3e-7
        (BERT, M5, 1e-2),  # operands truncated to tf32; seen: 2e-3
        (GEMMA, M1, 1e-5),  # seen: 5e-7
        (GEMMA, M5, 1e-2),  # seen: 1e-3
    ],
    ids=["bert-m1", "bert-m5", "gemma-m1", "gemma-m5"],
)
def test_hidden_states(case: str, device: tuple[str, str], bound: float) -> None:
    """Two rows of different length, checked for races, bounds and unwritten memory on the first of the devices."""
    golden = dict(mx.load(str(GOLDEN / case / "golden.safetensors")))
    lengths = golden["mask"][1:3].sum(axis=1)
    tokens = int(lengths.max().item())
    ids, mask, expected = (golden[name][1:3, :tokens] for name in ("ids", "mask", "hidden"))
    model = load_model(GOLDEN / case)
    mx.eval(ids, lengths)
    with mt.trace() as entries:
        with mt.emulate(*device, check=device == M1, seed=1):
            hidden = model(ids, lengths)
        mx.eval(hidden)
    assert distance(hidden * mask[..., None], expected) <= bound
    assert {entry.backend for entry in entries} == {"emulator"}
    ops = {entry.op.removeprefix("mlx_tessl.") for entry in entries}
    assert ops >= ({"matmul", "norm", "attention"} if case == BERT else {"matmul", "norm", "attention", "rope", "gate"})
    kernels = {launch.kernel for entry in entries for launch in entry.launches}
    assert any("tensorops" in kernel for kernel in kernels) == (device == M5)


@pytest.mark.parametrize("device", [M1, M5], ids=["m1", "m5"])
def test_sparse_vectors(device: tuple[str, str]) -> None:
    golden = dict(mx.load(str(GOLDEN / BERT / "golden.safetensors")))
    lengths = golden["mask"][2:].sum(axis=1)
    model = load_model(GOLDEN / BERT, head="masked_lm")
    features = model.features(golden["ids"][2:, :7], lengths)
    mx.eval(features, lengths)
    with mt.trace() as entries:
        with mt.emulate(*device, check=True, seed=1):
            weights = mt.sparse_max_pool(features, model.decoder_weight, model.decoder_bias, lengths, precision="exact")
        mx.eval(weights)
    assert mx.abs(weights - golden["sparse"][2:]).max().item() <= 1e-4  # seen: 1e-6
    (entry,) = entries
    assert entry.backend == "emulator"

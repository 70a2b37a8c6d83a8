"""Gates."""

from __future__ import annotations

import numpy as np

import mlx_tessl as mt

from .spec import Case, Expected, OpSpec, Refusal, activate


def gate_oracle(activation: str, gate: np.ndarray, x: np.ndarray) -> Expected:
    y = (1 / (1 + np.exp(-gate)) if activation == "sigmoid" else activate(gate, activation)) * x
    # A gate that is a difference of near equals (gelu, left of zero) is bound by its argument.
    return y, np.abs(y) + np.abs(gate * x)


def geglu_oracle(gate: np.ndarray, up: np.ndarray, *, approximate: str = "tanh") -> Expected:
    return gate_oracle("gelu_tanh" if approximate == "tanh" else "gelu", gate, up)


def _gate_cases(gate: str, x: str) -> tuple[Case, ...]:
    return (
        Case("plain", {gate: (5, 64), x: (5, 64)}),
        Case("ragged", {gate: (2, 3, 37), x: (2, 3, 37)}),
        Case("vector", {gate: (5000,), x: (5000,)}),
        Case("one_gate_a_row", {gate: (2, 3, 1), x: (2, 3, 8)}),
        Case("outer", {gate: (4, 1, 6), x: (3, 1)}),
        Case("empty", {gate: (0, 8), x: (0, 8)}),
    )


def _gate_refusals(gate: str, x: str) -> tuple[Refusal, ...]:
    return (
        Refusal("shapes", {gate: (3, 4), x: (2, 4)}, "do not broadcast"),
        Refusal("no_columns", {gate: (3, 0), x: (3, 0)}, "its rows must not be empty"),
        Refusal("int", {gate: (3, 4), x: (3, 4)}, "int32", dtypes={gate: "int32", x: "int32"}),
    )


SIGMOID_GATE = OpSpec(
    name="sigmoid_gate",
    op=mt.sigmoid_gate,
    twin=mt.reference.sigmoid_gate,
    oracle=lambda x, gate: gate_oracle("sigmoid", gate, x),
    roundings=lambda _: 8,
    cases=_gate_cases("gate", "x"),
    refusals=_gate_refusals("gate", "x"),
    growing=("x", "gate"),
)

SWIGLU = OpSpec(
    name="swiglu",
    op=mt.swiglu,
    twin=mt.reference.swiglu,
    oracle=lambda gate, up: gate_oracle("silu", gate, up),
    roundings=lambda _: 8,
    cases=_gate_cases("gate", "up"),
    refusals=_gate_refusals("gate", "up"),
    growing=("gate", "up"),
)

GEGLU = OpSpec(
    name="geglu",
    op=mt.geglu,
    twin=mt.reference.geglu,
    oracle=geglu_oracle,
    roundings=lambda _: 8,
    cases=(*_gate_cases("gate", "up"), Case("exact", {"gate": (5, 64), "up": (5, 64)}, {"approximate": "none"})),
    refusals=(
        *_gate_refusals("gate", "up"),
        Refusal("approximate", {"gate": (3, 4), "up": (3, 4)}, "approximate is 'erf'", {"approximate": "erf"}),
    ),
    growing=("gate", "up"),
    variants=({}, {"approximate": "none"}),
)

SPECS = (
    SIGMOID_GATE,
    SWIGLU,
    GEGLU,
)

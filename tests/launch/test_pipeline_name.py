"""MLX keeps pipelines by name: two specialisations of a kernel must never share one."""

from __future__ import annotations

from itertools import product

from mlx_tessl import _ext

Operand = _ext.plan.Operand


def test_every_function_constant_is_part_of_the_name() -> None:
    names: dict[tuple[str, tuple[tuple[int, object], ...]], str] = {}
    for M, N, K, batch in product((1, 64), (30, 32), (0, 30, 32), ((), (3,))):
        for has_c, has_bias, has_residual, activation in product(
            (0, 1), (0, 1), (0, 1), (None, "relu", "silu", "gelu")
        ):
            for gpu, macos in (("m1", "15.0"), ("m5", "26.4")):
                call = _ext.plan.Matmul(
                    "float32",
                    Operand([*batch, M, K]),
                    Operand([*batch, K, N]),
                    c=Operand([M, N]) if has_c else None,
                    beta=1.0 if has_c else 0.0,
                    bias=Operand([N]) if has_bias else None,
                    residual=Operand([*batch, M, N]) if has_residual else None,
                    activation=activation,
                    gpu=gpu,
                    macos=macos,
                )
                launch = call.plan().launches[-1]
                names[launch.kernel, tuple(launch.constants.items())] = launch.pipeline_name
    varied = {index for _, constants in names for index, _ in constants}
    assert varied == set(range(12))
    for index in varied:
        values = {value for _, constants in names for i, value in constants if i == index}
        assert len(values) > 1, f"constant {index} is always {values}"
    assert len(set(names.values())) == len(names)

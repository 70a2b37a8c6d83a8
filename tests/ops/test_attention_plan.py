"""What planning makes of attention: the kernel at each threshold, arguments, grids, sizes past 2^31 elements."""

from __future__ import annotations

import struct
from typing import Any

import pytest

from mlx_tessl import _ext

Operand = _ext.plan.Operand
Plan = _ext.plan.Plan
Launch = _ext.plan.Launch

M1 = {"gpu": "m1", "macos": "14.0"}
M4 = {"gpu": "m4-max", "macos": "26.4"}
M5_262 = {"gpu": "m5-pro", "macos": "26.2"}
M5 = {"gpu": "m5-pro", "macos": "26.4"}

PAIRS, OWN, PREFIX, MASK, ADDITIVE, STARTS, LENGTHS, SOFTCAP, VECTOR, SINKS, ENDS = range(11)
UNLIMITED = 2**30


def call(
    Tq: int = 100,
    Tk: int = 200,
    D: int = 64,
    Dv: int | None = None,
    *,
    B: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    dtype: str = "float16",
    **keywords: Any,
) -> Any:
    operands = {
        "q": Operand([B, heads, Tq, D]),
        "k": Operand([B, kv_heads, Tk, D]),
        "v": Operand([B, kv_heads, Tk, D if Dv is None else Dv]),
    }
    return _ext.plan.Attention(dtype, **(operands | M1 | keywords))


def only_launch(*sizes: int, **keywords: Any) -> Launch:
    plan = call(*sizes, **keywords).plan()
    assert plan.scratch == []
    (launch,) = plan.launches
    return launch


def args_of(launch: Launch) -> dict[str, Any]:
    (argument,) = (argument for argument in launch.arguments if argument.role == "bytes")
    data = launch.bytes_of(argument)
    sizes = ["B", "heads", "kv_heads", "Tq", "Tk", "P", "D", "Dv", "left", "right", "parts", "splits", "split_keys"]
    names = [*sizes, "scale", "score_scale", "softcap"]
    args: dict[str, Any] = dict(zip(names, struct.unpack_from("<13i3f", data), strict=True))
    args |= zip(("starts", "lengths", "sinks"), struct.unpack_from("<3q", data, 64), strict=True)
    for i, name in enumerate(("q", "k", "v", "prefix_k", "prefix_v", "mask")):
        args[name] = struct.unpack_from("<4q", data, 88 + 32 * i)
    return args


def roles(launch: Launch) -> list[str]:
    """ "x0" is input 0, "y0" output 0, "s0" scratch 0, "-" unbound, "args" the argument struct."""
    names = {"input": "x{}", "output": "y{}", "scratch_in": "s{}", "scratch_out": "s{}", "unused": "-", "bytes": "args"}
    return [names[argument.role].format(argument.index) for argument in launch.arguments]


@pytest.mark.parametrize(
    ("device", "dtype", "relaxed", "kind"),
    [
        (M1, "float16", True, "portable"),
        (M4, "float16", True, "portable"),  # the matrix units begin with M5
        (M5_262, "float16", True, "portable"),  # cooperative inputs with macOS 26.3
        (M5, "float16", False, "tensorops"),
        (M5, "bfloat16", False, "tensorops"),
        (M5, "float32", True, "tensorops"),
        (M5, "float32", False, "portable"),  # exact float32 does not run on the matrix units
    ],
)
def test_kinds_by_device_and_precision(device: dict[str, str], dtype: str, relaxed: bool, kind: str) -> None:
    keywords = {**device, "dtype": dtype, "relaxed": relaxed}
    assert call(**keywords).kind == kind
    family = {"portable": "attention", "tensorops": "attention_tensorops"}[kind]
    assert only_launch(**keywords).family == family
    assert only_launch(**keywords).capability == kind
    gradients = call(**keywords).grad_plan().launches
    grad_family = {"portable": "attention_grad", "tensorops": "attention_grad_tensorops"}[kind]
    assert [launch.family for launch in gradients] == ["attention_grad", grad_family, grad_family]


@pytest.mark.parametrize(
    ("Tq", "group", "kind"),
    [
        (1, 1, "vector"),
        (8, 4, "vector"),
        (9, 1, "tensorops"),
        (8, 5, "tensorops"),
        (1, 32, "vector"),
        (1, 33, "tensorops"),
    ],
)
def test_few_queries_pass_by_vectors(Tq: int, group: int, kind: str) -> None:
    problem = call(Tq, heads=2 * group, kv_heads=2, **M5)
    assert problem.kind == kind
    assert problem.reason


def test_vectors_end_where_registers_do() -> None:
    assert call(1, 70, 512).kind == "vector"
    assert call(1, 70, 513).kind == "portable"
    assert call(1, 70, 64, 513).kind == "portable"


@pytest.mark.parametrize(
    ("D", "portable", "tensorops"),
    [
        (1, 64, 64),
        (64, 64, 64),
        (65, 72, 128),
        (72, 72, 128),
        (73, 80, 128),
        (80, 80, 128),
        (81, 96, 128),
        (96, 96, 128),
        (97, 128, 128),
        (128, 128, 128),
        (129, 192, 256),
        (192, 192, 256),
        (193, 256, 256),
        (256, 256, 256),
        (257, 512, 512),
        (512, 512, 512),
        (513, 512, 512),
    ],
)
def test_head_dimensions_are_padded_to_the_next(D: int, portable: int, tensorops: int) -> None:
    for device, columns in ((M1, portable), (M5, tensorops)):
        launch = only_launch(D=D, **device)
        variant = "tiles" if device is M1 else "tensorops"
        assert launch.kernel == f"attention_{variant}_float16_{columns}"
        rows = 32 if device is M1 or columns == 512 else 64
        parts = 2 if D > 512 else 1
        assert args_of(launch)["parts"] == parts
        assert launch.grid == (-(-100 // rows) * parts, 4, 2)
        assert launch.group == (256 if columns > (256 if device is M1 else 128) else 128, 1, 1)
    assert only_launch(1, 70, D, heads=1, kv_heads=1).kernel.startswith(
        "attention_vector_" if D <= 512 else "attention_tiles_"
    )


def test_the_wider_of_two_head_dimensions_counts() -> None:
    assert only_launch(D=192, Dv=128).kernel.endswith("_192")
    assert only_launch(D=64, Dv=128).kernel.endswith("_128")
    assert only_launch(D=192, Dv=128, **M5).kernel.endswith("_128")  # D passes through registers 16 at a time


@pytest.mark.parametrize(
    ("keys", "splits", "split_keys"),
    [
        (0, 1, 1024),
        (1, 1, 1024),
        (1024, 1, 1024),
        (1025, 5, 256),
        (16384, 64, 256),
        (16385, 57, 288),
        (100_000, 64, 1568),
        (2**26, 64, 2**20),
    ],
)
def test_splits_of_keys(keys: int, splits: int, split_keys: int) -> None:
    plan = call(1, keys, Dv=80, saves_ends=True).plan()
    args = args_of(plan.launches[0])
    assert (args["splits"], args["split_keys"]) == (splits, split_keys)
    assert plan.launches[0].grid == (splits, 2, 2)  # both heads of a group in one pass
    if splits == 1:
        assert plan.scratch == []
        return
    assert plan.scratch == [2 * 4 * splits * 80 * 4, 2 * 4 * splits * 2 * 4]
    first, last = plan.launches
    assert roles(first)[8:] == ["-", "-", "-", "args", "s0", "s1"]
    assert roles(last) == ["s0", "s1", "-", "y0", "y1", "args"]
    assert last.grid == (1, 4, 2)


def test_splits_follow_the_window_and_not_the_batch() -> None:
    args = [args_of(call(2, 100_000, B=B, window_left=500, causal=True).plan().launches[0]) for B in (1, 64)]
    assert [(a["splits"], a["split_keys"]) for a in args] == [(1, 1024)] * 2
    wide = args_of(call(2, 100_000, window_left=1500, window_right=3).plan().launches[0])
    assert wide["splits"] * wide["split_keys"] >= 1500 + 3 + 2 + 31


def test_windows_become_reaches() -> None:
    def reaches(**keywords: Any) -> tuple[int, int]:
        args = args_of(only_launch(**keywords))
        return args["left"], args["right"]

    assert reaches() == (UNLIMITED, UNLIMITED)
    assert reaches(causal=True) == (UNLIMITED, 0)
    assert reaches(window_left=0, window_right=7) == (0, 7)
    assert reaches(window_left=5, window_right=7, causal=True) == (5, 0)
    assert reaches(window_left=2**31 - 1, window_right=2**31 - 1) == (UNLIMITED, UNLIMITED)


def test_scale_is_folded_into_base_2() -> None:
    args = args_of(only_launch(scale=0.5))
    assert args["score_scale"] == pytest.approx(0.5 * 1.4426950408889634, rel=1e-6)
    capped = args_of(only_launch(scale=0.5, softcap=20.0))
    assert capped["score_scale"] == pytest.approx(0.025, rel=1e-6)
    assert capped["softcap"] == pytest.approx(20 * 1.4426950408889634, rel=1e-6)


def test_arguments_in_order() -> None:
    launch = only_launch(
        prefix_k=Operand([2, 9, 64]),
        prefix_v=Operand([2, 9, 64]),
        mask=Operand([1, 4, 1, 209]),
        additive=True,
        starts=Operand([2]),
        lengths=Operand([2]),
        sinks=Operand([4]),
        softcap=3.0,
        saves_ends=True,
    )
    assert roles(launch) == ["x0", "x1", "x2", "x3", "x4", "x5", "x6", "x7", "x8", "y0", "y1", "args"]
    assert launch.constants == dict.fromkeys(range(11), True)
    args = args_of(launch)
    assert args["P"] == 9
    assert args["prefix_k"] == (0, 9 * 64, 64, 1)
    assert args["mask"] == (0, 209, 0, 1)
    assert (args["starts"], args["lengths"], args["sinks"]) == (1, 1, 1)


def test_what_is_absent_is_not_bound() -> None:
    launch = only_launch()
    assert roles(launch) == ["x0", "x1", "x2", "-", "-", "-", "-", "-", "-", "y0", "-", "args"]
    assert launch.constants == {**dict.fromkeys(range(11), False), PAIRS: True, OWN: True, VECTOR: True}
    no_keys = only_launch(100, 0, lengths=Operand([2]))
    assert roles(no_keys) == ["-"] * 9 + ["y0", "-", "args"]
    assert not any(no_keys.constants.values()) or no_keys.constants[VECTOR]
    only_prefix = only_launch(100, 0, prefix_k=Operand([2, 9, 64]), prefix_v=Operand([2, 9, 64]))
    assert roles(only_prefix)[:5] == ["x0", "-", "-", "x3", "x4"]
    flat = only_launch(100, 200, 0, 64)  # q and k have no memory
    assert roles(flat)[:3] == ["x2", "x2", "x2"]


@pytest.mark.parametrize("sizes", [{"B": 0}, {"Tq": 0}, {"Dv": 0}, {"heads": 0}], ids=str)
def test_nothing_to_do(sizes: dict[str, int]) -> None:
    assert call(**sizes).plan().launches == []


@pytest.mark.parametrize(
    ("operand", "vector"),
    [
        (Operand([2, 4, 100, 64]), True),
        (Operand([2, 4, 100, 64], [25600, 64, 256, 1]), True),
        (Operand([2, 4, 100, 64], [25600, 6400, 1, 100]), False),
        (Operand([2, 4, 100, 64], [26000, 6500, 65, 1]), False),
        (Operand([2, 4, 100, 64], [0, 0, 64, 1]), True),
        (Operand([2, 4, 100, 64], offset=8), True),
        (Operand([2, 4, 100, 64], offset=2), False),
    ],
)
def test_runs_of_four(operand: Operand, vector: bool) -> None:
    assert only_launch(q=operand).constants[VECTOR] == vector


def test_sizes_past_two_to_the_31() -> None:
    launch = only_launch(70_000, 70_000, 128, B=8, heads=64, kv_heads=64, mask=Operand([8, 64, 70_000, 70_000]))
    args = args_of(launch)
    assert args["q"] == (64 * 70_000 * 128, 70_000 * 128, 128, 1)
    assert args["mask"] == (64 * 70_000**2, 70_000**2, 70_000, 1)
    assert launch.grid == (-(-70_000 // 32), 64, 8)
    plan = call(1, 2**28, 256, B=16, heads=8, kv_heads=8).plan()
    assert args_of(plan.launches[0])["k"] == (8 * 2**36, 2**36, 256, 1)
    assert plan.scratch[0] == 16 * 8 * 64 * 256 * 4


def grad_call(**keywords: Any) -> Plan:
    plan: Plan = call(**keywords).grad_plan()
    return plan


def test_gradients_past_two_to_the_31() -> None:
    plan = grad_call(Tq=70_000, Tk=70_000, D=128, B=8, heads=64, kv_heads=64)
    delta, queries, keys = plan.launches
    assert plan.scratch == [8 * 64 * 70_000 * 4]
    assert delta.grid == (70_000 // 8, 64, 8)
    assert queries.grid == keys.grid == (-(-70_000 // 32), 64, 8)
    row, head = 128, 70_000 * 128
    for launch in plan.launches:
        (argument,) = (argument for argument in launch.arguments if argument.role == "bytes")
        out, ends, dout = (struct.unpack_from("<4q", launch.bytes_of(argument), 280 + 32 * i) for i in range(3))
        assert out == dout == (64 * head, head, row, 1)
        assert ends == (64 * 70_000 * 2, 70_000 * 2, 2, 1)


def test_gradients_in_order() -> None:
    plan = grad_call(
        prefix_k=Operand([2, 9, 64]),
        prefix_v=Operand([2, 9, 64]),
        mask=Operand([4, 1, 209]),
        additive=True,
        sinks=Operand([4]),
    )
    delta, queries, keys, prefix, mask, sinks = plan.launches
    # Inputs: q, k, v, the prefix, mask, sinks, then out 7, ends 8 and dout 9.
    assert roles(delta) == ["x7", "x9", "s0", "args"]
    scores = ["x0", "x1", "x2", "x3", "x4", "x5", "-", "-", "x9", "x8", "s0"]
    assert roles(queries) == [*scores, "y0", "args"]
    assert roles(keys) == [*scores, "y1", "y2", "args"]
    assert roles(prefix) == [*scores, "y3", "y4", "args"]
    assert roles(mask) == [*scores, "y5", "args"]
    assert roles(sinks) == ["x6", "x8", "s0", "y6", "args"]
    assert plan.scratch == [2 * 4 * 100 * 4]
    assert (keys.constants[9], prefix.constants[9]) == (False, True)
    assert delta.grid == (13, 4, 2)
    assert queries.grid == (4, 4, 2)
    assert keys.grid == (7, 2, 2)
    assert prefix.grid == (1, 2, 1)
    assert mask.grid == (7, 1, 4)
    assert sinks.grid == (4, 1, 1)


@pytest.mark.parametrize(
    ("D", "device", "queries", "keys"),
    [
        (128, M1, (32, 128), (32, 128)),
        (129, M1, (32, 128), (32, 256)),
        (256, M1, (32, 128), (32, 256)),
        (257, M1, (32, 256), (16, 256)),
        (64, M5, (64, 128), (64, 128)),
        (65, M5, (64, 128), (64, 256)),
        (128, M5, (64, 128), (64, 256)),
        (129, M5, (64, 256), (32, 256)),
        (257, M5, (32, 256), (16, 256)),
    ],
)
def test_tiles_of_gradients(D: int, device: dict[str, str], queries: tuple[int, int], keys: tuple[int, int]) -> None:
    _, of_queries, of_keys = grad_call(D=D, **device).launches
    for launch, (rows, threads), count in ((of_queries, queries, 100), (of_keys, keys, 200)):
        assert launch.grid[0] == -(-count // rows)
        assert launch.group == (threads, 1, 1)


def test_gradients_of_nothing_are_zeros() -> None:
    """Outputs that have elements are written though there is no pair of a query and a key."""
    kernels = [launch.kernel for launch in grad_call(Tq=0).launches]
    assert kernels == ["attention_grad_keys_float16_64"]
    kernels = [launch.kernel for launch in grad_call(Tk=0).launches]
    assert kernels == ["attention_grad_queries_float16_64"]
    assert roles(grad_call(Tk=0).launches[0])[:11] == ["-"] * 11

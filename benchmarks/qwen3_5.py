"""Qwen3.5: reading prompts, writing tokens, batches and memory, beside mlx-lm's own model and transformers on torch.

Weights are random. Each lane is a process of its own, with its own threads; they take turns round by round, so that
whatever else the machine does falls on all of them. Prompts give the logits of their last token alone, as generation
needs them. Also counted: the launches that one written token asks of a GPU, with mlx-lm's Metal kernel taken as one.

    python benchmarks/qwen3_5.py --torch-python PYTHON --out benchmarks/results/qwen3_5.json
    python benchmarks/qwen3_5.py --only 37M --lanes tessl,torch --out ...   # measures these anew, keeps the others
    python benchmarks/qwen3_5.py --plot benchmarks/results/qwen3_5.json

PYTHON has transformers and torch. The shape 0.8B is that of Qwen3.5-0.8B in bfloat16; 0.8B-4bit has 4-bit weights in
groups of 64, which transformers does not compute without further packages.

mlx-lm+BLAS is mlx-lm with OpenBLAS preloaded. MLX calls cblas_sgemm of the reference BLAS that it ships, so another
library with that name comes before it. That of scipy-openblas32 is scipy_cblas_sgemm, and preloading it alone does
nothing: a C compiler makes a library that passes the call on. Only products of float32 become faster, for MLX computes
those of bfloat16 and of packed weights by itself.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import harness

PATIENCE = 40  # seconds: a lane that took so long for a case is not asked for it again

ROPE = {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25}
TINY = {
    "model_type": "qwen3_5_text",
    "vocab_size": 4096,
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
    "full_attention_interval": 4,
    "rope_parameters": {**ROPE, "mrope_section": [3, 3, 2]},
}
MIDDLE = {
    **TINY,
    "vocab_size": 16384,
    "hidden_size": 512,
    "intermediate_size": 1536,
    "num_hidden_layers": 8,
    "head_dim": 128,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_value_heads": 4,
    "rope_parameters": {**ROPE, "mrope_section": [6, 5, 5]},
}
LARGE = {
    **MIDDLE,
    "vocab_size": 248320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_hidden_layers": 24,
    "num_attention_heads": 8,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "rope_parameters": {**ROPE, "mrope_section": [11, 11, 10]},
}
SHAPES = {"tiny": TINY, "37M": MIDDLE, "0.8B": LARGE, "0.8B-4bit": LARGE}
BFLOAT16 = ("0.8B", "0.8B-4bit")

# What is asked of a lane: tokens of a prompt for each row of a batch, or tokens written after a prompt.
CASES = {
    "tiny": [("prefill", 1, 512), ("prefill", 4, 128), ("decode", 1, 32), ("decode", 4, 16)],
    "37M": [("prefill", 1, 128), ("prefill", 1, 512), ("prefill", 4, 128), ("decode", 1, 32), ("decode", 4, 16)],
    "0.8B": [("prefill", 1, 64), ("decode", 1, 4), ("decode", 4, 2)],
    "0.8B-4bit": [("prefill", 1, 64), ("decode", 1, 4), ("decode", 4, 2)],
}
CONTEXT = 16  # tokens before those that are written

Task = Callable[[str, int, int], None]


@cache
def random_weights(count: int) -> Any:
    import numpy as np

    return np.resize(np.random.default_rng(0).uniform(-0.03, 0.03, 2**20).astype(np.float32), count)


def fill(shape: str, parameters: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """Matrices of random weights, in little time: all begin with the same ones. Vectors are ones."""
    import numpy as np

    largest = SHAPES[shape]["vocab_size"] * SHAPES[shape]["hidden_size"]
    for name, x in parameters:
        count = math.prod(x.shape)
        weights = random_weights(largest)[:count] if len(x.shape) > 1 else np.ones(count, np.float32)
        yield name, weights.reshape(x.shape)
    random_weights.cache_clear()


def mlx_lane(shape: str, ours: bool) -> Task:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx.utils import tree_flatten, tree_unflatten
    from mlx_lm.models import qwen3_5 as theirs

    from mlx_tessl.models import qwen3_5

    mx.set_default_device(mx.cpu)
    module = qwen3_5 if ours else theirs
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(SHAPES[shape]))))
    dtype = mx.bfloat16 if shape in BFLOAT16 else mx.float32
    for name, weights in fill(shape, tree_flatten(model.parameters())):
        weights = mx.array(weights).astype(dtype)
        mx.eval(weights)
        model.update(tree_unflatten([(name, weights)]))
    if shape.endswith("-4bit"):
        nn.quantize(model, 64, 4)
    model.eval()
    if ours:
        model.join()
    mx.eval(model.parameters())
    mx.clear_cache()
    text = model.language_model
    head = text.model.embed_tokens.as_linear

    def task(what: str, B: int, T: int) -> None:
        cache = model.make_cache()
        ids = mx.random.randint(0, SHAPES[shape]["vocab_size"], (B, T if what == "prefill" else CONTEXT))
        token = mx.argmax(head(text.model(ids, cache)[:, -1:]), axis=-1)
        mx.eval(token, [c.state for c in cache])
        if what == "decode":
            restart()
            for _ in range(T):  # as mlx-lm's generate_step: the next graph is built while this token is computed
                following = mx.argmax(model(token, cache=cache)[:, -1:], axis=-1)
                mx.async_eval(following)
                mx.eval(token)
                token = following
            mx.eval(token)

    return task


def torch_lane(shape: str) -> Task:
    import torch
    import transformers
    from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig
    from transformers.initialization import no_init_weights

    transformers.logging.set_verbosity_error()
    dtype = torch.bfloat16 if shape in BFLOAT16 else torch.float32
    with no_init_weights():
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**json.loads(json.dumps(SHAPES[shape])))).to(dtype).eval()
    parameters = dict(model.named_parameters())
    for name, weights in fill(shape, parameters.items()):
        parameters[name].data.copy_(torch.from_numpy(weights))

    @torch.no_grad()
    def task(what: str, B: int, T: int) -> None:
        cache = DynamicCache(config=model.config)
        ids = torch.randint(0, SHAPES[shape]["vocab_size"], (B, T if what == "prefill" else CONTEXT))
        logits = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits
        if what == "decode":
            restart()
            for _ in range(T):
                token = logits[:, -1].argmax(-1, keepdim=True)
                logits = model(input_ids=token, cache=cache, use_cache=True).logits

    return task


LANES: dict[str, Callable[[str], Task]] = {
    "tessl": lambda shape: mlx_lane(shape, True),
    "mlx-lm": lambda shape: mlx_lane(shape, False),
    "mlx-lm+BLAS": lambda shape: mlx_lane(shape, False),
    "torch": torch_lane,
}

# MLX's names of OpenBLAS's products.
BLAS = """
#define GEMM(letter, real)                                                                                           \\
  void scipy_cblas_##letter##gemm(int, int, int, int, int, int, real, const void*, int, const void*, int, real,      \\
                                  void*, int);                                                                       \\
  void cblas_##letter##gemm(int order, int ta, int tb, int m, int n, int k, real alpha, const void* a, int lda,      \\
                            const void* b, int ldb, real beta, void* c, int ldc) {                                   \\
    scipy_cblas_##letter##gemm(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);                         \\
  }
GEMM(s, float)
GEMM(d, double)
GEMM(c, const void*)
"""


def blas_library(folder: Path) -> Path:
    """A library for LD_PRELOAD that gives MLX the products of scipy-openblas32."""
    import scipy_openblas32

    libraries, source, library = scipy_openblas32.get_lib_dir(), folder / "blas.c", folder / "libblas.so"
    source.write_text(BLAS)
    found = ["-L", libraries, "-l", scipy_openblas32.get_library(), f"-Wl,-rpath,{libraries}"]
    subprocess.run(["cc", "-shared", "-fPIC", "-O2", str(source), "-o", str(library), *found], check=True)
    return library


_start = 0.0


def restart() -> None:
    """The clock of a task starts here."""
    global _start
    _start = time.perf_counter()


def serve(lane: str, shape: str) -> None:
    """A lane's process: for each line, a task, answers with its seconds and the most memory that it took."""
    task = LANES[lane](shape)
    ctypes.CDLL(None).malloc_trim(0)  # what making the weights left behind
    print("ready", flush=True)
    for line in sys.stdin:
        what, B, T = json.loads(line)
        CLEAR_REFS.write_text("5")  # the peak starts anew
        restart()
        task(what, B, T)
        seconds = time.perf_counter() - _start
        print(json.dumps({"seconds": seconds, "peak_bytes": peak_bytes()}), flush=True)


CLEAR_REFS = Path("/proc/self/clear_refs")


def peak_bytes() -> int:
    """The most memory that was resident since the peak was cleared, weights included."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))


class Lane:
    def __init__(self, name: str, python: str, shape: str, preload: Path | None):
        self.name = name
        command = [python, __file__, "--serve", name, "--shape", shape]
        environment = {**os.environ, "LD_PRELOAD": str(preload)} if preload else None
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(command, env=environment, text=True, **pipes)
        self._line()  # it is ready

    def run(self, task: tuple[str, int, int]) -> dict[str, Any]:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._line())
        return answer

    def _line(self) -> str:
        assert self.process.stdout
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the lane {self.name} ended with code {self.process.wait()}")
        return line

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def measure(shape: str, task: tuple[str, int, int], lanes: list[Lane], rounds: int) -> list[dict[str, Any]]:
    answers = {lane.name: [lane.run(task)] for lane in lanes}
    for _ in range(rounds):
        for lane in lanes:
            if sum(answer["seconds"] for answer in answers[lane.name]) < PATIENCE:
                answers[lane.name].append(lane.run(task))
    rows = []
    for name, found in answers.items():
        timed = found[1:] or found  # the first one warms up
        facts = harness.summary([answer["seconds"] for answer in timed])
        rows.append(
            {
                "case": case_name(shape, task),
                "method": name,
                "seconds": facts,
                "tokens_per_second": task[1] * task[2] / facts["median"],
                "peak_bytes": max(answer["peak_bytes"] for answer in found),
                "load_average": harness.machine()["load_average"],
            }
        )
    return rows


def case_name(shape: str, task: tuple[str, int, int]) -> str:
    what, B, T = task
    return f"{shape} {what} {B}x{T}"


# Nodes of a graph that a GPU does nothing for.
VIEWS = {
    *("AsStrided", "Broadcast", "ExpandDims", "Flatten", "Reshape", "Slice", "Split", "Squeeze", "StopGradient"),
    *("Transpose", "Unflatten", "Copy", "Depends"),
}


def launches(ours: bool) -> dict[str, Any]:
    """Launches of one written token of the 37M model: nodes of its graph that are no views."""
    import mlx.core as mx
    from mlx_lm.models import qwen3_5 as theirs

    import mlx_tessl as mt
    from mlx_tessl.models import qwen3_5

    def delta_rule(
        q: Any, k: Any, v: Any, a: Any, b: Any, A_log: Any, dt_bias: Any, state: Any, *_: Any, **__: Any
    ) -> Any:
        """What mlx-lm's function does around its Metal kernel, with one primitive in the kernel's place."""
        from mlx_lm.models.gated_delta import compute_g

        return mt.gated_delta(q, k, v, compute_g(A_log, a, dt_bias), mx.sigmoid(b).astype(mx.float32), state)

    # What MLX composes on a CPU and fuses on a GPU, as one primitive each.
    theirs.gated_delta_update = delta_rule
    if not ours:
        mx.fast.rms_norm = lambda x, weight, eps: mt.rms_norm(x, weight, eps)
        mx.fast.rope = lambda x, dims, **_: mt.rope(x, mx.array([0]), mx.ones(dims // 2), rotary_dim=dims)
        mx.fast.scaled_dot_product_attention = lambda q, k, v, scale, **_: mt.attention(q, k, v, scale=scale)
    module = qwen3_5 if ours else theirs
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(MIDDLE))))
    model.eval()
    if ours:
        model.join()
    cache = model.make_cache()
    mx.eval(model.parameters(), model(mx.array([[1, 2, 3]]), cache=cache), [c.state for c in cache])
    logits = model(mx.array([[4]]), cache=cache)
    with tempfile.NamedTemporaryFile("r", suffix=".dot") as file:
        mx.export_to_dot(file.name, logits, *[x for c in cache for x in states(c)])
        nodes = re.findall(r'label ="([^"]*)", shape=rectangle', file.read())
    kinds: dict[str, int] = {}
    for node in nodes:
        if node not in VIEWS:
            kinds[node] = kinds.get(node, 0) + 1
    count = sum(kinds.values())
    layers = MIDDLE["num_hidden_layers"]
    return {"launches_a_token": count, "launches_a_layer": round(count / layers, 2), "kinds": kinds}  # type: ignore[operator]


def states(cache: Any) -> list[Any]:
    return [cache.keys, cache.values] if hasattr(cache, "keys") else list(cache.cache)


def results(options: argparse.Namespace) -> dict[str, Any]:
    """Rows measured now, in place of those of the same case and method in the file that is written."""
    rows = {}
    if options.out and options.out.exists():
        rows = {(row["case"], row["method"]): row for row in json.loads(options.out.read_text())["rows"]}
    with tempfile.TemporaryDirectory() as folder:
        preload = blas_library(Path(folder)) if "mlx-lm+BLAS" in options.lanes else None
        for shape in SHAPES:
            for row in measured(shape, options, preload):
                rows[row["case"], row["method"]] = row
                print(line_of(row, rows), file=sys.stderr, flush=True)
    graph = {name: json.loads(run_graph(name)) for name in ("tessl", "mlx-lm")}
    packages = harness.versions("mlx", "mlx-lm", "mlx-tessl", "scipy-openblas32")
    order = [case_name(shape, task) for shape, tasks in CASES.items() for task in tasks]
    kept = sorted(rows.values(), key=lambda row: (order.index(row["case"]), list(LANES).index(row["method"])))
    return {"machine": harness.machine(), "versions": packages, "rows": kept, "graph": graph}


def measured(shape: str, options: argparse.Namespace, preload: Path | None) -> Iterator[dict[str, Any]]:
    tasks = [task for task in CASES[shape] if options.only in case_name(shape, task)]
    if not tasks:
        return
    names = [name for name in options.lanes if name != "torch" or not shape.endswith("-4bit")]
    lanes = [
        Lane(
            name,
            options.torch_python if name == "torch" else sys.executable,
            shape,
            preload if name == "mlx-lm+BLAS" else None,
        )
        for name in names
    ]
    for task in tasks:
        yield from measure(shape, task, lanes, options.rounds)
    for lane in lanes:
        lane.close()


def run_graph(name: str) -> str:
    command = [sys.executable, __file__, "--graph", name]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def line_of(row: dict[str, Any], rows: dict[tuple[str, str], dict[str, Any]]) -> str:
    speed, memory = row["tokens_per_second"], row["peak_bytes"] / 2**30
    ours = rows.get((row["case"], "tessl"))
    ratio = f"tessl is {ours['tokens_per_second'] / speed:8.2f} times as fast" if ours else ""
    return f"{row['case']:24} {row['method']:12} {speed:9.2f} tokens/s  {memory:5.2f} GiB  {ratio}"


def show(found: dict[str, Any]) -> None:
    rows = {(row["case"], row["method"]): row for row in found["rows"]}
    for row in found["rows"]:
        print(line_of(row, rows))
    for name, graph in found["graph"].items():
        print(f"{name:7} {graph['launches_a_token']} launches a token, {graph['launches_a_layer']} a layer")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(row["case"] for row in found["rows"]))
    figure, axis = plt.subplots(figsize=(10, 5))
    for i, method in enumerate(LANES):
        points = [
            (cases.index(row["case"]), row["tokens_per_second"]) for row in found["rows"] if row["method"] == method
        ]
        axis.bar([x + 0.2 * (i - 1.5) for x, _ in points], [y for _, y in points], 0.19, label=method)
    axis.set_xticks(range(len(cases)), cases, rotation=30, ha="right", fontsize=8)
    axis.set_yscale("log")
    axis.set_ylabel("tokens/s")
    axis.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=110)


if __name__ == "__main__":
    if "--serve" in sys.argv:
        serve(sys.argv[sys.argv.index("--serve") + 1], sys.argv[sys.argv.index("--shape") + 1])
    elif "--graph" in sys.argv:
        print(json.dumps(launches(sys.argv[sys.argv.index("--graph") + 1] == "tessl")))
    else:
        parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
        parser.add_argument("--torch-python", default=sys.executable, help="a Python that has transformers and torch")
        parser.add_argument("--rounds", type=int, default=3)
        parser.add_argument("--only", default="", help="only cases whose name contains this")
        parser.add_argument(
            "--lanes", type=lambda text: text.split(","), default=list(LANES), help="some of " + ",".join(LANES)
        )
        parser.add_argument("--out", type=Path)
        parser.add_argument("--plot", type=Path)
        options = parser.parse_args()
        if options.plot:
            plot(json.loads(options.plot.read_text()), options.plot.with_suffix(".png"))
        else:
            found = results(options)
            show(found)
            if options.out:
                options.out.write_text(json.dumps(found, indent=1) + "\n")
                plot(found, options.out.with_suffix(".png"))

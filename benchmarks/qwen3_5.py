"""Qwen3.5: reading prompts, writing tokens, batches and memory, beside mlx-lm's own model and transformers on torch.

Weights are random. Each lane is a process of its own, with its own threads; they take turns round by round, so that
whatever else the machine does falls on all of them. Prompts give the logits of their last token alone, as generation
needs them. Also counted: the launches that one written token asks of a GPU, with mlx-lm's Metal kernel taken as one.

    python benchmarks/qwen3_5.py --torch-python PYTHON --out benchmarks/results/qwen3_5.json
    python benchmarks/qwen3_5.py --plot benchmarks/results/qwen3_5.json

PYTHON has transformers and torch. A shape that ends in -4bit has 4-bit weights in groups of 64, and bfloat16 otherwise.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

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
    "tiny": [("prefill", 1, 512), ("decode", 1, 32)],
    "37M": [("prefill", 1, 128), ("prefill", 1, 512), ("prefill", 4, 128), ("decode", 1, 32), ("decode", 4, 16)],
    "0.8B": [("prefill", 1, 64), ("decode", 1, 4)],
    "0.8B-4bit": [("prefill", 1, 64), ("decode", 1, 4)],
}
CONTEXT = 64  # tokens before those that are written

Task = Callable[[str, int, int], None]


def mlx_lane(shape: str, ours: bool) -> Task:
    import mlx.core as mx
    import mlx.nn as nn
    from mlx_lm.models import qwen3_5 as theirs

    from mlx_tessl.models import qwen3_5

    mx.set_default_device(mx.cpu)
    mx.random.seed(0)
    module = qwen3_5 if ours else theirs
    model = module.Model(module.ModelArgs.from_dict(json.loads(json.dumps(SHAPES[shape]))))
    if shape in BFLOAT16:
        model.set_dtype(mx.bfloat16)
    if shape.endswith("-4bit"):
        nn.quantize(model, 64, 4)
    model.eval()
    if ours:
        model.join()
    mx.eval(model.parameters())
    text = model.language_model
    head = text.model.embed_tokens.as_linear

    def task(what: str, B: int, T: int) -> None:
        cache = model.make_cache()
        ids = mx.random.randint(0, SHAPES[shape]["vocab_size"], (B, T if what == "prefill" else CONTEXT))
        token = mx.argmax(head(text.model(ids, cache)[:, -1:]), axis=-1)
        mx.eval(token, [c.state for c in cache])
        if what == "decode":
            restart()
            for _ in range(T):
                token = mx.argmax(model(token, cache=cache)[:, -1:], axis=-1)
                mx.eval(token)

    return task


def torch_lane(shape: str) -> Task:
    import torch
    import transformers
    from transformers import DynamicCache, Qwen3_5ForCausalLM, Qwen3_5TextConfig

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    dtype = torch.bfloat16 if shape in BFLOAT16 else torch.float32
    model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**json.loads(json.dumps(SHAPES[shape])))).to(dtype).eval()

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
    "torch": torch_lane,
}
_start = 0.0


def restart() -> None:
    """The clock of a task starts here."""
    global _start
    _start = time.perf_counter()


def serve(lane: str, shape: str) -> None:
    """A lane's process: for each line, a task, answers with its seconds and the most memory so far."""
    task = LANES[lane](shape)
    for line in sys.stdin:
        what, B, T = json.loads(line)
        restart()
        task(what, B, T)
        seconds = time.perf_counter() - _start
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        print(json.dumps({"seconds": seconds, "peak_bytes": peak}), flush=True)


class Lane:
    def __init__(self, name: str, python: str, shape: str):
        self.name = name
        command = [python, __file__, "--serve", name, "--shape", shape]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
        )

    def run(self, task: tuple[str, int, int]) -> dict[str, Any]:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps(task) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the lane {self.name} ended with code {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self.process.terminate()
        self.process.wait()


def measure(shape: str, task: tuple[str, int, int], lanes: list[Lane], rounds: int) -> list[dict[str, Any]]:
    what, B, T = task
    answers = {lane.name: [lane.run(task)] for lane in lanes}
    # A lane that needs minutes for one call is not asked again and again.
    for _ in range(rounds):
        for lane in lanes:
            if sum(answer["seconds"] for answer in answers[lane.name]) < 40:
                answers[lane.name].append(lane.run(task))
    rows = []
    ours = harness.summary([answer["seconds"] for answer in answers["tessl"][1:]])["median"]
    for name, found in answers.items():
        facts = harness.summary([answer["seconds"] for answer in (found[1:] or found)])
        rows.append(
            {
                "case": f"{shape} {what} {B}x{T}",
                "method": name,
                "seconds": facts,
                "tokens_per_second": B * T / facts["median"],
                "tessl_is_faster": facts["median"] / ours,
                "peak_bytes": found[-1]["peak_bytes"],
            }
        )
    return rows


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
    rows = []
    for shape, tasks in CASES.items():
        if options.only not in shape:
            continue
        names = ["tessl", "mlx-lm"] + ([] if shape.endswith("-4bit") else ["torch"])
        lanes = [Lane(name, options.torch_python if name == "torch" else sys.executable, shape) for name in names]
        for task in tasks:
            rows += measure(shape, task, lanes, options.rounds)
            for row in rows[-len(lanes) :]:
                print(line_of(row), file=sys.stderr, flush=True)
        for lane in lanes:
            lane.close()
    graph = {name: json.loads(run_graph(name)) for name in ("tessl", "mlx-lm")}
    packages = harness.versions("mlx", "mlx-lm", "mlx-tessl")
    return {"machine": harness.machine(), "versions": packages, "rows": rows, "graph": graph}


def run_graph(name: str) -> str:
    command = [sys.executable, __file__, "--graph", name]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, text=True).stdout


def line_of(row: dict[str, Any]) -> str:
    speed, memory = row["tokens_per_second"], row["peak_bytes"] / 2**30
    return f"{row['case']:22} {row['method']:7} {speed:9.1f} tokens/s  {row['tessl_is_faster']:7.2f}  {memory:5.2f} GiB"


def show(found: dict[str, Any]) -> None:
    for row in found["rows"]:
        print(line_of(row))
    for name, graph in found["graph"].items():
        print(f"{name:7} {graph['launches_a_token']} launches a token, {graph['launches_a_layer']} a layer")


def plot(found: dict[str, Any], path: Path) -> None:
    import matplotlib.pyplot as plt

    cases = list(dict.fromkeys(row["case"] for row in found["rows"]))
    figure, axis = plt.subplots(figsize=(9, 4.5))
    for i, method in enumerate(LANES):
        points = [
            (cases.index(row["case"]), row["tokens_per_second"]) for row in found["rows"] if row["method"] == method
        ]
        axis.bar([x + 0.27 * (i - 1) for x, _ in points], [y for _, y in points], 0.25, label=method)
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
        parser.add_argument("--only", default="", help="only shapes whose name contains this")
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

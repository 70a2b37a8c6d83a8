"""Qwen3.5 against the outputs, states and gradients of transformers, in every layout of its checkpoints."""

from __future__ import annotations

import copy
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.cache import ArraysCache, BatchKVCache, KVCache

import mlx_tessl as mt
from mlx_tessl.models import qwen3_5

GOLDEN = Path(__file__).parents[1] / "golden"
BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "qwen3_5.py"
PREFILLS = [1, 3, 63, 64, 65, 130, 200]

each_case = pytest.mark.parametrize("case", ["qwen35_tiny", "qwen35_headdims"])


def config_of(case: str) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((GOLDEN / case / "config.json").read_text())
    return config


def tensors(case: str, name: str) -> dict[str, mx.array]:
    return dict(mx.load(str(GOLDEN / case / f"{name}.safetensors")))  # type: ignore[arg-type]


def build(config: dict[str, Any], weights: dict[str, mx.array]) -> qwen3_5.Model:
    model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
    model.load_weights(list(model.sanitize(weights).items()))
    model.eval()
    mx.eval(model.parameters())
    return model


@pytest.fixture(scope="module", params=["qwen35_tiny", "qwen35_headdims"])
def golden(request: pytest.FixtureRequest) -> tuple[qwen3_5.Model, dict[str, mx.array]]:
    case: str = request.param
    return build(config_of(case), tensors(case, "model")), tensors(case, "golden")


@pytest.fixture(scope="module")
def tiny() -> qwen3_5.Model:
    return build(config_of("qwen35_tiny"), tensors("qwen35_tiny", "model"))


def error(x: mx.array, expected: mx.array) -> float:
    """Of the largest magnitude."""
    assert x.shape == expected.shape
    return float((mx.abs(x - expected).max() / mx.abs(expected).max()).item())


Golden = tuple[qwen3_5.Model, dict[str, mx.array]]
BOUND = 2e-5  # observed: 5e-6


def padded_cache(model: qwen3_5.Model, left_padding: list[int]) -> list[Any]:
    return [
        ArraysCache(2, left_padding=left_padding) if layer.is_linear else BatchKVCache(left_padding)
        for layer in model.layers
    ]


def merged_cache(model: qwen3_5.Model, rows: int) -> list[Any]:
    """Of a batch, as mlx-lm makes it."""
    caches = [model.make_cache() for _ in range(rows)]
    return [type(parts[0]).merge(list(parts)) for parts in zip(*caches, strict=True)]


class TestGolden:
    @pytest.mark.parametrize("T", PREFILLS)
    def test_prefill(self, golden: Golden, T: int) -> None:
        model, data = golden
        expected = data[f"prefill{T}.logits"]
        assert error(model(data[f"prefill{T}.ids"])[:, -expected.shape[1] :], expected) <= BOUND
        cached = model(data[f"prefill{T}.ids"], cache=model.make_cache())
        assert error(cached[:, -expected.shape[1] :], expected) <= BOUND

    def test_right_padding(self, golden: Golden) -> None:
        model, data = golden
        lengths = data["pad_right.mask"].sum(1).tolist()
        cache = merged_cache(model, len(lengths))
        padding = [data["pad_right.ids"].shape[1] - n for n in lengths]
        for c in cache:
            c.prepare(lengths=lengths, right_padding=padding)
        logits = model(data["pad_right.ids"], cache=cache)
        assert error(logits * data["pad_right.mask"][..., None], data["pad_right.logits"]) <= BOUND

    def test_left_padding(self, golden: Golden) -> None:
        model, data = golden
        ids, mask = data["pad_left.ids"], data["pad_left.mask"]
        logits = model(ids, cache=padded_cache(model, [ids.shape[1] - n for n in mask.sum(1).tolist()]))
        assert error(logits * mask[..., None], data["pad_left.logits"]) <= BOUND

    def test_decode(self, golden: Golden) -> None:
        model, data = golden
        ids, cache = data["decode.ids"], model.make_cache()
        logits = [model(ids[:, :37], cache=cache)[:, -1]]
        logits += [model(ids[:, t : t + 1], cache=cache)[:, -1] for t in range(37, 49)]
        assert error(mx.stack(logits, axis=1), data["decode.logits"]) <= BOUND

    def test_states(self, golden: Golden) -> None:
        model, data = golden
        ids, cache = data["decode.ids"], model.make_cache()
        model(ids[:, :37], cache=cache)
        for t in range(37, 49):
            model(ids[:, t : t + 1], cache=cache)
        linear = next(c for layer, c in zip(model.layers, cache, strict=True) if layer.is_linear)
        full = next(c for layer, c in zip(model.layers, cache, strict=True) if not layer.is_linear)
        assert linear[1].dtype == mx.float32
        assert error(linear[1].swapaxes(-1, -2), data["decode.recurrent_state"]) <= BOUND
        assert error(linear[0].swapaxes(1, 2), data["decode.conv_state"][..., 1:]) <= BOUND
        assert error(full.keys[..., : full.offset, :], data["decode.keys"]) <= BOUND

    def test_chunked_prefill(self, golden: Golden) -> None:
        model, data = golden
        ids, cache = data["decode.ids"], model.make_cache()
        model(ids[:, :20], cache=cache)
        assert error(model(ids[:, 20:], cache=cache)[:, -1], data["chunked.logits_last"]) <= BOUND

    @pytest.mark.parametrize("size", [64, 128, 192])
    @pytest.mark.parametrize("T", [200, 320])
    def test_prefill_in_pieces_of_whole_chunks(self, golden: Golden, T: int, size: int) -> None:
        """The same tokens at every place and in what follows.

        Seen besides: the same bits of logits and states where the last piece has 64 tokens or more too, since then
        nothing of the model goes by its code for few rows; else 1e-6.
        """
        model, _ = golden
        ids = mx.array(np.random.default_rng(T).integers(5, 320, (1, T)))
        caches = [model.make_cache() for _ in range(2)]
        whole = model(ids, cache=caches[0])
        pieces = [model(ids[:, start : start + size], cache=caches[1]) for start in range(0, T, size)]
        logits = mx.concatenate(pieces, axis=1)
        assert error(logits, whole) <= BOUND
        assert mx.array_equal(logits.argmax(-1), whole.argmax(-1))
        last = [whole[:, -1:].argmax(-1)] * 2
        for _ in range(6):
            last = [model(token, cache=cache).argmax(-1) for token, cache in zip(last, caches, strict=True)]
            assert mx.array_equal(*last)

    @pytest.mark.parametrize("chunk", [None, 1, 3])
    def test_greedy_tokens(self, golden: Golden, chunk: int | None) -> None:
        model, data = golden
        prompt, expected = data["greedy.prompt"], data["greedy.tokens"]
        cache = model.make_cache()
        size = chunk or prompt.shape[1]
        for start in range(0, prompt.shape[1], size):
            logits = model(prompt[:, start : start + size], cache=cache)
        tokens = prompt
        while tokens.shape[1] < expected.shape[1]:
            token = logits[:, -1:].argmax(-1)
            tokens = mx.concatenate([tokens, token.astype(tokens.dtype)], axis=1)
            logits = model(token, cache=cache)
        assert mx.array_equal(tokens, expected)

    @pytest.mark.parametrize(("gpu", "macos", "bound"), [("m1", "15.0", BOUND), ("m5-pro", "26.4", 4e-3)])
    def test_on_the_shaders(self, golden: Golden, gpu: str, macos: str, bound: float) -> None:
        """A prompt and two tokens after it, every op of ours from the source of its kernel, in the emulator.

        M5 truncates operands of float32 products to tf32, unless MLX is told otherwise; observed: 1.2e-3.
        """
        model, data = golden
        ids, cache = data["decode.ids"][:, :37], model.make_cache()
        with mt.trace() as entries, mt.emulate(gpu, macos, check=False), mx.stream(mx.cpu):
            logits = [model(ids, cache=cache)[:, -1]]
            mx.eval(logits)
            for t in (37, 38):
                logits.append(model(data["decode.ids"][:, t : t + 1], cache=cache)[:, -1])
            mx.eval(logits)
        assert {entry.backend for entry in entries} == {"emulator"}
        assert {"mlx_tessl.gated_delta", "mlx_tessl.causal_conv1d"} <= {entry.op for entry in entries}
        kernels = [
            launch.kernel for entry in entries if entry.op == "mlx_tessl.gated_delta" for launch in entry.launches
        ]
        by_chunks = "gated_delta_tensorops_scan_float32" if gpu == "m5-pro" else "gated_delta_scan_float32"
        linear_layers = sum(layer.is_linear for layer in model.layers)
        assert kernels.count(by_chunks) == linear_layers  # the prompt, then two tokens
        assert sum(kernel.startswith("gated_delta_float32") for kernel in kernels) == 2 * linear_layers
        assert error(mx.stack(logits, axis=1), data["decode.logits"][:, :3]) <= bound

    def test_a_written_token_launches_each_op_once(self, tiny: qwen3_5.Model) -> None:
        cache = tiny.make_cache()
        with mt.emulate("m1", "15.0", check=False), mx.stream(mx.cpu):
            mx.eval(tiny(mx.arange(5, 25)[None], cache=cache), [c.state for c in cache])
            with mt.trace() as entries:
                mx.eval(tiny(mx.array([[25]]), cache=cache), [c.state for c in cache])
        assert len(entries) > 10 * len(tiny.layers)
        assert {len(entry.launches) for entry in entries} == {1}

    def test_a_written_token_has_at_most_half_of_mlx_lms_launches(self) -> None:
        def launches(lane: str) -> int:
            command = [sys.executable, str(BENCHMARK), "--graph", lane]
            count: int = json.loads(subprocess.check_output(command, text=True))["launches_a_token"]
            return count

        assert 0 < launches("tessl") <= launches("mlx-lm") / 2  # observed: 87 and 205

    def test_gradients(self, tiny: qwen3_5.Model) -> None:
        model, data = copy.deepcopy(tiny), tensors("qwen35_tiny", "grads")
        model.train()

        def loss(model: nn.Module) -> mx.array:
            logits, targets = model(data["ids"])[:, :-1], data["labels"][:, 1:]
            kept = targets != -100
            return (nn.losses.cross_entropy(logits, mx.where(kept, targets, 0)) * kept).sum() / kept.sum()

        value, gradients = nn.value_and_grad(model, loss)(model)
        assert abs((value - data["loss"][0]).item()) <= 1e-5
        for name, gradient in tree_flatten(gradients):
            expected = data[f"grad.{name.removeprefix('language_model.')}"]
            if name.endswith("conv1d.weight"):
                gradient = gradient.moveaxis(1, 2)
            assert error(gradient, expected) <= 1e-4, name


class TestCaches:
    def test_a_ragged_batch_goes_on_as_its_rows_would(self, tiny: qwen3_5.Model) -> None:
        """Prompts of 70, 33, 9 and 1 tokens, padded on the right, in pieces; then three tokens each."""
        rng = np.random.default_rng(0)
        prompts = [rng.integers(5, 320, n).tolist() for n in (70, 33, 9, 1)]
        following = mx.array(rng.integers(5, 320, (4, 3)))
        lengths = [len(prompt) for prompt in prompts]
        ids = mx.array([prompt + [0] * (70 - len(prompt)) for prompt in prompts])
        cache = merged_cache(tiny, 4)
        for c in cache:
            c.prepare(lengths=lengths, right_padding=[70 - n for n in lengths])
        for start in range(0, 70, 32):
            tiny(ids[:, start : start + 32], cache=cache)
        for c in cache:
            c.finalize()
        logits = mx.concatenate([tiny(following[:, t : t + 1], cache=cache) for t in range(3)], axis=1)
        for b, prompt in enumerate(prompts):
            alone = tiny(mx.concatenate([mx.array([prompt]), following[b : b + 1]], axis=1))
            assert error(logits[b : b + 1], alone[:, -3:]) <= BOUND

    def test_left_padded_rows_go_on(self, tiny: qwen3_5.Model) -> None:
        rng = np.random.default_rng(1)
        prompts = [rng.integers(5, 320, n).tolist() for n in (12, 5)]
        cache = padded_cache(tiny, [0, 7])
        tiny(mx.array([prompts[0], [0] * 7 + prompts[1]]), cache=cache)
        following = mx.array(rng.integers(5, 320, (2, 2)))
        logits = mx.concatenate([tiny(following[:, t : t + 1], cache=cache) for t in range(2)], axis=1)
        for b, prompt in enumerate(prompts):
            alone = tiny(mx.concatenate([mx.array([prompt]), following[b : b + 1]], axis=1))
            assert error(logits[b : b + 1], alone[:, -2:]) <= BOUND

    def test_snapshots_stay_as_they_were(self, tiny: qwen3_5.Model) -> None:
        """A deep copy, as mlx-lm's server keeps prefixes, shares memory and is not written to."""
        cache = tiny.make_cache()
        tiny(mx.arange(5, 45)[None], cache=cache)
        snapshot = copy.deepcopy(cache)
        question = mx.arange(100, 110)[None]
        first = tiny(question, cache=cache)
        mx.eval(first)
        again = tiny(question, cache=copy.deepcopy(snapshot))
        assert mx.array_equal(first, again)
        assert snapshot[3].offset == 40

    def test_what_trimming_can(self, tiny: qwen3_5.Model) -> None:
        """A state has no way back: only layers of attention can be trimmed, so a prompt cache as a whole cannot."""
        from mlx_lm.models.cache import can_trim_prompt_cache, trim_prompt_cache

        cache = tiny.make_cache()
        tiny(mx.arange(5, 45)[None], cache=cache)
        assert [c.is_trimmable() for c in cache] == [not layer.is_linear for layer in tiny.layers]
        assert not can_trim_prompt_cache(cache)
        assert trim_prompt_cache(cache, 3) == 0
        attention = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(tiny_config(layer_types=["full_attention"] * 4)))
        assert can_trim_prompt_cache(attention.make_cache())

    def test_kinds(self, tiny: qwen3_5.Model) -> None:
        assert [type(c) for c in tiny.make_cache()] == [ArraysCache, ArraysCache, ArraysCache, KVCache]

    def test_keys_in_few_bits(self, tiny: qwen3_5.Model) -> None:
        cache = tiny.make_cache()
        ids = mx.arange(5, 45)[None]
        tiny(ids, cache=cache)
        cache[3] = cache[3].to_quantized(group_size=32, bits=8)
        logits = tiny(mx.array([[50, 51]]), cache=cache)
        expected = tiny(mx.concatenate([ids, mx.array([[50, 51]])], axis=1))[:, -2:]
        assert error(logits, expected) <= 2e-2

    def test_memory_grows_with_the_text_and_no_faster(self, tiny: qwen3_5.Model) -> None:
        """Observed: 48 MB for 2048 tokens, 198 MB for 8192; scores alone would be 1 GB."""

        def peak(T: int) -> int:
            mx.reset_peak_memory()
            cache = tiny.make_cache()
            before = mx.get_active_memory()
            mx.eval(tiny.model(mx.zeros((1, T), mx.int32), cache))
            return mx.get_peak_memory() - before

        assert peak(8192) <= 4.5 * peak(2048)


def tiny_config(**changes: Any) -> dict[str, Any]:
    return {**config_of("qwen35_tiny"), **changes}


def renamed(weights: dict[str, mx.array], old: str, new: str) -> dict[str, mx.array]:
    return {new + key.removeprefix(old) if key.startswith(old) else key: x for key, x in weights.items()}


@pytest.fixture(scope="module")
def raw() -> dict[str, mx.array]:
    return tensors("qwen35_tiny", "model")


VISION = ["visual", "model.visual", "vision_tower", "model.vision_tower", "language_model.visual"]


class TestCheckpoints:
    """Every layout gives the parameters of the plain one, its norms shifted once."""

    @pytest.mark.parametrize("converted", [False, True])
    @pytest.mark.parametrize("with_mtp", [False, True])
    @pytest.mark.parametrize("vision", VISION)
    @pytest.mark.parametrize("tied", [False, True])
    def test_layouts(self, raw: dict[str, mx.array], converted: bool, with_mtp: bool, vision: str, tied: bool) -> None:
        text = tiny_config(tie_word_embeddings=tied)
        weights = raw if tied else {**raw, "lm_head.weight": raw["model.embed_tokens.weight"] * 2}
        plain = qwen3_5.sanitized(weights, tied=tied)
        if converted:
            weights = dict(plain)
        elif vision.startswith("model."):
            weights = renamed(weights, "model.", "model.language_model.")
        if with_mtp:
            weights |= {"mtp.fc.weight": mx.zeros((8, 16)), "mtp.layers.0.input_layernorm.weight": mx.zeros((64,))}
            weights |= {"model.mtp.norm.weight": mx.ones((64,)), "language_model.mtp.norm.weight": mx.ones((64,))}
        weights |= {f"{vision}.patch_embed.proj.weight": mx.zeros((8, 3, 2, 2, 2))}
        config = {"model_type": "qwen3_5", "text_config": text, "vision_config": {}}
        model = build(config, weights)
        parameters = dict(tree_flatten(model.parameters()))
        assert parameters.keys() == plain.keys()
        assert all(mx.array_equal(parameters[name], x) for name, x in plain.items())
        norms = [x.mean().item() for name, x in parameters.items() if name.endswith("norm.weight")]
        assert all(0.9 < mean < 1.1 for mean in norms), norms

    def test_released_layout(self, raw: dict[str, mx.array]) -> None:
        """Of Qwen3_5ForConditionalGeneration: a nested config, other names, and parts that are no text model's."""
        weights = renamed(raw, "model.", "model.language_model.")
        weights |= {"model.visual.blocks.0.norm.weight": mx.zeros((8,)), "mtp.fc.weight": mx.zeros((8, 16))}
        text = tiny_config()
        del text["tie_word_embeddings"]
        config = {"model_type": "qwen3_5", "text_config": text, "tie_word_embeddings": True}
        data = tensors("qwen35_tiny", "golden")
        assert error(build(config, weights)(data["prefill65.ids"]), data["prefill65.logits"]) <= BOUND

    def test_a_tied_head_may_be_stored(self, raw: dict[str, mx.array]) -> None:
        weights = {**raw, "lm_head.weight": raw["model.embed_tokens.weight"]}
        assert "lm_head" not in str(dict(tree_flatten(build(tiny_config(), weights).parameters())).keys())

    def test_without_convolutions(self) -> None:
        """Norms then tell themselves whether they were shifted."""
        config = tiny_config(layer_types=["full_attention"] * 4)
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
        converted = dict(tree_flatten(model.parameters()))
        shifted = [name for name in converted if name.endswith("norm.weight")]
        raw = {**converted, **{name: converted[name] - 1 for name in shifted}}
        for weights in (raw, converted):
            found = model.sanitize(weights)
            assert all(mx.array_equal(found[name], converted[name]) for name in converted)

    def test_unknown_text_weights(self, raw: dict[str, mx.array]) -> None:
        weights = {**raw, "model.layers.0.linear_attn.surprise.weight": mx.zeros((4,))}
        with pytest.raises(ValueError, match=r"layers\.0\.linear_attn\.surprise\.weight"):
            build(tiny_config(), weights)

    def test_missing_text_weights(self, raw: dict[str, mx.array]) -> None:
        weights = {key: x for key, x in raw.items() if "layers.2.mlp.up_proj" not in key}
        with pytest.raises(ValueError, match=r"layers\.2\.mlp\.up_proj\.weight"):
            build(tiny_config(), weights)

    def test_half_converted(self, raw: dict[str, mx.array]) -> None:
        key = "model.layers.1.linear_attn.conv1d.weight"
        with pytest.raises(ValueError, match="some convolutions"):
            qwen3_5.sanitized({**raw, key: raw[key].moveaxis(2, 1)}, tied=True)

    def test_one_parameter_twice(self, raw: dict[str, mx.array]) -> None:
        weights = {**raw, "model.language_model.norm.weight": raw["model.norm.weight"]}
        with pytest.raises(ValueError, match="there twice"):
            qwen3_5.sanitized(weights, tied=True)

    @pytest.mark.parametrize(
        ("mode", "bits", "group_size"),
        [("affine", 4, 64), ("affine", 8, 32), ("affine", 3, 32), ("mxfp4", 4, 32), ("mxfp8", 8, 32), ("nvfp4", 4, 16)],
    )
    def test_quantized(self, tiny: qwen3_5.Model, mode: str, bits: int, group_size: int) -> None:
        """Products with packed weights are those with their decoded values."""
        fits = lambda _, m: hasattr(m, "to_quantized") and m.weight.shape[-1] % group_size == 0  # noqa: E731
        model = copy.deepcopy(tiny)
        nn.quantize(model, group_size, bits, mode=mode, class_predicate=fits)
        weights = dict(tree_flatten(model.parameters()))
        again = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(tiny_config()))
        nn.quantize(again, group_size, bits, mode=mode, class_predicate=fits)
        again.load_weights(list(again.sanitize(weights).items()))
        decoded = copy.deepcopy(tiny)
        for name, module in decoded.named_modules():
            packed = dict(again.named_modules())[name]
            if "scales" in packed:
                arrays = packed.weight, packed.scales, packed.get("biases")
                module.weight = mx.dequantize(*arrays, group_size=group_size, bits=bits, mode=mode).astype(mx.float32)
        ids = mx.arange(5, 45)[None]
        assert error(again(ids), decoded(ids)) <= BOUND
        assert again.layers[0].linear_attn._joined.valid(again.layers[0].linear_attn.projections) is not None


class TestArguments:
    def test_irregular_layers(self, tiny: qwen3_5.Model) -> None:
        kinds = ["full_attention", "linear_attention", "full_attention", "full_attention"]
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(tiny_config(layer_types=kinds)))
        assert [layer.is_linear for layer in model.layers] == [False, True, False, False]
        ids, cache = mx.arange(5, 25)[None], model.make_cache()
        expected = model(ids)
        logits = mx.concatenate([model(ids[:, t : t + 4], cache=cache) for t in range(0, 20, 4)], axis=1)
        assert error(logits, expected) <= BOUND

    def test_interval(self) -> None:
        config = tiny_config(full_attention_interval=2)
        del config["layer_types"]
        model = qwen3_5.Model(qwen3_5.ModelArgs.from_dict(config))
        assert [layer.is_linear for layer in model.layers] == [True, False, True, False]

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"layer_types": ["linear_attention"] * 3}, "layer_types"),
            ({"layer_types": ["linear_attention"] * 3 + ["sliding"]}, "sliding"),
            ({"num_experts": 8}, "num_experts"),
            ({"hidden_act": "gelu"}, "hidden_act"),
            ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, "yarn"),
            ({"linear_num_key_heads": 3}, "linear_num_key_heads"),
            ({"num_attention_heads": 0}, "num_attention_heads is 0; it must be a positive integer"),
            ({"hidden_size": "64"}, "hidden_size is '64'; it must be a positive integer"),
            ({"linear_conv_kernel_dim": True}, "linear_conv_kernel_dim is True"),
            ({"num_attention_heads": 3, "num_key_value_heads": 2}, "divisible by the 2 key heads"),
            ({"rms_norm_eps": -1e-6}, "rms_norm_eps is -1e-06; it must be a positive number"),
            ({"rope_parameters": {"rope_theta": math.nan}}, "rope_theta is nan"),
            ({"rope_parameters": {"partial_rotary_factor": 1.25}}, "it must be at most 1"),
            ({"rope_parameters": {"partial_rotary_factor": 0.03125}}, "it must be a positive even number"),
            ({"rope_parameters": "default"}, "rope_parameters is 'default'; it must be a table"),
        ],
    )
    def test_refused(self, changes: dict[str, Any], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            qwen3_5.TextModelArgs.from_dict(tiny_config(**changes))

    def test_rope_theta_is_read_wherever_it_stands(self) -> None:
        text = qwen3_5.TextModelArgs.from_dict
        assert text({"rope_parameters": {"rope_theta": 5e6}}).rope_theta == 5e6
        assert text({"rope_theta": 3e6}).rope_theta == 3e6
        assert text({}).rope_theta == 1e4


class TestJoinedProjections:
    def test_they_share_memory_with_the_parameters(self, tiny: qwen3_5.Model) -> None:
        layer = tiny.layers[0].linear_attn
        stack = layer._joined.valid(layer.projections)
        assert stack is not None
        view, owner = (np.asarray(memoryview(x)) for x in (layer.in_proj_z.weight, stack.weight))
        assert np.shares_memory(view, owner)

    def test_replaced_weights_are_used(self, tiny: qwen3_5.Model) -> None:
        model, ids = copy.deepcopy(tiny), mx.arange(5, 25)[None]
        before = model(ids)
        mlp = model.layers[0].mlp
        mlp.up_proj.weight = mlp.up_proj.weight * 2
        assert error(model(ids), before) > 1e-3

    def test_adapters(self, tiny: qwen3_5.Model) -> None:
        """LoRA wraps any linear layer; at its start it changes nothing."""
        from mlx_lm.tuner.utils import linear_to_lora_layers

        model, ids = copy.deepcopy(tiny), mx.arange(5, 25)[None]
        before = model(ids)
        model.freeze()
        linear_to_lora_layers(model, 4, {"rank": 4, "scale": 2.0, "dropout": 0.0})
        names = {name.split("layers.0.")[-1] for name, _ in tree_flatten(model.trainable_parameters())}
        assert {"linear_attn.in_proj_qkv.lora_a", "linear_attn.in_proj_a.lora_b", "mlp.down_proj.lora_a"} <= names
        assert error(model(ids), before) <= BOUND

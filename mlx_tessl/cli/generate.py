"""Continue a prompt with a language model.

The text goes to standard output as it comes, speeds to standard error. Qwen3.5 runs on the kernels of this package,
any other model as mlx-lm runs it; `mlx-tessl lm generate` has all of mlx-lm's options.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from ._style import dim


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help="a checkpoint folder, or an id of the Hugging Face hub")
    parser.add_argument("prompt", nargs="?", metavar="PROMPT", help="the prompt; - or nothing reads standard input")
    parser.add_argument("--max-tokens", type=int, default=256, help="most tokens to write (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0, the default, takes the likeliest token")
    parser.add_argument("--top-p", type=float, default=1.0, help="the likeliest tokens with so much probability")
    parser.add_argument("--seed", type=int, help="of the random numbers")
    parser.add_argument("--raw", action="store_true", help="no chat template around the prompt")
    parser.add_argument("--adapter", metavar="FOLDER", help="LoRA adapters to load")
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def run(args: argparse.Namespace) -> int:
    if args.max_tokens < 1:
        raise ValueError(f"--max-tokens is {args.max_tokens}; it must be positive")
    prompt = sys.stdin.read() if args.prompt in (None, "-") else args.prompt
    if not prompt.strip():
        raise ValueError("the prompt is empty")
    try:
        pieces, last = _generate(args, prompt)
    except ModuleNotFoundError as error:
        raise ValueError(str(error)) from error
    speeds = {
        "prompt_tokens": last.prompt_tokens,
        "prompt_tokens_per_second": round(last.prompt_tps, 2),
        "generation_tokens": last.generation_tokens,
        "generation_tokens_per_second": round(last.generation_tps, 2),
        "peak_memory_gb": round(last.peak_memory, 3),
    }
    if args.json:
        print(json.dumps({"text": "".join(pieces), "finish_reason": last.finish_reason, **speeds}, ensure_ascii=False))
        return 0
    print()
    prefill = f"{last.prompt_tokens} tokens read at {last.prompt_tps:.1f}/s"
    decode = f"{last.generation_tokens} written at {last.generation_tps:.1f}/s"
    print(dim(f"{prefill}, {decode}, {last.peak_memory:.2f} GB at most"), file=sys.stderr)
    return 0


def _generate(args: argparse.Namespace, prompt: str) -> tuple[list[str], Any]:
    """The pieces of text, which are printed as they come unless for JSON, and mlx-lm's last report."""
    import mlx.core as mx

    from ..lm import load

    model, tokenizer = load(args.model, adapter_path=args.adapter)
    from mlx_lm import stream_generate
    from mlx_lm.sample_utils import make_sampler

    if args.seed is not None:
        mx.random.seed(args.seed)
    ids = prompt if args.raw or tokenizer.chat_template is None else _chat(tokenizer, prompt)
    sampler = make_sampler(temp=args.temperature, top_p=args.top_p)
    pieces, last = [], None
    for last in stream_generate(model, tokenizer, ids, max_tokens=args.max_tokens, sampler=sampler):
        pieces.append(last.text)
        if not args.json:
            print(last.text, end="", flush=True)
    return pieces, last


def _chat(tokenizer: Any, prompt: str) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template([{"role": "user", "content": prompt}], add_generation_prompt=True)
    return ids

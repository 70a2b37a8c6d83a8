"""The gated delta rule as transformers' Qwen3.5 defines it: inputs, and outputs and gradients in float64.

  python tests/golden/generate_gated_delta.py    # with torch 2.13.0

Writes gdn/<case>.safetensors beside itself. The float64 results of the plain recurrence over tokens are rounded to
float32. loss = <y, dy> + <state, dstate>; states are [B, Hv, Dk, Dv], as transformers has them.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import save_file

HERE = Path(__file__).parent
CASES = {  # B, T, Hk, Hv, Dk, Dv, whether a state comes in
    "t1": (2, 1, 2, 4, 32, 32, True),
    "t17": (1, 17, 2, 2, 16, 24, False),
    "t64": (1, 64, 1, 2, 32, 32, False),
    "t65": (2, 65, 2, 4, 32, 32, True),
    "t256": (1, 256, 1, 1, 64, 64, False),
}


def normalized(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)


def recurrence(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, g: torch.Tensor, beta: torch.Tensor, state: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    groups = v.shape[2] // k.shape[2]
    q = normalized(q).repeat_interleave(groups, 2) * q.shape[-1] ** -0.5
    k = normalized(k).repeat_interleave(groups, 2)
    ys = []
    for t in range(k.shape[1]):
        state = state * g[:, t].exp()[..., None, None]
        u = (v[:, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, t])) * beta[:, t][..., None]
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, t], u)
        ys.append(torch.einsum("bhkv,bhk->bhv", state, q[:, t]))
    return torch.stack(ys, 1), state


def case(B: int, T: int, Hk: int, Hv: int, Dk: int, Dv: int, starts_with_state: bool) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(hash((B, T, Hk, Hv, Dk, Dv)) % 2**31)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    inputs = {"q": normal(B, T, Hk, Dk), "k": normal(B, T, Hk, Dk), "v": normal(B, T, Hv, Dv)}
    # Decays from about 1 down to hard forgetting.
    softplus = torch.nn.functional.softplus(normal(B, T, Hv) * 2 - 2)
    inputs["g"] = -softplus * (0.2 + 4 * torch.rand(1, 1, Hv, generator=generator))
    inputs["beta"] = torch.sigmoid(normal(B, T, Hv))
    if starts_with_state:
        inputs["state"] = 0.3 * normal(B, Hv, Dk, Dv)
    dy, dstate = normal(B, T, Hv, Dv), 0.1 * normal(B, Hv, Dk, Dv)

    wide = {name: x.double().requires_grad_() for name, x in inputs.items()}
    zero = torch.zeros(B, Hv, Dk, Dv, dtype=torch.float64)
    y, state = recurrence(**{"state": zero, **wide})
    ((y * dy).sum() + (state * dstate).sum()).backward()
    results = {"y": y, "final_state": state, **{f"grad.{name}": x.grad for name, x in wide.items()}}
    return {**inputs, "dy": dy, "dstate": dstate, **{name: x.detach().float() for name, x in results.items()}}


if __name__ == "__main__":
    (HERE / "gdn").mkdir(exist_ok=True)
    for name, shape in CASES.items():
        tensors = {key: x.contiguous() for key, x in case(*shape).items()}
        save_file(tensors, HERE / "gdn" / f"{name}.safetensors")

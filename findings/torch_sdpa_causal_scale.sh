#!/usr/bin/env bash
# PyTorch 2.15.0 on the CPU: scaled_dot_product_attention with is_causal=True and a scale of zero or below gives NaN, and in half precision
# with more keys than queries plain wrong numbers. Its documentation (torch/nn/functional.py) scales the scores and then adds the mask.
# The CPU's flash kernel, the default, behaves as if -inf were filled in before scaling: -inf times 0 is NaN, times a negative
# scale +inf. The same triangle given as attn_mask, and the math backend, are right.
# Seen, worst distance from float64: scale 0.0: flash nan, math 1e-07, mask 1e-07; scale -0.5: flash nan, math 3e-07, mask 3e-07;
# bfloat16, 3 queries, 700 keys, scale -0.5: flash 2.2 without a NaN, math 0.003, mask 0.003
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
"$a/v/bin/python" - <<'P'
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as attend

def off(queries, keys, dtype, scale):
    """The worst distance of each way to ask from what the documentation's formula gives in float64."""
    numbers = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, length, 16, generator=numbers).to(dtype) for length in (queries, keys, keys))
    triangle = torch.ones(queries, keys, dtype=torch.bool).tril()
    right = (q.double() @ k.double().mT * scale).masked_fill(~triangle, float("-inf")).softmax(-1) @ v.double()
    found = {"default": attend(q, k, v, is_causal=True, scale=scale), "mask": attend(q, k, v, attn_mask=triangle, scale=scale)}
    for name, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("math", SDPBackend.MATH)):
        with sdpa_kernel(backend):
            found[name] = attend(q, k, v, is_causal=True, scale=scale)
    return {name: (o - right).abs().max().item() for name, o in found.items()}

for case in ((8, 8, torch.float32, 0.0), (8, 8, torch.float32, -0.5), (3, 700, torch.bfloat16, -0.5)):
    found = off(*case)
    print(*case, found)
    if not (found["math"] < 0.05 and found["mask"] < 0.05) or found["default"] < 0.5 or found["flash"] < 0.5:
        raise SystemExit(1)
P

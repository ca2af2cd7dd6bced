#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/_higher_order_ops/flex_attention.py, _math_attention_inner: block_mask[-1]): outside of torch.compile
# flex_attention reads of a BlockMask its mask_mod alone; the lists of blocks, which say what is computed, are not looked at. A mask
# made by BlockMask.from_kv_blocks, whose mask_mod is optional and sees all, is therefore no mask in eager mode and one when compiled.
# to_dense() shows the lists. torch.compile needs a C++ compiler; no GPU is needed.
# Seen: each query's list holds the first of two blocks: eager is 2e-07 from attention to both, compiled 0.0 from attention to the first
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
TORCHINDUCTOR_CACHE_DIR="$a/c" "$a/v/bin/python" -W ignore - <<'P'
import torch
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as attend

q, k, v = torch.randn(3, 1, 1, 256, 16, generator=torch.Generator().manual_seed(1))
counts, blocks = torch.ones(1, 1, 2, dtype=torch.int32), torch.tensor([0, 1], dtype=torch.int32).expand(1, 1, 2, 2).contiguous()
mask = BlockMask.from_kv_blocks(counts, blocks, BLOCK_SIZE=128)
expected = {"both blocks": attend(q, k, v), "first block": attend(q, k[..., :128, :], v[..., :128, :])}
print("to_dense", mask.to_dense().flatten().tolist())
off = {}
for name, call in (("eager", flex_attention), ("compiled", torch.compile(flex_attention))):
    o = call(q, k, v, block_mask=mask)
    off[name] = {what: (o - right).abs().max().item() for what, right in expected.items()}
    print(name, "off", off[name])
raise SystemExit(not (off["eager"]["both blocks"] < 1e-5 < 0.01 < off["eager"]["first block"] and off["compiled"]["first block"] < 1e-5))
P

#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/_inductor/fx_passes/fuse_attention.py): torch.compile finds attention written by hand, softmax(q kᵀ/c + mask) v, and
# puts scaled_dot_product_attention in its place. That gives 0 in a row that a mask of -inf hides wholly, where the written softmax gives NaN:
# the NaN of a wrong mask is seen in training and in eager mode, and gone where the compiled model infers. With a gradient asked for, or
# with masked_fill in place of the addition, it stays NaN: no pattern fits. torch.compile needs a C++ compiler; no GPU is needed.
# Seen: the hidden row: eager nan; compiled 0.0 with an added mask under no_grad, nan with a gradient or masked_fill; other rows agree
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
TORCHINDUCTOR_CACHE_DIR="$a/c" "$a/v/bin/python" -W ignore - <<'P'
import torch

def added(q, k, v, mask):
    return torch.softmax(q @ k.transpose(-2, -1) / 4.0 + mask, -1) @ v

def filled(q, k, v, seen):
    return torch.softmax((q @ k.transpose(-2, -1) / 4.0).masked_fill(~seen, float("-inf")), -1) @ v

q, k, v = torch.randn(3, 2, 4, 64, 16, generator=torch.Generator().manual_seed(1))
seen = torch.ones(2, 1, 64, 64, dtype=torch.bool)
seen[:, :, 3] = False
mask = torch.zeros(2, 1, 64, 64).masked_fill(~seen, float("-inf"))
row = {}
with torch.no_grad():
    for name, written, last in (("added", added, mask), ("filled", filled, seen)):
        eager, compiled = written(q, k, v, last), torch.compile(written)(q, k, v, last)
        others = (eager - compiled)[:, :, 4:].abs().max().item()
        row[name] = eager[0, 0, 3, 0].item(), compiled[0, 0, 3, 0].item()
        print(name, "hidden row: eager, compiled", row[name], "other rows differ by", others)
training = torch.compile(added)(q.requires_grad_(True), k, v, mask)[0, 0, 3, 0].item()
print("added, compiled, with a gradient asked for:", training)
nan = [value != value for pair in (row["added"], row["filled"]) for value in pair]
raise SystemExit(not (nan == [True, False, True, True] and row["added"][1] == 0 and training != training and others < 1e-5))
P

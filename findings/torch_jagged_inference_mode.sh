#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/nested): a nested tensor of the jagged layout that was made outside of torch.inference_mode cannot be transposed
# inside, nor then come to scaled_dot_product_attention, whose heads want that. Under no_grad both run, and so they do in inference_mode
# where the tensor was made inside. The error names no nested tensor.
# Seen: RuntimeError: Cannot set version_counter for inference tensor
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
"$a/v/bin/python" -W ignore - <<'P'
import torch

def rows():
    return torch.nested.nested_tensor([torch.randn(3, 2, 8), torch.randn(5, 2, 8)], layout=torch.jagged)

def attend(x):
    x = x.transpose(1, 2)
    return torch.nn.functional.scaled_dot_product_attention(x, x, x)

def outcome(mode, make):
    try:
        with mode():
            attend(make())
        return "runs"
    except RuntimeError as error:
        return str(error).splitlines()[0]

outside = rows()
seen = {"no_grad, made outside": outcome(torch.no_grad, lambda: outside),
        "inference_mode, made inside": outcome(torch.inference_mode, rows),
        "inference_mode, made outside": outcome(torch.inference_mode, lambda: outside)}
for case, what in seen.items():
    print(f"{case}: {what}")
raise SystemExit([*seen.values()] != ["runs", "runs", "Cannot set version_counter for inference tensor"])
P

#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/_library/autograd.py): torch.library.register_autograd gives an operator derivatives for autograd, but
# torch.func.grad of the same operator raises, and asks for a setup_context that the operator has. torch.func takes
# derivatives of autograd.Function alone; a Function with setup_context and generate_vmap_rule around the operator works.
# Seen: autograd: 6.0; torch.func.grad: RuntimeError: In order to use an autograd.Function with functorch transforms …
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
"$a/v/bin/python" - <<'P'
import torch
library = torch.library.Library("finding", "DEF")
library.define("square(Tensor x) -> Tensor")
library.impl("square", lambda x: x * x, "CPU")
torch.library.register_fake("finding::square", torch.empty_like, lib=library)
torch.library.register_autograd("finding::square", lambda ctx, d: 2 * d * ctx.saved_tensors[0],
                                setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs), lib=library)
x = torch.tensor(3.0, requires_grad=True)
torch.ops.finding.square(x).backward()
print("autograd:", x.grad.item())
try:
    print("torch.func.grad:", torch.func.grad(torch.ops.finding.square)(torch.tensor(3.0)).item())
except RuntimeError as error:
    print("torch.func.grad: RuntimeError:", str(error)[:80], "…")
    raise SystemExit(x.grad.item() != 6)
raise SystemExit(1)
P

#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/autograd/function.py): a backward under @once_differentiable raises at a second derivative only where
# the incoming gradient requires one. Where what requires it is a saved tensor, as after a sum, the result is simply
# not connected: the second-order term is missing and nothing is said.
# Seen: first derivative requires grad: False; x² + x³ with the cube by such a function: second derivative 2.0, right 20.0
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
"$a/v/bin/python" - <<'P'
import torch

class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, d):
        x, = ctx.saved_tensors
        return 3 * d * x * x

x = torch.tensor(3.0, requires_grad=True)
first, = torch.autograd.grad(Cube.apply(x).sum(), x, create_graph=True)
print("first derivative requires grad:", first.requires_grad)
first, = torch.autograd.grad((x ** 2 + Cube.apply(x)).sum(), x, create_graph=True)
second, = torch.autograd.grad(first, x)
print("second derivative", second.item(), "right", 20.0)
raise SystemExit(second.item() != 2)
P

#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/autograd/__init__.py: is_grads_batched uses the vmap of before torch.func): under
# torch.autograd.grad(…, is_grads_batched=True) the Python backward of an autograd.Function gets a tensor of the unbatched shape
# of which functorch's predicates say that it is plain, with no interpreter on the stack. It has no storage: whoever hands its
# pointer to a kernel has to ask for that.
# Seen: shape (3,), is_batchedtensor False, is_functorch_wrapped_tensor False, interpreter False, storage False
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
"$a/v/bin/python" - <<'P'
import torch

seen = {}


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, d):
        functorch = torch._C._functorch
        seen.update(shape=tuple(d.shape), batched=functorch.is_batchedtensor(d),
                    wrapped=functorch.is_functorch_wrapped_tensor(d),
                    interpreter=functorch.peek_interpreter_stack() is not None, storage=torch._C._has_storage(d))
        return d * 2


x = torch.randn(3, requires_grad=True)
grads, = torch.autograd.grad(Double.apply(x), x, torch.eye(3), is_grads_batched=True)
print(seen)
right = torch.equal(grads, 2 * torch.eye(3))
raise SystemExit(not right or seen != {"shape": (3,), "batched": False, "wrapped": False, "interpreter": False, "storage": False})
P

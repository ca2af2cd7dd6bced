"""What calls give that no kernel differentiates (of a cache, of float8_e4m3fn) where an input requires a gradient: outputs that require
one, too, and whose backward says so. The forward is the one without gradients, and nothing is dropped in silence."""

import torch

from dfa._torch import _transformed

OF_CACHE = ("the gradient of attention to a cache (paged by block_table or page_table, or of flash_attn_with_kvcache) is not computed; accepted: "
            "torch.no_grad() around the call, or the backward of keys and values without a cache")
OF_E4M3 = ("the gradient of attention in float8_e4m3fn is not computed; accepted: torch.no_grad() around the call, or the backward of q, k and v "
           "of 16 or 32 bits")

_library = torch.library.Library("dfa", "FRAGMENT")
_library.define("undifferentiated(Tensor o, Tensor lse, Tensor[] learned, str why) -> (Tensor, Tensor)")
_library.define("refused_gradient(Tensor d_output, SymInt[] sizes, str why) -> Tensor")


def learned_of(*inputs):
    """Those that a gradient is asked of."""
    return [x for x in inputs if isinstance(x, torch.Tensor) and x.requires_grad] if torch.is_grad_enabled() else []


def detached(*inputs):
    return [x.detach() if isinstance(x, torch.Tensor) else x for x in inputs]


def undifferentiated(o, lse, learned, why):
    """(o, lse) as outputs of these inputs, of which there is one at least; why: what their backward raises. They are copies, as no operator
    may give an input back."""
    if not torch.compiler.is_compiling() and _transformed():  # torch.func does not take an operator's own rule
        raise NotImplementedError(why)
    return torch.ops.dfa.undifferentiated(o, lse, learned, why)


def _copied(o, lse, learned, why):
    return o.clone(), lse.clone()


def _refuse(d_output, sizes, why):
    raise NotImplementedError(why)


for _device in ("CPU", "CUDA"):
    _library.impl("undifferentiated", _copied, _device)
    _library.impl("refused_gradient", _refuse, _device)
torch.library.register_fake("dfa::undifferentiated", _copied, lib=_library)


@torch.library.register_fake("dfa::refused_gradient", lib=_library)
def _fake_gradient(d_output, sizes, why):
    return d_output.new_empty(sizes)


def _keep_sizes(ctx, inputs, output):
    """No tensor is kept: of new rows that are written to a cache before the backward PyTorch would speak first."""
    _, _, learned, ctx.why = inputs
    ctx.sizes = [x.shape for x in learned]
    ctx.set_materialize_grads(False)


def _differentiate(ctx, d_o, d_lse):
    d_output = d_lse if d_o is None else d_o
    return None, None, [torch.ops.dfa.refused_gradient(d_output, sizes, ctx.why) for sizes in ctx.sizes], None


torch.library.register_autograd("dfa::undifferentiated", _differentiate, setup_context=_keep_sizes, lib=_library)

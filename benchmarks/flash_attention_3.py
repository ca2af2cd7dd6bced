"""FlashAttention-3's operators as one differentiable call over packed rows, from whichever build is there."""
import torch


def varlen(library=None):
    """f(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k) → o, causal.

    library: a file that registers torch.ops.flash_attn_3; xformers has one."""
    if library is not None:
        torch.ops.load_library(library)
    elif not hasattr(torch.ops.flash_attn_3, "fwd"):
        import flash_attn_interface  # noqa: F401: registers the operators

    class Function(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, cu_q, cu_k, most_q, most_k):
            ctx.lengths = {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "max_seqlen_q": most_q, "max_seqlen_k": most_k,
                           "softmax_scale": q.shape[-1] ** -0.5, "is_causal": True}
            o, lse, *_ = torch.ops.flash_attn_3.fwd(q, k, v, num_splits=1, **ctx.lengths)
            ctx.save_for_backward(q, k, v, o, lse)
            return o

        @staticmethod
        def backward(ctx, d_o):
            q, k, v, o, lse = ctx.saved_tensors
            gradients = [torch.empty_like(x) for x in (q, k, v)]
            torch.ops.flash_attn_3.bwd(d_o.contiguous(), q, k, v, o, lse, *gradients, **ctx.lengths)
            return *gradients, None, None, None, None

    return Function.apply

"""dfa.attention with logits, masks and dropout of batches that lie apart, [b, h, s, d]: what rows that follow each other give, without a copy."""

import pytest

torch = pytest.importorskip("torch")
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import dfa  # noqa: E402

B, HQ, HK, SQ, SK, D, DV = 2, 4, 2, 30, 50, 16, 24
# name: (options, with tensors' shapes in their place; is there no copy?)
GIVEN = {
    "softcap": ({"softcap": 5.0, "causal": True}, True),
    "slopes": ({"alibi_slopes": (HQ,)}, True),
    "slopes of each batch": ({"alibi_slopes": (B, HQ), "window": (9, 3)}, True),
    "sinks": ({"sinks": (HQ,), "causal": True}, True),
    "a scale of each head": ({"scale": (HQ,), "softcap": 5.0}, True),
    "one scale": ({"scale": (1,), "sinks": (HQ,)}, True),
    "a bias of all": ({"bias": (B, HQ, SQ, SK), "causal": True}, True),
    "one bias": ({"bias": (1, 1, SQ, SK)}, True),
    "a bias of keys": ({"bias": (B, HQ, 1, SK)}, True),
    "a bias of each head": ({"bias": (1, HQ, SQ, SK)}, False),
    "a bias of each batch": ({"bias": (B, 1, SQ, SK), "sinks": (HQ,)}, False),
    "dropout": ({"dropout_p": 0.3, "seed": 7, "causal": True}, True),
    "a chunk": ({"chunk": 8, "causal": True}, True),
    "a text": ({"score_mod": "score * 0.5f + 0.01f * kv_idx"}, True),
    "a text that names heads": ({"mask_mod": "kv_idx % 3 != h % 3", "score_mod": "score + 0.1f * b"}, False),
}


def made(given):
    generator = torch.Generator().manual_seed(1)
    return {name: (torch.rand(value, generator=generator) + 0.1).requires_grad_(name != "alibi_slopes")
            if isinstance(value, tuple) and name != "window" else value for name, value in given.items()}


def inputs():
    generator = torch.Generator().manual_seed(2)
    return [torch.randn(B, h, s, d, generator=generator) for h, s, d in ((HQ, SQ, D), (HK, SK, D), (HK, SK, DV))]


def as_rows(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


def results(q, k, v, options):
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o, lse = dfa.attention(*leaves, return_lse=True, **options)
    assert o.shape == (B, HQ, SQ, DV) and lse.shape == (B, HQ, SQ) and lse.is_contiguous()
    learned = [x for x in options.values() if isinstance(x, torch.Tensor) and x.requires_grad]
    g = torch.linspace(-1, 1, o.numel()).reshape(o.shape)
    return [o, lse, *torch.autograd.grad((o * g).sum() + lse.square().sum(), [*leaves, *learned])]


@pytest.mark.parametrize("name", GIVEN)
def test_batches_apart_give_what_rows_give(name):
    options = made(GIVEN[name][0])
    apart, rows = results(*inputs(), options), results(*map(as_rows, inputs()), options)
    for came, wanted in zip(apart, rows):
        torch.testing.assert_close(came, wanted, rtol=1e-5, atol=1e-5)


class Copies(TorchDispatchMode):
    """Counts copies of tensors as large as the smallest of q, k and v."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        out = function(*arguments, **(options or {}))
        copies = function.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_, torch.ops.aten._to_copy)
        self.count += copies and isinstance(out, torch.Tensor) and out.dim() > 2 and out.shape[-1] in (D, DV)
        return out


@pytest.mark.parametrize("name", GIVEN)
def test_nothing_is_copied(name):
    options, free = GIVEN[name]
    if "scale" in options:
        options = options | {"scale": 0.3}  # that of a tensor multiplies q
    with torch.no_grad(), Copies() as copies:
        dfa.attention(*inputs(), **made(options))
    assert copies.count == (0 if free else 3)


def test_a_batch_that_is_spread_and_sizes_of_zero_are_as_before():
    q, k, v = inputs()
    o = dfa.attention(q[:1].expand(B, -1, -1, -1), k, v, softcap=3.0)
    torch.testing.assert_close(o[1], dfa.attention(q[:1], k[1:], v[1:], softcap=3.0)[0])
    assert dfa.attention(q[:, :, :0], k, v, softcap=3.0).shape == (B, HQ, 0, DV)
    with pytest.raises(ValueError, match="alibi_slopes"):
        dfa.attention(q, k, v, alibi_slopes=torch.rand(B * HQ))
    with pytest.raises(ValueError, match="bias has shape"):
        dfa.attention(q, k, v, bias=torch.rand(1, B * HQ, SQ, SK))

"""block_mask= against the same mask written out, and against PyTorch's flex_attention: values, gradients, what is refused."""

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import dfa  # noqa: E402
import dfa.torch  # noqa: E402

DOCUMENTS = torch.tensor([0] * 37 + [1] * 90 + [2] * 1 + [3] * 200)
LEFT_OUT = torch.rand(2, 4, 6, 6, generator=torch.Generator().manual_seed(3)) < 0.5


def causal(b, h, q, k):
    return q >= k


def window(b, h, q, k):
    return (q - k).abs() <= 70


def documents(b, h, q, k):
    return (DOCUMENTS[q] == DOCUMENTS[k]) & (q >= k)


def of_each_head(b, h, q, k):
    """Blocks that are there by batch and head, and in those what a window shows."""
    return LEFT_OUT[b, h, q // 64, k // 64] & (q - k < 150)


def sparse(b, h, q, k):
    return (q // 64 == k // 64) & (q // 64 != 2)  # queries 128 to 191 see nothing


MASKS = [(causal, 1, 1), (window, 1, 1), (documents, 1, 1), (of_each_head, 2, 4), (sparse, 2, 1), (sparse, 1, 4)]


def qkv(sq=328, sk=328, hk=2, dtype=torch.float32, d=16, dv=24):
    generator = torch.Generator().manual_seed(2)
    sizes = (2, 4, sq, d), (2, hk, sk, d), (2, hk, sk, dv)
    return [torch.randn(size, generator=generator).to(dtype).requires_grad_() for size in sizes]


def made(mask_mod, b, h, sq=328, sk=328, side=64):
    return flex.create_block_mask(mask_mod, b if b > 1 else None, h if h > 1 else None, sq, sk, device="cpu", BLOCK_SIZE=side)


def seen_by(mask_mod, b=2, h=4, sq=328, sk=328):
    axes = [torch.arange(n).view([-1 if at == dim else 1 for at in range(4)]) for dim, n in enumerate((b, h, sq, sk))]
    return mask_mod(*axes).expand(b, h, sq, sk)


def written_out(q, k, v, seen, scale=0.25, sinks=None):
    """(o, lse)"""
    k, v = (x.repeat_interleave(4 // x.shape[1], 1) for x in (k, v))
    logits = (q @ k.transpose(2, 3) * scale).masked_fill(~seen, -torch.inf)
    if sinks is not None:
        logits = torch.cat([logits, sinks.view(1, -1, 1, 1).expand(*logits.shape[:3], 1)], 3)
    blind = logits.isneginf().all(3, keepdim=True)
    p = torch.softmax(logits.masked_fill(blind, 0), 3).masked_fill(blind, 0)[..., :k.shape[2]]
    return p @ v, torch.logsumexp(logits, 3)


@pytest.mark.parametrize(("mask_mod", "b", "h"), MASKS)
@pytest.mark.parametrize("hk", [1, 2, 4])
def test_values_and_gradients_are_those_written_out(mask_mod, b, h, hk):
    leaves = qkv(hk=hk)
    wide = [x.detach().double().requires_grad_() for x in leaves]
    o, lse = dfa.attention(*leaves, block_mask=made(mask_mod, b, h), return_lse=True)
    wanted_o, wanted_lse = written_out(*wide, seen_by(mask_mod))
    torch.testing.assert_close(o, wanted_o.float(), rtol=1e-5, atol=5e-6)
    torch.testing.assert_close(lse, wanted_lse.float(), rtol=1e-5, atol=5e-6)

    def loss(o, lse):
        return (o * o).sum() + torch.where(lse.isneginf(), 0, lse).sin().sum()
    for a, b in zip(torch.autograd.grad(loss(o, lse), leaves), torch.autograd.grad(loss(wanted_o, wanted_lse), wide)):
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=5e-5)


@pytest.mark.parametrize(("sq", "sk"), [(1, 300), (100, 328), (328, 70), (129, 129)])
@pytest.mark.parametrize("side", [16, (32, 128), 128])
def test_lengths_and_block_sizes(sq, sk, side):
    leaves = [x.detach() for x in qkv(sq, sk)]
    o = dfa.attention(*leaves, block_mask=made(window, 1, 1, sq, sk, side))
    wanted = written_out(*(x.double() for x in leaves), seen_by(window, sq=sq, sk=sk))[0]
    torch.testing.assert_close(o, wanted.float(), rtol=1e-5, atol=5e-6)


@pytest.mark.parametrize(("mask_mod", "b", "h"), MASKS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_it_agrees_with_flex_attention(mask_mod, b, h, dtype):
    leaves = [x.detach() for x in qkv(dtype=dtype)]  # on processors theirs has no gradients
    block_mask = made(mask_mod, b, h)
    o, lse = dfa.torch.flex_attention(*leaves, block_mask=block_mask, enable_gqa=True, scale=0.3, return_lse=True)
    theirs, aux = flex.flex_attention(*leaves, block_mask=block_mask, enable_gqa=True, scale=0.3,
                                      return_aux=flex.AuxRequest(lse=True))
    close = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    torch.testing.assert_close(o, theirs, **close)
    torch.testing.assert_close(lse, aux.lse, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 2e-2)


def test_blocks_in_no_list_are_not_read():
    leaves = [x.detach() for x in qkv()]
    block_mask = made(lambda b, h, q, k: k // 64 != 3, 1, 1)
    clean = dfa.attention(*leaves, block_mask=block_mask)
    for x in leaves[1:]:
        x[:, :, 192:256] = torch.nan
    torch.testing.assert_close(dfa.attention(*leaves, block_mask=block_mask), clean, rtol=0, atol=0)


def test_beside_causal_masks_and_logits():
    leaves, sinks = qkv(), torch.randn(4, requires_grad=True)
    block_mask = made(window, 1, 1)
    o, lse = dfa.attention(*leaves, block_mask=block_mask, causal=True, sinks=sinks, return_lse=True)
    wide = [x.detach().double().requires_grad_() for x in (*leaves, sinks)]
    wanted, wanted_lse = written_out(*wide[:3], seen_by(window) & seen_by(causal), sinks=wide[3])
    torch.testing.assert_close(lse, wanted_lse.float(), rtol=1e-5, atol=5e-6)
    pairs = zip(torch.autograd.grad((o * o).sum() + lse.sum(), (*leaves, sinks)),
                torch.autograd.grad((wanted * wanted).sum() + wanted_lse.sum(), wide))
    for a, b in pairs:
        torch.testing.assert_close(a, b.float(), rtol=1e-5, atol=5e-5)
    capped = dfa.attention(*leaves, block_mask=block_mask, softcap=2.0, alibi_slopes=torch.rand(4), chunk=100)
    assert capped.isfinite().all()


def test_lists_serve_more_than_one_call():
    leaves, block_mask = [x.detach() for x in qkv()], made(documents, 1, 1)
    lists = dfa.torch.block_lists(block_mask)
    assert lists.bits.shape[0] <= int(block_mask.kv_num_blocks.sum())
    torch.testing.assert_close(dfa.attention(*leaves, block_mask=lists), dfa.attention(*leaves, block_mask=block_mask))
    # Every block of the diagonal is like the others: one bitmap serves them, and that at the ragged end.
    assert dfa.torch.block_lists(made(causal, 1, 1)).bits.shape[0] <= 2


def test_blocks_without_a_mask_mod_are_whole():
    counts, indices = torch.tensor([[[2, 1]]], dtype=torch.int32), torch.tensor([[[[1, 0], [0, 1]]]], dtype=torch.int32)
    block_mask = flex.BlockMask.from_kv_blocks(counts, indices, BLOCK_SIZE=64)
    lists = dfa.torch.block_lists(block_mask)
    assert lists.bits is None and lists.kv_indices[0, 0, 0].tolist() == [0, 1]  # ascending, in whatever order they came
    leaves = [x.detach() for x in qkv(128, 128)]
    wanted = written_out(*(x.double() for x in leaves), seen_by(lambda b, h, q, k: (q < 64) | (k < 64), sq=128, sk=128))[0]
    torch.testing.assert_close(dfa.attention(*leaves, block_mask=block_mask), wanted.float(), rtol=1e-5, atol=5e-6)


def test_other_layouts_head_dims_and_empty_sizes():
    block_mask = made(causal, 1, 1)
    leaves = qkv(d=20, dv=12)
    wanted = written_out(*(x.detach().double() for x in leaves), seen_by(causal), 20 ** -0.5)[0].float()
    torch.testing.assert_close(dfa.attention(*leaves, block_mask=block_mask), wanted, rtol=1e-5, atol=5e-6)
    turned = [x.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_() for x in leaves]
    o = dfa.attention(*turned, block_mask=block_mask)
    torch.testing.assert_close(o, wanted, rtol=1e-5, atol=5e-6)
    again = dfa.attention(*leaves, block_mask=block_mask)
    for a, b in zip(torch.autograd.grad((o * o).sum(), turned), torch.autograd.grad((again * again).sum(), leaves)):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    one = [x.detach()[:1] for x in leaves]
    o = dfa.attention(leaves[0].detach(), *one[1:], block_mask=block_mask)  # a batch of 1 for all
    torch.testing.assert_close(o[:1], dfa.attention(*one, block_mask=block_mask))
    assert dfa.attention(*(x.detach()[:0] for x in leaves), block_mask=block_mask).shape == (0, 4, 328, 12)


def test_compiled_it_runs_outside_of_the_graph():
    leaves, block_mask = [x.detach() for x in qkv()], made(causal, 1, 1)
    compiled = torch.compile(lambda q, k, v: dfa.attention(q * 2, k, v, block_mask=block_mask) + 1, backend="eager")
    torch.testing.assert_close(compiled(*leaves), dfa.attention(leaves[0] * 2, *leaves[1:], block_mask=block_mask) + 1)


def refused(error, text, *arguments, call=dfa.attention, **options):
    with pytest.raises(error) as caught:
        call(*arguments, **options)
    assert text in str(caught.value) and "\n" not in str(caught.value), str(caught.value)


def test_what_does_not_go_is_refused_by_name():
    leaves, block_mask = qkv(), made(causal, 1, 1)
    refused(TypeError, "block_mask is int", *leaves, block_mask=3)
    refused(TypeError, "block_mask is Tensor", *leaves, block_mask=torch.ones(328, 328, dtype=torch.bool))
    refused(ValueError, "block_mask is of 328 queries and 328 keys, but there are 100 and 328", *qkv(100), block_mask=block_mask)
    refused(ValueError, "block_mask is of 3 batches", *leaves, block_mask=made(causal, 3, 1))
    refused(ValueError, "and 2 heads, but there are 2 and 4", *leaves, block_mask=made(causal, 1, 2))
    refused(ValueError, "BLOCK_SIZE (40, 64)", *leaves, block_mask=made(causal, 1, 1, side=(40, 64)))
    refused(ValueError, "mask beside block_mask", *leaves, block_mask=block_mask, mask=torch.ones(1, 1, 1, 1).bool())
    refused(ValueError, "bias beside block_mask", *leaves, block_mask=block_mask, bias=torch.ones(1, 1, 1, 1))
    refused(ValueError, "algorithm auto", *leaves, block_mask=block_mask, algorithm="standard")
    refused(ValueError, "q, k, v have element types torch.float64", *(x.double() for x in leaves), block_mask=block_mask)
    refused(ValueError, "block_mask is not supported on arrays of numpy", *(x.detach().numpy() for x in leaves), block_mask=block_mask)
    refused(ValueError, "block_mask is on meta", *leaves, block_mask=dfa.torch.block_lists(block_mask)._replace(
        kv_counts=torch.empty(1, 1, 6, dtype=torch.int32, device="meta")))
    with pytest.raises(RuntimeError, match="torch.func"):
        torch.func.grad(lambda q: dfa.attention(q, *leaves[1:], block_mask=block_mask).sum())(leaves[0])
    o = dfa.attention(*leaves, block_mask=block_mask)
    for of in (o * o, o):  # behind a sum the first gradient hangs on saved tensors alone
        (gradient,) = torch.autograd.grad(of.sum(), leaves[:1], create_graph=True)
        with pytest.raises(RuntimeError, match="second derivative.*accepted"):
            torch.autograd.grad(gradient.sum(), leaves[:1])


def test_flex_attentions_other_arguments_are_refused_by_name():
    leaves = qkv(hk=4)
    call = dfa.torch.flex_attention
    refused(ValueError, "score_mod", *leaves, call=call, score_mod=lambda s, b, h, q, k: s)
    refused(ValueError, "kernel_options", *leaves, call=call, kernel_options={"BACKEND": "TRITON"})
    refused(ValueError, "enable_gqa=True", *qkv(hk=2), call=call)
    refused(TypeError, "return_aux is bool", *leaves, call=call, return_aux=True)
    refused(ValueError, "max_scores", *leaves, call=call, return_aux=flex.AuxRequest(max_scores=True))
    refused(ValueError, "return_lse beside return_aux", *leaves, call=call, return_aux=flex.AuxRequest(lse=True), return_lse=True)
    torch.testing.assert_close(call(*leaves), dfa.attention(*leaves))
    o, aux = call(*leaves, return_aux=flex.AuxRequest(lse=True))
    torch.testing.assert_close((o, aux.lse), dfa.attention(*leaves, return_lse=True))
    assert call(*leaves, return_aux=flex.AuxRequest())[1].lse is None


def of_lists(counts, indices, full=None, **options):
    rows = [torch.tensor([[x]], dtype=torch.int32) if x is not None else None for x in (counts, indices, *(full or (None, None)))]
    mask = flex.BlockMask.from_kv_blocks(torch.zeros_like(rows[0]), torch.zeros_like(rows[1]), BLOCK_SIZE=64, **options)
    mask.kv_num_blocks, mask.kv_indices, mask.full_kv_num_blocks, mask.full_kv_indices = rows
    return mask


def test_lists_that_are_none_are_refused_by_name():
    leaves = qkv(128, 128)

    def bad(text, *lists, **options):
        refused(ValueError, text, *leaves, block_mask=of_lists(*lists, **options))
    bad("kv_num_blocks", [3, 1], [[0, 1], [0, 1]])
    bad("kv_num_blocks", [-1, 1], [[0, 1], [0, 1]])
    bad("names blocks from 0 to 2 in kv_indices", [2, 1], [[0, 2], [0, 1]])
    bad("names blocks from -1 to", [2, 1], [[-1, 1], [0, 1]])
    bad("names a block twice in kv_indices", [2, 1], [[1, 1], [0, 1]])
    bad("in kv_indices and in full_kv_indices", [1, 1], [[0, 1], [0, 1]], ([1, 0], [[0, 1], [0, 0]]))
    bad("mask_mod that returns torch.int64", [1, 1], [[0, 1], [0, 1]], mask_mod=lambda b, h, q, k: q - k)

"""mask_mod texts as functions and BlockMasks of PyTorch: against a C++ compiler, the kernels' own reading, and flex_attention's."""

import pathlib

import pytest

torch = pytest.importorskip("torch")
flex = pytest.importorskip("torch.nn.attention.flex_attention")

import dfa  # noqa: E402
import dfa.torch  # noqa: E402

COMPILED = pathlib.Path(__file__).resolve().parents[1] / "data" / "expressions.txt"
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
CAUSAL, OF_HEADS = "kv_idx <= q_idx + sk - sq && kv_idx / 40 != 2", "kv_idx <= q_idx + 70 * h && (b == 0 || q_idx - kv_idx < 100)"
OF_BATCHES = "kv_idx / 64 == (q_idx / 64 + b) % 5 && kv_idx % 7 != 0"
TEXTS = [CAUSAL, OF_HEADS, OF_BATCHES, "true", "false", "q_idx / 64 != 2"]
# What C++ leaves undefined, NaNs, and floats that have to be rounded to fp32 at each step.
CORNERS = ["2147483643 + kv_idx < 0", "(1 << (kv_idx + 27)) < 0", "(-kv_idx >> (q_idx + 28)) < 0", "kv_idx / (q_idx - 3) > 1",
           "kv_idx % (q_idx - 3) == 1", "(-2147483647 - 1) / (kv_idx - 4) < 0", "(-2147483647 - 1) % (kv_idx - 4) == 0",
           "abs(-2147483647 - (kv_idx > 3)) < 0", "int(1e30f * (kv_idx - 3)) == 2147483647", "int(-1e30f) + kv_idx < -2147483643",
           "int((kv_idx - 3) / (q_idx - 3.0f)) == 0", "min(sqrt(float(kv_idx - 4)), 1.5f) > 1.2f", "1.5f > max(sqrt(float(kv_idx - 4)), 1.0f)",
           "0.1f * kv_idx + 0.2f * q_idx == 0.3f * kv_idx", "!(kv_idx - 3) | ~q_idx == -3", "(q_idx > 2 ? kv_idx : -kv_idx) * 1073741823 > 0",
           "((kv_idx - 4.0f) / (q_idx - 3) ? b : h) < 1", "(kv_idx ^ 5 & q_idx | 1) == 1", "-7 / 2 == -3 && -7 % 2 == -(kv_idx < 5)"]


def numbers(*values):
    return [torch.tensor(int(value)) for value in values]


def test_a_function_says_what_a_cpp_compiler_makes_of_the_text():
    rows = [line.split("\t") for line in COMPILED.read_text().splitlines() if line.startswith("mask\t")]
    assert len(rows) > 150
    for _, text, at, wanted in rows:
        *places, sq, sk, _ = at.split()
        seen = dfa.torch.mask_mod(text, int(sq), int(sk))(*numbers(*places))
        assert seen.dtype == torch.bool and bool(seen) == bool(float.fromhex(wanted)), (text, at)


@pytest.mark.parametrize("text", CORNERS)
def test_a_function_says_what_kernels_do(text):
    """Which keys a query sees, by values that pick out one key each."""
    q, k, v = torch.zeros(1, 2, 7, 8), torch.zeros(1, 2, 8, 8), torch.eye(8).expand(1, 2, 8, 8)
    by_kernels = dfa.attention(q, k, v, mask_mod=text) > 0
    axes = [torch.arange(size).view([-1 if at == dim else 1 for at in range(4)]) for dim, size in enumerate((1, 2, 7, 8))]
    assert torch.equal(dfa.torch.mask_mod(text, 7, 8)(*axes).expand(1, 2, 7, 8), by_kernels)
    assert by_kernels.any() and not by_kernels.all()


def as_blocks(counts, indices, columns):
    """Which blocks a list names, as a matrix."""
    live = torch.arange(indices.shape[3], device=indices.device) < counts[..., None]
    return torch.zeros(*indices.shape[:3], columns, dtype=torch.int32, device=indices.device).scatter_add_(3, indices.long() % columns, live.int())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("sizes, block_size", [((328, 200), 64), ((100, 333), (32, 128)), ((128, 256), 128)])
@pytest.mark.parametrize("text", TEXTS)
def test_the_lists_are_those_of_create_block_mask(text, sizes, block_size, device, monkeypatch):
    b, h = (2 if text in (OF_HEADS, OF_BATCHES) else 1), 4 if text == OF_HEADS else 1
    wanted = flex.create_block_mask(dfa.torch.mask_mod(text, *sizes), b, h, *sizes, device=device, BLOCK_SIZE=block_size)
    monkeypatch.setattr("dfa._torch_texts._PAIRS_AT_ONCE", 20000)  # a row of blocks or two
    came = dfa.torch.block_mask(text, 2, 4, *sizes, device=device, block_size=block_size)
    assert came.shape == wanted.shape and came.BLOCK_SIZE == wanted.BLOCK_SIZE
    columns = -(-sizes[1] // came.BLOCK_SIZE[1])
    for kind in ("kv", "full_kv"):
        lists = [as_blocks(*(getattr(mask, f"{kind}_{of}") for of in ("num_blocks", "indices")), columns) for mask in (came, wanted)]
        assert torch.equal(*lists)


def qkv(sq=300, sk=200, device="cpu", dtype=torch.float32):
    generator = torch.Generator().manual_seed(2)
    sizes = (2, 4, sq, 16), (2, 2, sk, 16), (2, 2, sk, 24)
    return [torch.randn(size, generator=generator).to(device, dtype).requires_grad_() for size in sizes]


def results(tensors, **options):
    o, lse = dfa.attention(*tensors, return_lse=True, **options)
    loss = (o * o.detach().cos()).sum() + torch.where(lse.isneginf(), 0, lse).sum()
    return [o, lse, *torch.autograd.grad(loss, tensors)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("text", TEXTS)
def test_blocks_show_what_the_text_shows(text, device):
    tensors = qkv(device=device)
    bound = {"rtol": 1e-4, "atol": 2e-5} if device == "cpu" else {"rtol": 2e-3, "atol": 2e-3}
    blocks = dfa.torch.block_mask(text, 2, 4, 300, 200, device=device, block_size=64)
    for block_mask in (blocks, dfa.torch.block_lists(blocks)):
        for one, other in zip(results(tensors, block_mask=block_mask), results(tensors, mask_mod=text)):
            torch.testing.assert_close(one, other, **bound)


@pytest.mark.parametrize("device", DEVICES)
def test_texts_beside_blocks(device):
    tensors = qkv(device=device)
    bound = {"rtol": 1e-4, "atol": 2e-5} if device == "cpu" else {"rtol": 2e-3, "atol": 2e-3}
    blocks = dfa.torch.block_mask(OF_HEADS, 2, 4, 300, 200, device=device)
    beside = {"mask_mod": "kv_idx % 3 != b", "score_mod": "score * (1 + 0.25f * h) - 0.01f * abs(q_idx - kv_idx)"}
    both = beside | {"mask_mod": f"({OF_HEADS}) && {beside['mask_mod']}"}
    for one, other in zip(results(tensors, block_mask=blocks, **beside), results(tensors, **both)):
        torch.testing.assert_close(one, other, **bound)


def test_flex_attention_takes_both():
    tensors = [x.detach() for x in qkv()]
    blocks = dfa.torch.block_mask(CAUSAL, 2, 4, 300, 200)
    theirs = flex.flex_attention(*tensors, score_mod=lambda s, b, h, q, k: s * (1 + 0.5 * h), block_mask=blocks, enable_gqa=True)
    o = dfa.torch.flex_attention(*tensors, score_mod="score * (1 + 0.5f * h)", block_mask=blocks, enable_gqa=True)
    torch.testing.assert_close(o, theirs, rtol=1e-4, atol=2e-5)


def test_blocks_that_a_text_hides_are_not_read():
    tensors = [x.detach() for x in qkv()]
    blocks = dfa.torch.block_mask("kv_idx / 64 != 1", 2, 4, 300, 200, block_size=64)
    clean = dfa.attention(*tensors, block_mask=blocks)
    for x in tensors[1:]:
        x[:, :, 64:128] = torch.nan
    torch.testing.assert_close(dfa.attention(*tensors, block_mask=blocks), clean, rtol=0, atol=0)


@pytest.mark.parametrize("arguments, error, words", [
    (("kv_idx <= ", 1, 1, 8, 8), ValueError, "mask_mod: column 11"), ((None, 1, 1, 8, 8), TypeError, "mask_mod is None"),
    (("score > 0", 1, 1, 8, 8), ValueError, "'score' is of a score_mod"), (("true", 0, 1, 8, 8), ValueError, "b is 0; accepted"),
    (("true", 1, 1, 8, 2 ** 31), ValueError, "sk is 2147483648"), (("true", None, 1, 8, 8), ValueError, "b is None"),
    ((lambda b, h, q, k: q >= k, 1, 1, 8, 8), TypeError, "mask_mod is <function")])
def test_what_is_wrong_is_one_line(arguments, error, words):
    with pytest.raises(error, match=words) as raised:
        dfa.torch.block_mask(*arguments)
    assert "\n" not in str(raised.value)


def test_block_sizes_are_checked():
    for size in (0, 16.0, (16, True), "16"):
        with pytest.raises(ValueError, match="block_size is .*; accepted: a whole number"):
            dfa.torch.block_mask("true", 1, 1, 8, 8, block_size=size)

"""dfa.rotate and the rotation of dfa.quantize: its matrix, q·k in float64, the error of e4m3 with and without, what is refused."""

import pathlib

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import dfa  # noqa: E402
from dfa.flash_attn import flash_attn_interface  # noqa: E402

E4M3 = torch.float8_e4m3fn
DATA = pathlib.Path(__file__).resolve().parents[2] / "examples/data/minilm_layer0_qkv.safetensors"
SIGNS_OF_5 = "++-+--+---+-+--+-+-+++---+---+++"  # of 32 columns: caches of rotated keys outlive a process, so that they may not change
sdpa = torch.nn.functional.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(3)


def hadamard(n):
    h = np.ones((1, 1))
    while len(h) < n:
        h = np.kron(np.array([[1, 1], [1, -1]]), h)
    return h


@pytest.mark.parametrize("d, n", [(8, 8), (24, 8), (64, 64), (96, 32), (128, 128), (192, 64), (512, 512), (576, 64)])
def test_the_matrix_is_signs_and_then_blocks_of_hadamards(d, n):
    matrix = dfa.rotate(torch.eye(d, dtype=torch.float64), 5).numpy()  # its rows are what becomes of a column
    signs = np.sign(matrix[np.arange(d), np.arange(d) // n * n])
    wanted = signs[:, None] * np.kron(np.eye(d // n), hadamard(n)) / n ** 0.5
    assert np.abs(matrix - wanted).max() < 1e-15 and np.abs(matrix @ matrix.T - np.eye(d)).max() < 1e-14
    assert "".join("+-"[int(sign < 0)] for sign in signs[:32]) == SIGNS_OF_5[:d]


def test_signs_of_a_seed_are_balanced_and_differ_from_those_of_others():
    signs = torch.stack([dfa.rotate(torch.eye(128), seed)[:, 0].sign() for seed in (*range(400), *range(2 ** 32 - 400, 2 ** 32))])
    assert signs.sum(1).abs().max() < 5 * 128 ** 0.5 and signs.mean(0).abs().max() < 5 * 800 ** -0.5
    alike = (signs @ signs.T / 128).fill_diagonal_(0)
    assert alike.abs().max() < 6 * 128 ** -0.5
    columns = (signs.T @ signs / 800).fill_diagonal_(0)
    assert columns.abs().max() < 6 * 800 ** -0.5


@pytest.mark.parametrize("d", [64, 96, 128, 192, 576])
def test_q_k_stays_what_it_is(d):
    q, k = torch.randn(2, 6, 9, d, dtype=torch.float64), torch.randn(2, 3, 17, d, dtype=torch.float64)
    q[..., ::4] *= 100
    s, turned = (a @ b.repeat_interleave(2, 1).mT for a, b in ((q, k), (dfa.rotate(q, 11), dfa.rotate(k, 11))))
    assert (turned - s).abs().max() < 1e-13 * s.abs().max()
    other = dfa.rotate(q, 11) @ dfa.rotate(k, 12).repeat_interleave(2, 1).mT
    assert (other - s).norm() > 0.5 * s.norm()
    v = torch.randn(2, 3, 17, 64, dtype=torch.float64)
    wanted = sdpa(q, k, v, enable_gqa=True)
    o = dfa.attention(*(dfa.rotate(x.float(), 11) for x in (q, k)), v.float())
    assert (o - wanted).abs().max() < 1e-4 * wanted.abs().max()


@pytest.mark.parametrize("dtype, step", [(torch.float32, 2.0 ** -22), (torch.float16, 2.0 ** -10), (torch.bfloat16, 2.0 ** -7)])
def test_types_shapes_and_views(dtype, step):
    x = torch.randn(3, 5, 7, 64).to(dtype)
    turned = dfa.rotate(x, 1)
    wanted = dfa.rotate(x.double(), 1)
    assert turned.dtype == dtype and (turned - wanted).abs().max() < step * wanted.abs().max()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(dfa.rotate(x, 1), turned)
    assert torch.equal(dfa.rotate(x.transpose(1, 2), 1), turned.transpose(1, 2))
    assert torch.equal(dfa.rotate(x[0, 0, 0], 1), turned[0, 0, 0]) and torch.equal(dfa.rotate(x.flatten(0, 1), 1), turned.flatten(0, 1))
    assert dfa.rotate(x[:, :0], 1).shape == (3, 0, 7, 64)


def test_quantize_rounds_once():
    x = torch.randn(2, 4, 9, 64, dtype=torch.bfloat16)
    for options in ({}, {"heads": 2}, {"scale": "tensor"}):
        codes, descale = dfa.quantize(x, **options, rotate=9)
        wanted, factors = dfa.quantize(dfa.rotate(x.float(), 9), **options)
        assert torch.equal(codes.view(torch.uint8), wanted.view(torch.uint8)) and torch.equal(descale, factors)
    twice = dfa.quantize(dfa.rotate(x, 9))[0]
    assert not torch.equal(dfa.quantize(x, rotate=9)[0].view(torch.uint8), twice.view(torch.uint8))
    assert torch.equal(dfa.quantize(x, rotate=None)[0].view(torch.uint8), dfa.quantize(x)[0].view(torch.uint8))


def inputs(kind, d=128):
    if kind == "real":
        from safetensors.torch import load_file
        tensors = load_file(DATA)
        return [tensors[name] for name in "qkv"]
    q, k, v = (torch.randn(1, 4, 512, d) for _ in range(3))
    if kind == "columns":
        q[..., :2] *= 8
        k[..., :2] *= 8
    if kind == "sparse":
        q, k, v = (x + 10 * torch.randn(x.shape) * (torch.rand(x.shape) < 0.001) for x in (q, k, v))
    return [q, k, v]


def off(o, wanted):
    """The error's norm as a share of the output's, mean of heads, as benchmarks/e4m3_error.py has it."""
    return ((o.double() - wanted).flatten(2).norm(dim=2) / wanted.flatten(2).norm(dim=2)).mean().item()


def error(q, k, v, **options):
    parts = dfa.quantize(q, **options), dfa.quantize(k, **options), dfa.quantize(v)
    codes, factors = zip(*parts)
    o = dfa.attention(*codes, **{f"{name}_descale": x for name, x in zip("qkv", factors)})
    return off(o, sdpa(*(x.double() for x in (q, k, v))))


@pytest.mark.parametrize("kind, d, least, most", [("columns", 128, 2.5, 6), ("columns", 192, 2, 6), ("columns", 96, 1.5, 6), ("sparse", 128, 1.25, 2),
                                                  ("normal", 128, 0.97, 1.03), ("real", 32, 0.9, 1.1)])
def test_the_error_of_outliers_goes_and_nothing_is_lost_without(kind, d, least, most):
    """docs/design/0033-fp8.md has the table; how many times as large the error is without, against float64 from what was not rounded."""
    q, k, v = inputs(kind, d)
    plain = error(q, k, v)
    for seed in (2, 2 ** 32 - 1):
        assert least < plain / error(q, k, v, rotate=seed) < most


def test_a_cache_of_rotated_keys_beside_queries_of_16_bits():
    q, k, v = (x.transpose(1, 2) for x in inputs("columns"))
    wanted = sdpa(*(x.transpose(1, 2).double() for x in (q[:, -8:], k, v))).transpose(1, 2)
    table = torch.arange(8, dtype=torch.int32)[None]
    errors = []
    for turn in (lambda x: x, lambda x: dfa.rotate(x, 4)):
        (k8, k_descale), (v8, v_descale) = (dfa.quantize(x.transpose(1, 2)) for x in (turn(k), v))
        pages = [x.transpose(1, 2).reshape(8, 64, 4, 128) for x in (k8, v8)]
        o = flash_attn_interface.flash_attn_with_kvcache(turn(q[:, -8:]), *pages, cache_seqlens=512, page_table=table, k_descale=k_descale,
                                                         v_descale=v_descale)
        errors.append(off(o, wanted))
    assert errors[1] < errors[0] / 2


def test_compiled_and_exported():
    x = torch.randn(2, 4, 5, 64)
    torch._dynamo.reset()
    turn = torch.compile(lambda x, seed: dfa.rotate(x, seed), fullgraph=True, backend="aot_eager")
    quantised = torch.compile(lambda x, seed: dfa.quantize(x, heads=2, rotate=seed), fullgraph=True, backend="aot_eager")
    for seed in (1, 2, 2 ** 32 - 1):  # from the second on a number that the graph does not know
        assert torch.equal(turn(x, seed), dfa.rotate(x, seed))
        assert all(torch.equal(a.float(), b.float()) for a, b in zip(quantised(x, seed), dfa.quantize(x, heads=2, rotate=seed)))

    class Turn(torch.nn.Module):
        def forward(self, x):
            return dfa.rotate(x, 7)
    program = torch.export.export(Turn(), (x,), dynamic_shapes={"x": {2: torch.export.Dim("s", min=2, max=100)}})
    assert torch.equal(program.module()(x[:, :, :3]), dfa.rotate(x[:, :, :3], 7))


def test_it_has_a_gradient_and_a_batch_rule():
    x = torch.randn(3, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: dfa.rotate(x, 3), x) and torch.autograd.gradgradcheck(lambda x: dfa.rotate(x, 3), x)
    assert torch.equal(torch.func.vmap(lambda x: dfa.rotate(x, 3))(x.detach()), dfa.rotate(x.detach(), 3))


@pytest.mark.parametrize("d", [0, 5, 20, 63])
def test_head_dims_that_are_no_multiple_of_8_are_refused(d):
    for call in (lambda x: dfa.rotate(x, 1), lambda x: dfa.quantize(x, rotate=1)):
        with pytest.raises(ValueError, match=rf"x has shape \[1, 1, 2, {d}\]; accepted to be rotated: .*, d a multiple of 8"):
            call(torch.zeros(1, 1, 2, d))


@pytest.mark.parametrize("given, error, words", [(-1, ValueError, "is -1; accepted: a whole number from 0 to 2\\^32 - 1"), (2 ** 32, ValueError, "4294967296"),
                                                 (True, TypeError, "is True"), (1.5, TypeError, "is 1.5"), ("1", TypeError, "is '1'")])
def test_seeds_are_whole_numbers(given, error, words):
    x = torch.zeros(1, 1, 2, 8)
    with pytest.raises(error, match=f"seed {words}" if words[:2] == "is" else f"seed is {words}"):
        dfa.rotate(x, given)
    with pytest.raises(error, match="rotate is"):
        dfa.quantize(x, rotate=given)


def test_what_is_no_dense_tensor_of_numbers_is_refused():
    for wrong in (np.zeros((1, 1, 2, 8), np.float32), torch.zeros(1, 1, 2, 8).to(E4M3), torch.zeros(8, dtype=torch.int32), None):
        with pytest.raises(TypeError, match="x is .*; accepted: a tensor of PyTorch, of float32"):
            dfa.rotate(wrong, 1)
    with pytest.raises(TypeError):
        dfa.rotate(torch.zeros(1, 1, 2, 8))  # a seed that q and k share is the caller's to say
    for wrong, words in ((torch.zeros(()), r"x has shape \[\]"), (torch.zeros(2, 8).to_sparse(), "x is not dense"),
                         (torch.nested.nested_tensor([torch.zeros(2, 8)]), "x is not dense")):
        with pytest.raises(ValueError, match=words):
            dfa.rotate(wrong, 1)
    with pytest.raises(ValueError, match="heads is 2"):
        dfa.quantize(torch.zeros(1, 3, 2, 8), heads=2, rotate=1)


def test_one_function_is_compiled_for_several_head_dims():
    compiled = torch.compile(lambda x: dfa.rotate(x, 3), backend="aot_eager")
    for d in (64, 128, 96):
        x = torch.randn(1, 2, 70, d)
        torch.testing.assert_close(compiled(x), dfa.rotate(x, 3))

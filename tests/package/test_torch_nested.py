"""Nested tensors of the jagged layout through scaled_dot_product_attention: each sequence is what it is alone."""

import pytest

torch = pytest.importorskip("torch")

import dfa.torch  # noqa: E402
from test_torch import close  # noqa: E402

functional = torch.nn.functional
sdpa = functional.scaled_dot_product_attention
ours = dfa.torch.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(7)


def jagged(lengths, heads=4, d=16, grad=False, dtype=torch.float32):
    """[b, heads, j, d], as a user has it: [b, j, heads, d] transposed. And the leaf."""
    leaf = torch.nested.nested_tensor([torch.randn(n, heads, d, dtype=dtype) for n in lengths], layout=torch.jagged,
                                      requires_grad=grad)
    return leaf.transpose(1, 2), leaf


def beside(leaf, *shape):
    """Another nested tensor of the same offsets."""
    values = torch.randn(leaf.values().shape[0], *shape).requires_grad_(leaf.requires_grad)
    return torch.nested.nested_tensor_from_jagged(values, leaf.offsets()).transpose(1, 2), values


def alone(q, k, v, **options):
    """PyTorch's own attention of each sequence, in double precision."""
    parts = zip(*(x.transpose(1, 2).unbind() for x in (q, k, v)))
    return [sdpa(*(x.transpose(0, 1).double()[None] for x in part), **options)[0].transpose(0, 1) for part in parts]


def check(o, q, wanted, tolerance=1e-5):
    assert o.is_nested and o.layout == torch.jagged and o.shape[:3] == q.shape[:3]
    assert o.offsets() is q.offsets()
    got = o.transpose(1, 2).unbind()
    assert len(got) == len(wanted)
    for one, truth in zip(got, wanted):
        assert one.shape == truth.shape and (not one.numel() or close(one.double(), truth, tolerance))


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.3}])
@pytest.mark.parametrize("lengths", [[7, 1, 12], [3], [5, 0, 2]])
def test_a_projection_of_a_jagged_batch(lengths, options):
    x = torch.nested.nested_tensor([torch.randn(n, 64) for n in lengths], layout=torch.jagged)
    q, k, v = (part.unflatten(-1, [4, 16]).transpose(1, 2) for part in torch.nn.Linear(64, 192)(x).chunk(3, -1))
    with dfa.torch.enable():
        o = functional.scaled_dot_product_attention(q, k, v, **options)
    check(o, q, alone(q, k, v, **options))
    assert o.transpose(1, 2).flatten(2).shape == x.shape


@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
@pytest.mark.parametrize("d, dv, tolerance", [(16, 16, 1e-5), (12, 20, 1e-5)])
def test_gradients(options, d, dv, tolerance):
    q, leaf = jagged([6, 2, 9], d=d, grad=True)
    (k, k_values), (v, v_values) = beside(leaf, 4, d), beside(leaf, 4, dv)
    weights = torch.randn(17, 4, dv)
    o = ours(q, k, v, **options)
    check(o, q, alone(q, k, v, **options), tolerance)
    got = torch.autograd.grad((o.transpose(1, 2).values() * weights).sum(), (leaf, k_values, v_values))
    joined = torch.cat(alone(q, k, v, **options))
    wanted = torch.autograd.grad((joined * weights).sum(), (leaf, k_values, v_values))
    assert got[0].is_nested
    for one, truth in zip((got[0].values(), *got[1:]), (wanted[0].values(), *wanted[1:])):
        assert close(one, truth, 1e-4)


@pytest.mark.parametrize("lens_q, lens_k, options", [
    ([3, 5, 1], [7, 2, 4], {}), ([3, 5, 1], [7, 5, 4], {"is_causal": True}), ([4, 2], [4, 2], {"is_causal": True})])
def test_keys_of_other_lengths(lens_q, lens_k, options):
    q, _ = jagged(lens_q)
    k, leaf = jagged(lens_k)
    v, _ = beside(leaf, 4, 8)
    check(ours(q, k, v, **options), q, alone(q, k, v, **options))
    apart, _ = jagged(lens_k)  # offsets of its own, of the same lengths
    check(ours(q, k, apart, **options), q, alone(q, k, apart, **options))


def test_heads_that_share_keys():
    q, leaf = jagged([6, 2, 9])
    (k, _), (v, _) = beside(leaf, 2, 16), beside(leaf, 2, 16)
    check(ours(q, k, v, enable_gqa=True), q, alone(q, k, v, enable_gqa=True))
    (k, _), (v, _) = beside(leaf, 1, 16), beside(leaf, 1, 16)
    check(ours(q, k, v), q, alone(q, k, v, enable_gqa=True))
    with pytest.raises(ValueError, match="enable_gqa=True lets them share"):
        ours(q, beside(leaf, 2, 16)[0], beside(leaf, 2, 16)[0])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_halves_and_autocast(dtype):
    q, leaf = jagged([6, 2, 9], dtype=dtype)
    o = ours(q, q, q, is_causal=True)
    assert o.dtype == dtype
    check(o, q, alone(q, q, q, is_causal=True), 2e-2)
    q, _ = jagged([6, 2, 9])
    with torch.autocast("cpu", dtype):
        assert ours(q, q, q).dtype == dtype


def holes(start, length, heads=4, d=16):
    """[b, heads, j, d] of which each sequence is a part of a padded one, NaN elsewhere."""
    dense = torch.randn(len(start), 8, heads, d)
    for entry, begin, n in zip(dense, start, length):
        entry[:begin] = entry[begin + n:] = torch.nan
    dense.requires_grad_()
    nested = torch.nested.narrow(dense, 1, torch.tensor(start), torch.tensor(length), layout=torch.jagged)
    return nested.transpose(1, 2), dense


@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
@pytest.mark.parametrize("start, length", [([0, 0, 0], [3, 8, 1]), ([2, 0, 5], [3, 7, 2])])
def test_lengths_beside_offsets(start, length, options):
    q, dense = holes(start, length)
    assert q.lengths() is not None
    o = ours(q, q, q, **options)
    check(o, q, alone(q, q, q, **options))
    assert o.lengths() is q.lengths()
    got, = torch.autograd.grad(sum(x.square().sum() for x in o.transpose(1, 2).unbind()), dense)
    wanted, = torch.autograd.grad(sum(x.square().sum() for x in alone(q, q, q, **options)), dense)
    for entry, truth, begin, n in zip(got, wanted, start, length):
        assert close(entry[begin:begin + n], truth[begin:begin + n], 1e-4)
        assert (entry[:begin] == 0).all() and (entry[begin + n:] == 0).all()


@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
def test_lengths_of_queries_or_keys_alone(options):
    whole, part = jagged([3, 8, 1])[0], holes([2, 0, 1], [5, 8, 2])[0]
    check(ours(whole, part, part, **options), whole, alone(whole, part, part, **options))
    whole = jagged([6, 8, 2])[0]
    check(ours(part, whole, whole, **options), part, alone(part, whole, whole, **options))


def test_a_ragged_batch_of_attentions():
    q, leaf = jagged([3, 1, 4], heads=5)
    k, v = (beside(leaf, 5, 16)[0].transpose(1, 2) for _ in range(2))
    o = ours(leaf, k, v, is_causal=True)  # [b, j, s, d]: each of the j has queries and keys of its own
    assert o.shape == leaf.shape
    assert close(o.values(), sdpa(leaf.values(), k.values(), v.values(), is_causal=True), 1e-5)


def test_compiled():
    q, leaf = jagged([6, 2, 9], grad=True)
    k, v = beside(leaf, 4, 16)[0], beside(leaf, 4, 16)[0]

    def call(q, k, v):
        return ours(q, k, v, is_causal=True)
    o = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v)
    check(o, q, alone(q, k, v, is_causal=True))


def dense():
    return torch.zeros(3, 4, 9, 16)


@pytest.mark.parametrize("change, message", [
    ({"key": dense()}, "key is a dense tensor beside nested ones; accepted: all nested"),
    ({"query": dense()}, "query is a dense tensor beside nested ones"),
    ({"value": torch.nested.nested_tensor([torch.ones(4, 6, 16)] * 3)}, "value is a nested tensor of the strided layout"),
    ({"value": jagged([6, 2, 8])[0]}, "key and value are nested tensors of other lengths"),
    ({"value": jagged([6, 2, 9])[1]}, "ragged in dimensions 2, 2, 1"),
    ({"query": jagged([6, 2])[0]}, "batches of 2, 3, 3"),
    ({"query": jagged([6, 3, 9])[0], "is_causal": True}, "more queries than keys in a sequence"),
    ({"attn_mask": torch.ones(9, 9, dtype=torch.bool)}, "attn_mask beside nested tensors is not supported"),
    ({"dropout_p": 0.1}, "dropout_p=0.1"),
    ({"query": torch.nested.nested_tensor([torch.ones(n, 16) for n in (6, 2, 9)], layout=torch.jagged)}, "of 3 dimensions"),
])
def test_what_is_refused_is_told_in_one_line(change, message):
    leaf = torch.nested.nested_tensor([torch.ones(n, 4, 16) for n in (6, 2, 9)], layout=torch.jagged)
    arguments = dict.fromkeys(("query", "key", "value"), leaf.transpose(1, 2)) | change
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        ours(**arguments)
    assert "\n" not in str(caught.value)


def test_sequences_that_share_rows():
    values = torch.randn(9, 4, 16)
    x = torch.nested.nested_tensor_from_jagged(values, torch.tensor([0, 3, 9]), torch.tensor([5, 6])).transpose(1, 2)
    with pytest.raises(ValueError, match="sequences that share rows"):
        ours(x, x, x)


def test_ragged_batches_of_other_lengths():
    one, other = jagged([3, 1, 4])[1], jagged([3, 1, 5])[1]
    with pytest.raises(ValueError, match="ragged in dimension 1 have other lengths"):
        ours(one, other, other)

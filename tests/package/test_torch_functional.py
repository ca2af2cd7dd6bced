"""PyTorch's function and layer by dfa.torch: inputs, masks, the switch."""

import threading

import pytest

torch = pytest.importorskip("torch")

import dfa.torch  # noqa: E402
from test_torch import close  # noqa: E402
from torch.nn.attention.bias import causal_lower_right, causal_upper_left  # noqa: E402

functional = torch.nn.functional
sdpa = functional.scaled_dot_product_attention
ours = dfa.torch.scaled_dot_product_attention


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(11)


def random(*shapes, grad=False):
    return tuple(torch.randn(shape, requires_grad=grad) for shape in shapes)


def qkv(sq=9, sk=9, b=2, h=4, d=16, **options):
    return random((b, h, sq, d), (b, h, sk, d), (b, h, sk, d), **options)


def band(sq, sk, lowest, highest):
    distance = torch.arange(sk) - torch.arange(sq)[:, None]
    return (distance >= lowest) & (distance <= highest)


def added(visible):
    return torch.zeros(visible.shape).masked_fill(~visible, -torch.inf)


@pytest.mark.parametrize("shapes, options", [
    (((9, 16), (7, 16), (7, 8)), {}),
    (((4, 9, 16), (4, 7, 16), (4, 7, 8)), {}),
    (((4, 9, 16), (1, 7, 16), (1, 7, 8)), {}),
    (((4, 9, 16), (2, 7, 16), (2, 7, 8)), {"enable_gqa": True}),
    (((2, 3, 4, 9, 16), (2, 3, 4, 7, 16), (2, 3, 4, 7, 8)), {"is_causal": True}),
    (((2, 3, 4, 9, 16), (1, 3, 2, 7, 16), (2, 1, 2, 7, 8)), {"enable_gqa": True}),
    (((5, 4, 9, 16), (1, 4, 7, 16), (1, 4, 7, 8)), {"is_causal": True}),
    (((1, 4, 9, 16), (5, 4, 7, 16), (5, 1, 7, 8)), {}),
    (((2, 4, 9, 16), (2, 1, 7, 16), (2, 1, 7, 8)), {}),
    (((2, 1, 9, 16), (2, 4, 7, 16), (2, 4, 7, 8)), {}),
    (((2, 4, 0, 16), (2, 4, 7, 16), (2, 4, 7, 8)), {}),
    (((0, 4, 9, 16), (0, 4, 7, 16), (0, 4, 7, 8)), {"is_causal": True}),
    (((2, 4, 9, 12), (2, 4, 9, 12), (2, 4, 9, 20)), {"scale": torch.tensor(0.3)}),
])
def test_dimensions_are_pytorchs(shapes, options):
    inputs = random(*shapes, grad=True)
    theirs = {name: float(x) if name == "scale" else x for name, x in options.items()}
    o, wanted = ours(*inputs, **options), sdpa(*inputs, **theirs)
    assert o.shape == wanted.shape and (o.numel() == 0 or close(o, wanted, 1e-5))
    weight = torch.randn(o.shape)
    for got, truth in zip(torch.autograd.grad((o * weight).sum(), inputs), torch.autograd.grad((wanted * weight).sum(), inputs)):
        assert got.shape == truth.shape and (got.numel() == 0 or close(got, truth, 1e-4))


@pytest.mark.parametrize("form", [lambda visible: visible, added, lambda visible: visible[None, None],
                                  lambda visible: added(visible).expand(2, 4, -1, -1)])
@pytest.mark.parametrize("sq, sk, lowest, highest", [
    (9, 9, -99, 0), (9, 9, -99, 99), (9, 9, -3, 0), (9, 9, -3, 2), (9, 13, -99, 0), (9, 13, -99, 4), (13, 9, -99, 0),
    (13, 9, -99, -4), (9, 13, -2, 4), (9, 9, 0, 99), (9, 13, 2, 3), (13, 9, 3, 5), (1, 9, -99, 99), (9, 1, -99, 0)])
def test_bands_of_a_mask(form, sq, sk, lowest, highest):
    q, k, v = qkv(sq, sk)
    mask = form(band(sq, sk, lowest, highest))
    seen = band(sq, sk, lowest, highest).any(1)
    o = ours(q, k, v, attn_mask=mask)
    assert close(o[:, :, seen], sdpa(q, k, v, attn_mask=mask)[:, :, seen], 1e-5) and not o[:, :, ~seen].any()


def test_padding_and_packed_sequences():
    q, k, v = qkv(grad=True)
    padding = torch.arange(9) < torch.tensor([9, 5])[:, None]
    parts = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2])
    for mask in (padding[:, None, None], (parts[:, None] == parts) & band(9, 9, -9, 0)):
        o, wanted = ours(q, k, v, mask), sdpa(q, k, v, mask)
        assert close(o, wanted, 1e-5)
        for got, truth in zip(*(torch.autograd.grad(x.square().sum(), (q, k, v)) for x in (o, wanted))):
            assert close(got, truth, 1e-4)
    five = [x.unflatten(0, (2, 1)) for x in (q, k, v)]
    assert close(ours(*five, padding[:, None, None, None]), sdpa(*five, padding[:, None, None, None]), 1e-5)
    three = [x[:, 0] for x in (q, k, v)]
    assert close(ours(*three, padding[:, None]), sdpa(*three, padding[:, None]), 1e-5)


def test_the_least_number_of_a_type_hides_like_infinity_beside_what_is_seen():
    q, k, v = qkv()
    mask = torch.zeros(9, 9).masked_fill(~band(9, 9, -9, 0), torch.finfo(torch.float32).min)
    assert close(ours(q, k, v, mask), sdpa(q, k, v, mask), 1e-5)
    mask[3] = torch.finfo(torch.float32).min  # the mean of v, there
    with pytest.raises(ValueError, match="hides all keys of a query"):
        ours(q, k, v, mask)


@pytest.mark.parametrize("sq, sk", [(9, 9), (7, 13), (13, 7)])
@pytest.mark.filterwarnings("ignore:Lower right causal bias")
def test_pytorchs_causal_biases(sq, sk):
    q, k, v = qkv(sq, sk)
    with dfa.torch.enable():
        upper = functional.scaled_dot_product_attention(q, k, v, attn_mask=causal_upper_left(sq, sk))
        lower = functional.scaled_dot_product_attention(q, k, v, attn_mask=causal_lower_right(sq, sk))
    assert close(upper, sdpa(q, k, v, is_causal=True), 1e-5)
    assert close(lower, torch.nan_to_num(sdpa(q, k, v, attn_mask=band(sq, sk, -99, sk - sq))), 1e-5)
    with pytest.raises(ValueError, match="attn_mask is of 3 queries"):
        ours(q, k, v, attn_mask=causal_upper_left(3, 3))


@pytest.mark.parametrize("change, message", [
    ({"attn_mask": torch.zeros(9, 9).long()}, "torch.int64"),
    ({"attn_mask": torch.zeros(9, 8, dtype=torch.bool)}, "has to broadcast"),
    ({"attn_mask": [[True]]}, "attn_mask is list"),
    ({"attn_mask": torch.ones(9, 9, dtype=torch.bool), "is_causal": True}, "beside is_causal"),
    ({"dropout_p": 1.0}, "dropout_p 1.0"),
    ({"dropout_p": "0.1"}, "dropout_p '0.1'"),
    ({"dropout_p": float("nan")}, "dropout_p nan"),
    ({"is_causal": "no"}, "is_causal is 'no'"),
    ({"is_causal": torch.tensor(True)}, r"is_causal is tensor\(True\)"),
    ({"scale": torch.ones(2)}, "scale"),
    ({"query": torch.nested.nested_tensor([torch.ones(4, 2, 16)] * 2)}, "query is a nested tensor"),
    ({"key": torch.ones(2, 2, 9, 16), "value": torch.ones(2, 2, 9, 16)}, "enable_gqa=True"),
    ({"key": torch.ones(2, 3, 9, 16), "value": torch.ones(2, 3, 9, 16), "enable_gqa": True}, "multiple of them"),
    ({"value": [1.0]}, "value is list"),
])
def test_what_is_refused_is_told_in_one_line(change, message):
    arguments = dict(zip(("query", "key", "value"), qkv())) | change
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        ours(**arguments)
    assert "\n" not in str(caught.value)


BIASES = [(torch.ones(9, 9), "other numbers than 0 and -inf"), (torch.zeros(9, 9, requires_grad=True), "requires a gradient"),
          (torch.arange(36 * 9).view(4, 9, 9) % 5 < 3, "from head to head"),
          (torch.tensor([[True, False] * 4 + [True]]), "do not lie together"),
          (torch.full((9, 9), torch.nan), "other numbers than 0 and -inf")]


@pytest.mark.parametrize("mask, message", BIASES)
def test_what_is_a_bias_is_added_on_a_processor_and_refused_on_a_gpu(mask, message):
    q, k, v = qkv()
    torch.testing.assert_close(ours(q, k, v, mask), sdpa(q, k, v, mask), atol=1e-5, rtol=1e-5, equal_nan=True)
    if torch.cuda.is_available():
        with pytest.raises(ValueError, match=message):
            ours(*(x.cuda() for x in (q, k, v)), mask.cuda())


def test_masks_that_torch_func_maps_over():
    q, k, v = (x[None] for x in qkv())
    with pytest.raises(ValueError, match="traced or mapped"):
        torch.vmap(ours)(q, k, v, torch.ones(1, 9, 9))


def test_compiled_without_a_graph_break():
    q, k, v = qkv(7, 13)
    bias = causal_lower_right(7, 13)
    for options in ({"is_causal": True}, {"attn_mask": bias}):
        compiled = torch.compile(lambda *x: ours(*x, **options), fullgraph=True, backend="aot_eager")
        assert torch.equal(compiled(q, k, v), ours(q, k, v, **options))
    mask = band(7, 13, -9, 0)
    assert torch.equal(torch.compile(ours, backend="aot_eager")(q, k, v, mask), ours(q, k, v, mask))


def on():
    return functional.scaled_dot_product_attention is ours


def test_blocks_of_threads_that_end_in_any_order():
    first, second = dfa.torch.enable(), dfa.torch.enable()
    steps = [threading.Event() for _ in range(3)]
    seen = []

    def other():
        steps[0].wait(10)
        with second:
            steps[1].set()
            steps[2].wait(10)
            seen.append(on())

    thread = threading.Thread(target=other)
    thread.start()
    with first:
        steps[0].set()
        steps[1].wait(10)
    assert on()  # the other thread's block is open
    steps[2].set()
    thread.join()
    assert seen == [True] and functional.scaled_dot_product_attention is sdpa


def test_a_function_put_there_between_two_blocks_is_found_and_put_back(monkeypatch):
    monkeypatch.setattr(functional, "scaled_dot_product_attention", sdpa)
    with dfa.torch.enable():
        functional.scaled_dot_product_attention = print
        with dfa.torch.enable():
            assert on()
        assert functional.scaled_dot_product_attention is print
    assert functional.scaled_dot_product_attention is sdpa


def test_the_switch_as_a_decorator():
    switch = dfa.torch.enable()

    @switch
    def depth(n):
        assert on()
        return depth(n - 1) + 1 if n else 0

    assert depth(3) == 3 and not on()
    with switch, switch:
        assert on()
    assert not on()

    @switch
    def fails():
        raise KeyError
    with pytest.raises(KeyError):
        fails()
    assert not on()


def test_the_switch_is_no_decorator_of_what_runs_on_after_the_call():
    async def coroutine():
        pass

    def generator():
        yield
    for function in (coroutine, generator):
        with pytest.raises(TypeError, match="runs on after it was called; accepted: a with block"):
            dfa.torch.enable()(function)


def test_a_generator_that_is_closed_puts_back():
    def generator():
        with dfa.torch.enable():
            yield on()
    steps = generator()
    assert next(steps)
    steps.close()
    assert not on()


def layers(**options):
    mine, theirs = dfa.torch.MultiheadAttention(64, 4, **options), torch.nn.MultiheadAttention(64, 4, **options)
    theirs.load_state_dict(mine.state_dict())
    return mine, theirs


@pytest.mark.parametrize("masks", [
    {"key_padding_mask": torch.zeros(2, 9, dtype=torch.bool)},
    {"key_padding_mask": torch.arange(9) >= torch.tensor([9, 6])[:, None]},
    {"key_padding_mask": added(torch.arange(9) < torch.tensor([9, 6])[:, None])},
    {"attn_mask": ~band(9, 9, -9, 0)},
    {"attn_mask": added(band(9, 9, -3, 1))},
    {"attn_mask": (~band(9, 9, -9, 0)).expand(8, 9, 9)},
    {"attn_mask": added(band(9, 9, -9, 0)), "is_causal": True},
    {"attn_mask": ~band(9, 9, -9, 0), "key_padding_mask": torch.arange(9) >= torch.tensor([9, 6])[:, None]},
    {"attn_mask": ~band(9, 9, -9, 0), "key_padding_mask": torch.arange(9) >= torch.tensor([9, 6])[:, None],
     "is_causal": True},
])
@pytest.mark.parametrize("first", [True, False])
def test_masks_of_the_layer(masks, first):
    mine, theirs = layers(batch_first=first)
    x = torch.randn((2, 9, 64) if first else (9, 2, 64))
    assert close(mine(x, x, x, **masks)[0], theirs(x, x, x, need_weights=False, **masks)[0], 1e-5)


def test_the_layer_without_a_batch_or_with_fewer_keys():
    mine, theirs = layers()
    x, y = torch.randn(9, 64), torch.randn(5, 64)
    padding = torch.tensor([False] * 3 + [True] * 2)
    assert close(mine(x, y, y, key_padding_mask=padding)[0],
                 theirs(x, y, y, key_padding_mask=padding, need_weights=False)[0], 1e-5)
    causal = ~band(9, 5, -9, 0)
    got = mine(x, y, y, is_causal=True)[0]
    assert close(got, theirs(x, y, y, attn_mask=causal, is_causal=True, need_weights=False)[0], 1e-5)
    padded = mine(x, y, y, is_causal=True, key_padding_mask=padding)[0]
    assert close(padded, theirs(x, y, y, attn_mask=causal, key_padding_mask=padding, need_weights=False)[0], 1e-5)


def test_the_layer_takes_its_options_where_pytorchs_does():
    mine, theirs = dfa.torch.MultiheadAttention(64, 4, 0.0, False), torch.nn.MultiheadAttention(64, 4, 0.0, False)
    assert mine.state_dict().keys() == theirs.state_dict().keys() and mine.in_proj_bias is None


@pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}])
def test_parts_that_the_layer_has_not(options):
    with pytest.raises(ValueError, match="not supported; accepted"):
        dfa.torch.MultiheadAttention(64, 4, **options)
    layer = dfa.torch.MultiheadAttention(64, 4)
    name, value = {"add_bias_kv": ("bias_k", torch.nn.Parameter(torch.ones(1, 1, 64)))}.get(*options, (*options, 0.5))
    setattr(layer, name, value)
    x = torch.randn(9, 64)
    with pytest.raises(ValueError, match="not supported; accepted"):
        layer(x, x, x)


@pytest.mark.parametrize("change, message", [
    ({"attn_mask": ~band(9, 9, -2, 0), "is_causal": True}, "not causal, with is_causal=True"),
    ({"attn_mask": torch.randn(9, 9)}, "attn_mask holds other numbers"),
    ({"key_padding_mask": torch.randn(2, 9)}, "key_padding_mask holds other numbers"),
    ({"key_padding_mask": torch.zeros(2, 8, dtype=torch.bool)}, r"key_padding_mask has shape \[2, 8\]; accepted: \[2, 9\]"),
    ({"attn_mask": torch.zeros(9, 8, dtype=torch.bool)}, r"attn_mask has shape \[9, 8\]"),
    ({"attn_mask": torch.zeros(9, 9, requires_grad=True)}, "requires a gradient"),
    ({"need_weights": True}, "need_weights"),
    ({"is_causal": 1}, "is_causal is 1"),
    ({"key": torch.ones(1, 9, 64), "value": torch.ones(1, 9, 64)}, "the same batch"),
    ({"value": torch.ones(2, 8, 64)}, "as many values as keys"),
    ({"query": torch.ones(9, 64)}, "three dimensions each"),
    ({"query": torch.nested.nested_tensor([torch.ones(4, 64)] * 2)}, "nested tensor"),
])
def test_what_the_layer_refuses(change, message):
    layer = dfa.torch.MultiheadAttention(64, 4, batch_first=True)
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        layer(**dict.fromkeys(("query", "key", "value"), torch.randn(2, 9, 64)) | change)
    assert "\n" not in str(caught.value)


def test_layers_of_pytorch_inside_the_switch():
    x = torch.randn(2, 9, 64)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 96, dropout=0.0, batch_first=True)
    causal = torch.nn.Transformer.generate_square_subsequent_mask(9)
    padding = torch.arange(9) >= torch.tensor([9, 6])[:, None]
    for masks in ({}, {"src_mask": causal}, {"src_mask": causal, "is_causal": True}, {"src_key_padding_mask": padding}):
        wanted = layer(x, **masks)
        with dfa.torch.enable():
            assert close(layer(x, **masks), wanted, 1e-5)

"""Masks as segments, against PyTorch's attention with the same mask as a boolean tensor."""

import pytest

torch = pytest.importorskip("torch")

import numpy  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from dfa import _segments, _torch_again  # noqa: E402
from dfa._segments import Intervals, attend, intervals_of, segments_of  # noqa: E402


def as_tensor(intervals, b, sk):
    low, high = (torch.from_numpy(ends).expand(b, -1)[:, :, None] for ends in intervals)
    keys = torch.arange(sk)
    return (keys >= low) & (keys < high)


def check(visible, segments=None):
    """visible [b, sq, sk]: outputs and gradients beside PyTorch's in double precision."""
    b, sq, sk = visible.shape
    intervals = intervals_of(lambda rows: visible[:, rows], b, sq, sk)
    assert torch.equal(as_tensor(intervals, b, sk), visible)
    made = segments_of(intervals, b)
    assert segments is None or len(made) == segments
    torch.manual_seed(0)
    q, k, v = (torch.randn(b, heads, length, 16, requires_grad=True) for heads, length in ((4, sq), (2, sk), (2, sk)))
    o = attend(q, k, v, made)
    d_o = torch.randn_like(o)
    got = o, *torch.autograd.grad(o, (q, k, v), d_o)
    double = [x.detach().double().requires_grad_() for x in (q, k, v)]
    # Rows that see nothing are zero here; PyTorch's libraries do not agree on them.
    seen = visible.any(-1)[:, None, :, None]
    right = torch.nn.functional.scaled_dot_product_attention(*double, attn_mask=(visible | ~visible.any(-1, keepdim=True))[:, None],
                                                             enable_gqa=True) * seen
    wanted = right, *torch.autograd.grad(right, double, d_o.double())
    for ours, theirs in zip(got, wanted):
        assert (ours - theirs).abs().max() < 2e-5 * (1 + theirs.abs().max())


def rows_and_keys(sq, sk):
    return torch.arange(sq)[:, None], torch.arange(sk)[None]


@pytest.mark.parametrize("sq, sk", [(9, 9), (5, 9), (1, 9), (9, 1)])
@pytest.mark.parametrize("left, right", [(None, 0), (2, 0), (None, 3), (2, 3), (0, 0), (None, None)])
def test_every_window_is_one_segment(sq, sk, left, right):
    i, j = rows_and_keys(sq, sk)
    place = i + sk - sq
    visible = torch.ones(sq, sk, dtype=torch.bool)
    if left is not None:
        visible &= j >= place - left
    if right is not None:
        visible &= j <= place + right
    if visible.any(-1).all():
        check(visible.expand(2, -1, -1), 1)


def test_packed_sequences_are_a_segment_each():
    which = torch.tensor([0] * 4 + [1] * 7 + [2] + [3] * 3)
    i, j = rows_and_keys(15, 15)
    check(((which[:, None] == which) & (j <= i))[None], 4)


def test_chunks_and_blocks_and_prefixes():
    i, j = rows_and_keys(17, 17)
    check(((i // 6 == j // 6) & (j <= i))[None], 3)
    image = (i >= 4) & (i < 9) & (j >= 4) & (j < 9)
    check((image | (j <= i))[None])
    check(((j < 5) | (j <= i))[None], 2)


def test_padding_differs_from_sequence_to_sequence():
    i, j = rows_and_keys(11, 11)
    begins, ends = torch.tensor([0, 0, 3, 5])[:, None, None], torch.tensor([11, 11, 11, 8])[:, None, None]
    check((j <= i) & (j >= begins) & (j < ends))


def test_rows_that_see_nothing():
    visible = torch.zeros(2, 6, 7, dtype=torch.bool)
    visible[1, 2:4, 3:6] = True
    check(visible)


def test_random_intervals():
    generator = numpy.random.default_rng(5)
    for _ in range(60):
        b, sq, sk = generator.integers(1, (4, 12, 12))
        low = generator.integers(0, sk + 1, (b, sq))
        high = numpy.minimum(sk, low + generator.integers(0, 4, (b, sq)))
        if generator.integers(2):
            low, high = numpy.sort(low, 1), numpy.sort(high, 1)
        check(as_tensor(Intervals(low, numpy.maximum(low, high)), b, sk))


def test_keys_that_do_not_lie_together_are_no_interval():
    visible = torch.tensor([[[True, False, True]]])
    assert intervals_of(lambda rows: visible[:, rows], 1, 1, 3) is None


@pytest.mark.parametrize("sq, sk", [(0, 3), (3, 0), (0, 0)])
def test_nothing_to_see(sq, sk):
    visible = torch.ones(2, sq, sk, dtype=torch.bool)
    made = segments_of(intervals_of(lambda rows: visible[:, rows], 2, sq, sk), 2)
    o = attend(torch.ones(2, 2, sq, 8), torch.ones(2, 2, sk, 8), torch.ones(2, 2, sk, 8), made)
    assert o.shape == (2, 2, sq, 8) and not o.any()


class Calls(TorchDispatchMode):
    """The operators of dfa that run inside: their names, and where each one's q, k and v lie."""

    def __init__(self):
        super().__init__()
        self.names, self.places = [], []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.namespace == "dfa":
            self.names.append(function._schema.name)
            self.places.append([x.data_ptr() for x in arguments[:3]])
        return function(*arguments, **(keywords or {}))


def visible_of(name):
    """The masks of these tests: bool [b, sq, sk]."""
    i, j = rows_and_keys(17, 17)
    which = torch.tensor([0, 1, 2] + [3] * 7 + [4] + [5] * 6)
    lengths = torch.tensor([17, 12, 1])[:, None, None]
    return {
        "padded left": (j <= i) & (j >= 17 - lengths) & (i >= 17 - lengths),
        "padded right": (j < lengths).expand(-1, 17, -1),
        "padded, nothing in one": (j < torch.tensor([9, 0, 17])[:, None, None]).expand(-1, 17, -1),
        "packed": ((which[:, None] == which) & (j <= i))[None],
        "packed, windows": ((which[:, None] == which) & (j <= i) & (j > i - 3))[None],
        "chunks": ((i // 6 == j // 6) & (j <= i)).expand(3, -1, -1),
        "cache": (j[:, :9] < torch.tensor([3, 9, 5])[:, None, None]).expand(-1, 1, -1),
        "cache, late rows": (j + 12 <= i[12:] + torch.tensor([7, 10, 11])[:, None, None]),
        "prefix": ((j < 5) | (j <= i)).expand(2, -1, -1),
        "padded right, causal": (j <= i) & (j < lengths),
        "keys twice": (j < 5).expand(2, 17, -1) & (i != 8),
        "keys backwards": ((i < 8) & (j >= 8) | (i >= 8) & (j < 8))[None],
    }[name]


ONE = ["padded left", "padded right", "padded, nothing in one", "packed", "packed, windows", "chunks", "cache",
       "cache, late rows"]
OTHERS = ["prefix", "padded right, causal", "keys twice", "keys backwards"]
LAYOUTS = {
    "heads first": lambda x: x.contiguous(),
    "rows first": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "part of a cache": lambda x: torch.nn.functional.pad(x, (0, 0, 0, 5))[:, :, :x.shape[2]],
    "part of rows": lambda x: torch.nn.functional.pad(x.transpose(1, 2), (0, 0, 0, 0, 2, 1))[:, 2:-1].transpose(1, 2),
}


def problem(visible, layout="heads first", widths=(16, 24)):
    b, sq, sk = visible.shape
    torch.manual_seed(0)
    shapes = (4, sq, widths[0]), (2, sk, widths[0]), (2, sk, widths[1])
    tensors = [LAYOUTS[layout](torch.randn(b, *shape)).detach() for shape in shapes]
    return tensors, segments_of(intervals_of(lambda rows: visible[:, rows], b, sq, sk), b)


def by_loop(monkeypatch, *arguments, **options):
    with monkeypatch.context() as patch:
        patch.setattr(_segments, "may_be_packed", lambda *_, **__: False)
        patch.setattr(_segments.Packed, "recall", lambda *_, **__: None)
        return attend(*arguments, **options)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ONE)
def test_packed_sequences_are_one_call(monkeypatch, name, layout):
    tensors, made = problem(visible_of(name), layout)
    wanted = by_loop(monkeypatch, *tensors, made, scale=0.3)
    with Calls() as calls:
        o = attend(*tensors, made, scale=0.3)
    assert calls.names == ["dfa::varlen_forward"] and o.shape == wanted.shape
    torch.testing.assert_close(o, wanted)
    if len(tensors[0]) == 1 or layout == "rows first":  # each of them is a view
        assert calls.places == [[x.data_ptr() for x in tensors]]
    assert calls.places[0][1:] == [x.data_ptr() for x in tensors[1:]]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ONE)
def test_gradients_of_packed_sequences(monkeypatch, name, layout):
    tensors, made = problem(visible_of(name), layout)
    for x in tensors:
        x.requires_grad_()
    wanted = by_loop(monkeypatch, *tensors, made)
    d_o = torch.randn_like(wanted)
    wanted = wanted, *torch.autograd.grad(wanted, tensors, d_o)
    with Calls() as calls:
        o = attend(*tensors, made)
        got = o, *torch.autograd.grad(o, tensors, d_o)
    assert calls.names == ["dfa::varlen_forward", "dfa::varlen_backward"]
    for ours, theirs in zip(got, wanted):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
    check(visible_of(name))


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_no_packed_sequences_takes_a_call_for_each_segment(name):
    tensors, made = problem(visible_of(name))
    assert made.packed is None
    with Calls() as calls:
        attend(*tensors, made)
    assert set(calls.names) == {"dfa::forward"} and len(calls.names) == sum(map(_segments._sees_keys, made)) > 1
    check(visible_of(name))


@pytest.mark.parametrize("form", [lambda q: q.mT.contiguous().mT, lambda q: q[:, :1].expand(-1, 4, -1, -1),
                                  lambda q: q[:1].expand(3, -1, -1, -1)])
def test_queries_that_kernels_do_not_read_as_they_lie(monkeypatch, form):
    (q, k, v), made = problem(visible_of("padded left"))
    q = form(q)
    with Calls() as calls:
        o = attend(q, k, v, made)
    assert calls.names == ["dfa::varlen_forward"]
    torch.testing.assert_close(o, by_loop(monkeypatch, q, k, v, made))


def test_forward_mode_derivatives_are_refused():
    (q, k, v), made = problem(visible_of("cache"))
    with torch.autograd.forward_ad.dual_level():
        with pytest.raises(RuntimeError, match="forward-mode"):
            attend(torch.autograd.forward_ad.make_dual(q, torch.ones_like(q)), k, v, made)


@pytest.mark.parametrize("widths", [(12, 20), (16, 12), (16, 256)])
def test_widths_that_kernels_do_not_have(monkeypatch, widths):
    tensors, made = problem(visible_of("cache"), widths=widths)
    torch.testing.assert_close(attend(*tensors, made), by_loop(monkeypatch, *tensors, made))


def test_types_and_widths_are_those_of_dfa_attention():
    for change, message in [(lambda x: x.double(), "float64"), (lambda x: torch.nn.functional.pad(x, (0, 600)), "up to 512")]:
        tensors, made = problem(visible_of("cache"))
        with pytest.raises(ValueError, match=message):
            attend(*map(change, tensors), made)
    (q, k, v), made = problem(visible_of("cache"))
    with pytest.raises(ValueError, match="element types"):
        attend(q, k.half(), v, made)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_autocast(monkeypatch, layout):
    tensors, made = problem(visible_of("cache"), layout)
    with torch.autocast("cpu", torch.bfloat16):
        o, wanted = attend(*tensors, made), by_loop(monkeypatch, *tensors, made)
    assert o.dtype == torch.bfloat16
    torch.testing.assert_close(o, wanted)


def test_one_segment_that_sees_keys_is_a_dense_call():
    i, j = rows_and_keys(9, 9)
    for visible in ((j <= i).expand(2, -1, -1), ((j <= i) & (i > 2)).expand(2, -1, -1)):
        tensors, made = problem(visible)
        with Calls() as calls:
            attend(*tensors, made)
        assert calls.names == ["dfa::forward"]


def test_layers_share_what_is_on_the_device():
    tensors, made = problem(visible_of("padded left"))
    with torch.inference_mode():
        attend(*tensors, made)
    lengths = made.packed.lengths(torch.device("cpu"), 17, 34)
    assert made.packed is made.packed and all(a is b for a, b in zip(lengths, made.packed.lengths(torch.device("cpu"), 17, 34)))
    cu_q, cu_k, used_q, used_k = (x.tolist() for x in lengths)
    assert (cu_q, used_q) == ([0, 22, 50, 51], [17, 12, 1]) and (cu_k, used_k) == ([0, 39, 84, 85], [17, 12, 1])
    q, k, v = (x.requires_grad_() for x in tensors)
    attend(q, k, v, made).sum().backward()  # of lengths that inference has made
    assert q.grad.isfinite().all()


DEVICES = ["cpu"] + ["cuda"] * torch.cuda.is_available()


def layers(name, layout, device, widths=(16, 24)):
    """Tensors of three layers that share a mask."""
    tensors, made = problem(visible_of(name), layout, widths)
    return [[x.to(device), *(LAYOUTS[layout](torch.randn_like(y)).to(device) for y in (k, v))]
            for x, k, v in (tensors, *([torch.randn_like(tensors[0]), *tensors[1:]] for _ in range(2)))], made


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("options", [{}, {"softcap": 5.0, "scale": 0.3}, {"sinks": torch.tensor([0.5, -1.0, 2.0, 0.1])}])
@pytest.mark.parametrize("layout", ["heads first", "rows first"])
@pytest.mark.parametrize("name", ["cache", "packed, windows"])
def test_layers_that_share_a_mask_share_what_makes_their_calls(monkeypatch, name, layout, options, device):
    tensors, made = layers(name, layout, device)
    options = {key: x.to(device) if isinstance(x, torch.Tensor) else x for key, x in options.items()}
    _torch_again.clear()
    recalled = []
    monkeypatch.setattr(_segments.Packed, "recall", lambda *a, recall=_segments.Packed.recall, **b: recalled.append(recall(*a, **b)) or recalled[-1])
    outputs = [attend(*x, made, **options) for x in tensors]
    assert [o is not None for o in recalled] == [False, True, True]
    for o, x in zip(outputs, tensors):
        torch.testing.assert_close(o, by_loop(monkeypatch, *x, made, **options))
        assert o.transpose(1, 2).is_contiguous()


@pytest.mark.parametrize("change", [lambda q, k, v: (q, k[:, :, :8], v[:, :, :8]), lambda q, k, v: (q.requires_grad_(), k, v),
                                    lambda q, k, v: (q, k.mT.contiguous().mT, v), lambda q, k, v: (q.double(), k.double(), v.double())])
def test_another_call_is_made_in_full(monkeypatch, change):
    (first, second, _), made = layers("cache", "heads first", "cpu")
    attend(*first, made)
    given = change(*second)
    assert made.packed.recall(*given) is None
    if given[0].dtype == torch.float32 and given[1].shape[2] == 9:
        torch.testing.assert_close(attend(*given, made), by_loop(monkeypatch, *given, made))


def test_sinks_of_another_type_are_taken_as_numbers(monkeypatch):
    tensors, made = layers("cache", "rows first", "cpu")
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.1], dtype=torch.bfloat16)
    for x in tensors:
        torch.testing.assert_close(attend(*x, made, sinks=sinks), by_loop(monkeypatch, *x, made, sinks=sinks))
    sinks.requires_grad_()
    gradient, = torch.autograd.grad(attend(*tensors[0], made, sinks=sinks).sum(), sinks)
    wanted, = torch.autograd.grad(by_loop(monkeypatch, *tensors[0], made, sinks=sinks).sum(), sinks)
    torch.testing.assert_close(gradient, wanted)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sinks_with_gaps(monkeypatch, layout):
    tensors, made = layers("cache", layout, "cpu")
    sinks = torch.randn(4, 3)[:, 1]
    for x in tensors:
        torch.testing.assert_close(attend(*x, made, sinks=sinks), by_loop(monkeypatch, *x, made, sinks=sinks))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_sinks_are_one_of_each_head(layout):
    tensors, made = layers("cache", layout, "cpu")
    attend(*tensors[0], made, sinks=torch.zeros(4))
    for sinks in (torch.zeros(3), torch.zeros(1), torch.zeros(1, 4)):
        with pytest.raises(ValueError, match="sinks has shape"):
            attend(*tensors[1], made, sinks=sinks)


def test_sinks_have_a_gradient_of_zero_where_nothing_is_seen():
    sinks = torch.zeros(4, requires_grad=True)
    tensors, made = problem(torch.zeros(1, 5, 7, dtype=torch.bool))
    attend(*tensors, made, sinks=sinks).sum().backward()
    assert torch.equal(sinks.grad, torch.zeros(4))


def test_dropout_is_drawn_anew():
    (x, *_), made = layers("cache", "heads first", "cpu")
    assert not torch.equal(*(attend(*x, made, dropout_p=0.5) for _ in range(2)))


def test_a_first_sequence_that_does_not_begin_with_0():
    tensors, made = problem(visible_of("padded left").flip(0))
    cu_q, cu_k, used_q, _ = made.packed.lengths(torch.device("cpu"), 17, 17)
    assert cu_q.tolist() == cu_k.tolist() == [0, 16, 22, 34, 51] and used_q.tolist() == [0, 1, 12, 17]
    attend(*tensors, made)


def test_what_dfa_attention_alone_serves_is_left_to_it(monkeypatch):
    (q, k, v), made = problem(visible_of("chunks"))
    scale = torch.tensor(0.3, requires_grad=True)
    wanted = by_loop(monkeypatch, q, k, v, made, scale=0.3)
    torch.testing.assert_close(attend(q, k, v, made, scale=scale), wanted)

    def loss(q):
        return attend(q, k, v, made).square().sum()
    gradient, = torch.autograd.grad(loss(q.requires_grad_()), q)
    torch.testing.assert_close(torch.func.grad(loss)(q.detach()), gradient)


def test_no_sequences_at_all():
    _, made = problem(visible_of("chunks"))
    intervals = intervals_of(lambda rows: visible_of("chunks")[:1, rows], 1, 17, 17)
    o = attend(torch.ones(0, 4, 17, 16), torch.ones(0, 2, 17, 16), torch.ones(0, 2, 17, 24), segments_of(intervals, 0))
    assert o.shape == (0, 4, 17, 24)

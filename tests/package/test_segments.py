"""Masks as segments, against PyTorch's attention with the same mask as a boolean tensor."""

import pytest

torch = pytest.importorskip("torch")

import numpy  # noqa: E402

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

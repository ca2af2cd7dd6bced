"""dfa.attention on NumPy arrays, against float64."""

import ml_dtypes
import numpy as np
import pytest

import dfa

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}  # roundings of o and of P


def exact(q, k, v, causal=False, window=(-1, -1), scale=None):
    """(o, lse) in float64."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * (scale or q.shape[3] ** -0.5)
    sq, sk = scores.shape[2:]
    distance = np.arange(sk) - (np.arange(sq)[:, None] + sk - sq)
    left, right = window[0], 0 if causal else window[1]
    hidden = ((left >= 0) & (distance < -left)) | ((right >= 0) & (distance > right))
    scores[..., hidden] = -np.inf
    with np.errstate(divide="ignore"):
        top = scores.max(axis=-1, keepdims=True)
        top[~np.isfinite(top)] = 0
        weights = np.exp(scores - top)
        total = weights.sum(axis=-1, keepdims=True)
        lse = (np.log(total) + top)[..., 0]
    return weights @ v / np.where(total == 0, 1, total), lse


def inputs(seed, dtype="float32", b=2, hq=4, hk=2, sq=33, sk=65, d=64, dv=64):
    random = np.random.default_rng(seed)
    return tuple(random.standard_normal(shape).astype(dtype)
                 for shape in ((b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, dv)))


def error(got, wanted):
    return np.abs(got.astype(np.float64) - wanted).max()


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("mask", [{}, {"causal": True}, {"window": (5, 3)},
                                  {"causal": True, "window": (7, 0)}])
def test_o_and_lse_are_those_of_float64(dtype, mask):
    q, k, v = inputs(1, dtype=getattr(ml_dtypes, dtype, dtype))
    o, lse = dfa.attention(q, k, v, return_lse=True, **mask)
    wanted, wanted_lse = exact(q, k, v, **mask)
    assert o.dtype == q.dtype and o.shape == wanted.shape
    assert error(o, wanted) < TOLERANCE[dtype]
    assert error(lse, wanted_lse) < 1e-5 * (1 + np.abs(wanted_lse).max())


def test_scale_and_head_dim_of_v():
    q, k, v = inputs(2, d=40, dv=24)
    assert error(dfa.attention(q, k, v, scale=0.5), exact(q, k, v, scale=0.5)[0]) < 1e-5


def test_rows_that_see_nothing_are_zero():
    q, k, v = inputs(3, sq=5, sk=3)
    o, lse = dfa.attention(q, k, v, causal=True, return_lse=True)
    assert (o[:, :, :2] == 0).all() and (lse[:, :, :2] == -np.inf).all()


def test_memory_of_any_order_is_read_as_it_lies():
    q, k, v = inputs(4)
    turned = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    o = dfa.attention(*turned)
    assert np.array_equal(o, dfa.attention(q, k, v))
    assert o.transpose(0, 2, 1, 3).flags.c_contiguous  # as the memory of q
    wide = np.zeros((2, 4, 33, 128), dtype="float32")
    wide[..., 32:96] = q
    assert np.array_equal(dfa.attention(wide[..., 32:96], k, v), dfa.attention(q, k, v))


def test_standard_attention_is_there_to_compare_with():
    q, k, v = inputs(5)
    assert error(dfa.attention(q, k, v, algorithm="standard"), exact(q, k, v)[0]) < 1e-5


@pytest.mark.parametrize("change, message", [
    (lambda q, k, v: (q[0], k, v), "q has 3 dimensions"),
    (lambda q, k, v: (q, k[:, :, :9], v), "shapes do not match"),
    (lambda q, k, v: (q.astype("float16"), k, v), "element types float16, float32, float32"),
    (lambda q, k, v: tuple(x.astype("float64") for x in (q, k, v)), "accepted: float32, float16"),
    (lambda q, k, v: (q[:, :3], k, v), "hq"),
])
def test_what_cannot_be_taken_is_told_in_one_line(change, message):
    with pytest.raises(ValueError, match=message) as caught:
        dfa.attention(*change(*inputs(6)))
    assert "\n" not in str(caught.value)


def test_other_objects_and_options():
    q, k, v = inputs(7)
    with pytest.raises(TypeError, match="NumPy, PyTorch, CuPy or JAX"):
        dfa.attention(q.tolist(), k, v)
    with pytest.raises(ValueError, match="accepted: auto, standard, flash"):
        dfa.attention(q, k, v, algorithm="fast")
    with pytest.raises(ValueError, match="scale 0; "):
        dfa.attention(q, k, v, scale=0)
    with pytest.raises(ValueError, match=r"window \(-2, 0\)"):
        dfa.attention(q, k, v, window=(-2, 0))


@pytest.mark.parametrize("window", [5, (1,), (1, 2, 3), (1.5, 0), "ab"])
def test_a_window_that_is_none_says_what_is_accepted(window):
    q, k, v = inputs(1)
    with pytest.raises(ValueError, match=r"accepted: \(left, right\), whole numbers"):
        dfa.attention(q, k, v, window=window)


# Arrays that carry more than their values.


def arrays(b=2, hq=4, hk=2, sq=5, sk=7, d=16, dv=8):
    generator = np.random.default_rng(1)
    return [generator.standard_normal(shape).astype("f4") for shape in ((b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, dv))]


def definition(q, k, v, scale=None):
    q, k, v = (x.astype(float) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = np.einsum("bhid,bhjd->bhij", q, k) * (scale or q.shape[3] ** -0.5)
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v


def test_byte_order_records_and_strides():
    q, k, v = arrays()
    wanted = definition(q, k, v)
    records = np.zeros(q.shape, np.dtype([("tag", "i1"), ("value", "f4")]))
    records["value"] = q
    odd = np.frombuffer(b"\0" + k.tobytes(), np.uint8)[1:].view("f4").reshape(k.shape)
    locked = v.copy()
    locked.flags.writeable = False
    for args in ([x.astype(">f4") for x in (q, k, v)], [records["value"], k, v], [q, odd, locked], [q[..., ::-1].copy()[..., ::-1], k, v],
                 [np.asfortranarray(x) for x in (q, k, v)], [q, k[:, :, ::-1].copy()[:, :, ::-1], v]):
        assert abs(dfa.attention(*args) - wanted).max() < 1e-5


def test_rows_that_overlap_are_copied():
    q, k, v = inputs(21, sq=5, sk=7)
    line = np.random.default_rng(22).standard_normal(2 * 4 * 68).astype("float32").reshape(2, 4, 68)
    windows = np.lib.stride_tricks.sliding_window_view(line, 64, axis=2)
    assert windows.shape == q.shape and windows.strides[2] == windows.strides[3]
    for args in ([windows, k, v], [q, windows[:, :2], v[:, :, :5]], [q, k[:, :, :5], windows[:, 1:3]]):
        assert error(dfa.attention(*args), exact(*args)[0]) < 1e-5


@pytest.mark.parametrize("d, dv", [(1, 1), (5, 8), (8, 3), (17, 31)])
def test_head_dims_of_any_size(d, dv):
    q, k, v = arrays(d=d, dv=dv)
    o = dfa.attention(q, k, v)
    assert o.shape == (2, 4, 5, dv) and abs(o - definition(q, k, v)).max() < 1e-5
    assert abs(dfa.attention(q, k, v, scale=0.3) - definition(q, k, v, 0.3)).max() < 1e-5


def test_a_batch_of_one_and_repeated_keys():
    q, k, v = arrays()
    assert abs(dfa.attention(q, k[:1], v[:1]) - definition(q, *(np.repeat(x[:1], 2, 0) for x in (k, v)))).max() < 1e-5
    spread = [np.broadcast_to(x[:, :1], (2, 4, *x.shape[2:])) for x in (k, v)]
    assert abs(dfa.attention(q, *spread) - definition(q, *spread)).max() < 1e-5


@pytest.mark.parametrize("name", ["b", "sq", "sk"])
def test_sizes_of_zero(name):
    q, k, v = arrays(**{name: 0})
    o, lse = dfa.attention(q, k, v, return_lse=True)
    assert o.shape == (*q.shape[:3], 8) and not o.any() and lse.shape == q.shape[:3] and (lse == -np.inf).all()


@pytest.mark.parametrize("words, change", [
    ("masked array", lambda q, k, v: ([np.ma.masked_array(q, q > 0), k, v], {})),
    ("float64", lambda q, k, v: ([q.astype(float), k.astype(float), v.astype(float)], {})),
    ("complex64", lambda q, k, v: ([x.astype("c8") for x in (q, k, v)], {})),
    ("scale", lambda q, k, v: ([q, k, v], {"scale": np.ones(4)})), ("scale nan", lambda q, k, v: ([q, k, v], {"scale": float("nan")})),
    ("scale 1e\\+300", lambda q, k, v: ([q, k, v], {"scale": 1e300})), ("window", lambda q, k, v: ([q, k, v], {"window": (True, 1)})),
    ("window", lambda q, k, v: ([q, k, v], {"window": (1.5, 1)})), ("causal", lambda q, k, v: ([q, k, v], {"causal": "no"})),
    ("hk=3", lambda q, k, v: ([q, *arrays(hk=3)[1:]], {})), ("d=584", lambda q, k, v: (arrays(d=584), {}))])
def test_what_is_refused_and_in_which_words(words, change):
    args, options = change(*arrays())
    with pytest.raises((ValueError, TypeError), match=words) as raised:
        dfa.attention(*args, **options)
    assert "\n" not in str(raised.value)


def test_windows_of_numpys_integers_and_sides_without_end():
    q, k, v = arrays()
    assert np.array_equal(dfa.attention(q, k, v, window=(np.int32(2), np.int64(1))), dfa.attention(q, k, v, window=(2, 1)))
    assert np.array_equal(dfa.attention(q, k, v, window=(2 ** 63 - 1, 2 ** 70)), dfa.attention(q, k, v))


@pytest.mark.parametrize("d", [16, 12])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_no_mask_is_lost_on_the_way_to_a_copy(d, at):
    arrays = list(inputs(8, d=d, dv=d))
    arrays[at] = np.ma.array(arrays[at], mask=arrays[at] > 0)
    for batch in (slice(None), slice(0, 1), slice(0, 0)):
        with pytest.raises(TypeError, match="qkv"[at] + " is a masked array"):
            dfa.attention(*(x[batch] for x in arrays))


@pytest.mark.parametrize("options, message", [
    ({"return_lse": "no"}, "return_lse is 'no'; accepted: True or False"),
    ({"return_lse": np.ones(2)}, "return_lse is array"),
    ({"return_lse": None}, "return_lse is None"),
    ({"algorithm": 3}, "algorithm 3; accepted: auto, standard, flash"),
    ({"algorithm": None}, "algorithm None; accepted"),
    ({"algorithm": "min_energy@rows.db"}, "algorithm 'min_energy@rows.db'; accepted"),
    ({"algorithm": np.array(["auto", "flash"])}, r"algorithm array\("),
    ({"policy": ["edp"]}, "policy is list; accepted: a text or dfa.Policy"),
    ({"policy": 3}, "policy is int"),
])
@pytest.mark.parametrize("sq", [5, 0])
def test_options_of_other_types(options, message, sq):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        dfa.attention(*inputs(1, sq=sq), **options)
    assert "\n" not in str(caught.value)


def swapped(arrays):
    return [x.byteswap().view(x.dtype.newbyteorder("S")) for x in arrays]


@pytest.mark.parametrize("dtype", ["float32", "float16", ml_dtypes.bfloat16])
def test_the_other_byte_order(dtype):
    arrays = inputs(9, dtype=dtype, d=12)
    assert np.array_equal(dfa.attention(*swapped(arrays)), dfa.attention(*arrays))
    assert np.array_equal(dfa.attention(swapped(arrays)[0], *arrays[1:]), dfa.attention(*arrays))

"""dfa.jax.dot_product_attention beside jax.nn.dot_product_attention: lengths, windows and segments, inside jit, grad and vmap."""

from functools import partial

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

pytest.importorskip("dfa")

from dfa import _core  # noqa: E402

if not hasattr(_core, "jax_targets"):
    pytest.skip("dfa was built without JAX", allow_module_level=True)

import dfa.jax  # noqa: E402

ours, theirs = dfa.jax.dot_product_attention, jax.nn.dot_product_attention
B = 3


def inputs(sq=9, sk=9, hq=4, hk=2, d=16, dv=None, dtype=jnp.float32, b=B):
    keys = jax.random.split(jax.random.key(5), 3)
    shapes = (b, sq, hq, d), (b, sk, hk, d), (b, sk, hk, dv or d)
    return [jax.random.normal(key, shape, dtype) for key, shape in zip(keys, shapes)]


def lengths(*numbers):
    return jnp.array(numbers, jnp.int32)


def visible(sq, sk, is_causal=False, local_window_size=None, query_seq_lengths=None, key_value_seq_lengths=None, b=B):
    """[b, sq, sk], by the definition."""
    i, j = np.arange(sq)[:, None], np.arange(sk)[None]
    seen = np.ones((b, sq, sk), bool)
    if is_causal:
        seen &= j <= i
    if local_window_size is not None:
        left, right = (local_window_size,) * 2 if isinstance(local_window_size, int) else local_window_size
        seen &= (j >= i - left) & (j <= i + right)
    if query_seq_lengths is not None:
        seen &= i < np.asarray(query_seq_lengths)[:, None, None]
    if key_value_seq_lengths is not None:
        seen &= j < np.asarray(key_value_seq_lengths)[:, None, None]
    return seen


def exact(q, k, v, seen, d_o=None, d_lse=None):
    """(o, lse) of the mask [b, sq, sk] in float64, and (dq, dk, dv) of d_o and d_lse; zeros and -inf where nothing is seen."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    (b, sk, hk, d), group = k.shape, q.shape[2] // k.shape[2]
    wide_k, wide_v = (np.repeat(x, group, 2) for x in (k, v))
    seen = np.asarray(seen)[:, None]
    some = seen.any(-1, keepdims=True)
    scores = np.where(seen, np.einsum("bthd,bshd->bhts", q, wide_k) / np.sqrt(d), -np.inf)
    most = np.where(some, scores.max(-1, keepdims=True, initial=-np.inf), 0)
    p = np.exp(scores - most)
    total = p.sum(-1, keepdims=True)
    p /= np.where(some, total, 1)
    lse = (np.log(np.where(some, total, 1)) + np.where(some, most, -np.inf))[..., 0].swapaxes(1, 2)
    o = np.einsum("bhts,bshd->bthd", p, wide_v)
    if d_o is None:
        return o, lse
    d_o, d_lse = np.asarray(d_o, np.float64), np.asarray(d_lse, np.float64).swapaxes(1, 2)[..., None]
    d_p = np.einsum("bthd,bshd->bhts", d_o, wide_v)
    d_scores = p * (d_p - (p * d_p).sum(-1, keepdims=True) + np.where(some, d_lse, 0)) / np.sqrt(d)

    def of_groups(x):
        return x.reshape(b, sk, hk, group, -1).sum(3)
    return o, lse, (np.einsum("bhts,bshd->bthd", d_scores, wide_k), of_groups(np.einsum("bhts,bthd->bshd", d_scores, q)),
                    of_groups(np.einsum("bhts,bthd->bshd", p, d_o)))


def close(got, wanted, tolerance=2e-5):
    got, wanted = (np.asarray(x, np.float64) for x in (got, wanted))
    infinite = np.isinf(wanted)
    if got.shape != wanted.shape or not np.array_equal(got[infinite], wanted[infinite]):
        return False
    got, wanted = got[~infinite], wanted[~infinite]
    return np.abs(got - wanted).max(initial=0) <= tolerance * (1 + np.abs(wanted).max(initial=0))


@partial(jax.jit, static_argnames="options")
def compiled(inputs, gradients, arrays, options):
    """(o, lse) and (dq, dk, dv) of ours, with arrays and options [name, value] by name."""
    results, pull = jax.vjp(lambda *x: ours(*x, **arrays, **dict(options), return_residual=True), *inputs)
    return results, pull(gradients)


def check(q, k, v, seen, tolerance=2e-5, arrays=None, **options):
    keys = jax.random.split(jax.random.key(8), 2)
    shape = *q.shape[:3], v.shape[3]
    gradients = jax.random.normal(keys[0], shape, q.dtype), jax.random.normal(keys[1], shape[:3])
    (o, lse), got = compiled((q, k, v), gradients, arrays or {}, tuple(sorted(options.items())))
    right, right_lse, wanted = exact(q, k, v, seen, *gradients)
    assert o.dtype == q.dtype and lse.dtype == jnp.float32
    assert close(o, right, tolerance) and close(lse, right_lse, tolerance)
    for one, truth in zip(got, wanted):
        assert one.dtype == q.dtype and close(one, truth, 5 * tolerance)


WINDOWS = [{}, {"is_causal": True}, {"local_window_size": (3, 1)}, {"local_window_size": (0, 2)},
           {"local_window_size": (2, 0), "is_causal": True}, {"local_window_size": (2, 50)}]


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", [*WINDOWS, {"local_window_size": 2}, {"local_window_size": (50, 1)}])
@pytest.mark.parametrize("sq, sk", [(5, 9), (9, 5)])
def test_masks_count_from_the_first_query_and_key(sq, sk, options):
    q, k, v = inputs(sq, sk)
    seen = visible(sq, sk, **options)
    check(q, k, v, seen, **options)
    some = seen[0].any(-1)
    assert close(ours(q, k, v, **options)[:, some], theirs(q, k, v, **options)[:, some])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("options", WINDOWS)
@pytest.mark.parametrize("sq, sk, rows, keys", [
    (9, 9, (4, 9, 1), None), (9, 9, (4, 9, 1), (6, 2, 1)), (9, 9, (7, 0, 9), (9, 3, 0)), (6, 9, (4, 6, 1), (6, 2, 9)),
    (9, 6, (4, 9, 7), (6, 2, 1)), (9, 6, None, (6, 0, 3))])
def test_lengths(sq, sk, rows, keys, options):
    q, k, v = inputs(sq, sk)
    given = {name: lengths(*numbers) for name, numbers in (("query_seq_lengths", rows), ("key_value_seq_lengths", keys))
             if numbers is not None}
    seen = visible(sq, sk, **options, **given)
    check(q, k, v, seen, arrays=given, **options)
    if (rows, keys) == ((4, 9, 1), (6, 2, 1)):  # where they are known, and beside JAX's own
        o, wanted, some = ours(q, k, v, **given, **options), theirs(q, k, v, **given, **options), seen.any(-1)
        assert close(o, exact(q, k, v, seen)[0]) and close(o[some], wanted[some])


@pytest.mark.parametrize("options", WINDOWS)
def test_one_array_of_lengths_for_both(options):
    q, k, v = inputs()
    given = lengths(4, 9, 1)
    seen = visible(9, 9, **options, query_seq_lengths=given, key_value_seq_lengths=given)
    o = jax.jit(lambda n: ours(q, k, v, query_seq_lengths=n, key_value_seq_lengths=n, **options))(given)
    assert close(o, exact(q, k, v, seen)[0])


@pytest.mark.parametrize("options", [{}, {"local_window_size": (2, 3)}])
@pytest.mark.parametrize("rows, keys", [((4, 9, 1), (6, 2, 1)), ((4, 9, 1), None), (None, (6, 2, 1))])
def test_what_is_padding_may_hold_anything(rows, keys, options):
    tensors = inputs()
    given = {name: lengths(*numbers) for name, numbers in (("query_seq_lengths", rows), ("key_value_seq_lengths", keys))
             if numbers is not None}
    counts = [jnp.arange(9)[None, :, None, None] < (lengths(*numbers) if numbers else lengths(9, 9, 9))[:, None, None, None]
              for numbers in (rows, keys, keys)]
    spoiled = [jnp.where(some, x, jnp.nan) for some, x in zip(counts, tensors)]
    weights = jax.random.normal(jax.random.key(1), tensors[0].shape)
    wanted = exact(*tensors, visible(9, 9, **given, **options), weights, jnp.zeros(weights.shape[:3]))
    o, pull = jax.vjp(lambda *x: ours(*x, **given, **options), *spoiled)
    assert close(o, wanted[0])
    for some, got, truth in zip(counts, pull(weights), wanted[2]):
        assert close(got, jnp.where(some, truth, 0), 1e-4)


def test_lengths_beyond_the_arrays_are_cut_as_theirs_are():
    q, k, v = inputs()
    given = lengths(40, -3, 9)
    o = ours(q, k, v, query_seq_lengths=given, key_value_seq_lengths=given, is_causal=True)
    seen = visible(9, 9, is_causal=True, query_seq_lengths=given, key_value_seq_lengths=given)
    assert close(o, exact(q, k, v, seen)[0])


@pytest.mark.parametrize("dtype, tolerance, d, dv", [(jnp.bfloat16, 3e-2, 16, 16), (jnp.float16, 4e-3, 12, 20)])
def test_halves_and_head_dims(dtype, tolerance, d, dv):
    q, k, v = inputs(d=d, dv=dv, dtype=dtype)
    given = lengths(4, 9, 1)
    seen = visible(9, 9, is_causal=True, key_value_seq_lengths=given)
    check(q, k, v, seen, tolerance, {"key_value_seq_lengths": given}, is_causal=True)
    assert ours(q, k, v, key_value_seq_lengths=given).dtype == dtype


def test_without_a_batch():
    q, k, v = (x[0] for x in inputs())
    o, lse = ours(q, k, v, is_causal=True, key_value_seq_lengths=lengths(4), return_residual=True)
    assert o.shape == (9, 4, 16) and lse.shape == (9, 4) and lse.dtype == jnp.float32
    assert close(o, theirs(q, k, v, is_causal=True, key_value_seq_lengths=lengths(4)))
    ids = jnp.array([0] * 4 + [1] * 5)
    assert close(ours(q, k, v, segment_ids=ids)[:4], theirs(q[:4], k[:4], v[:4]))


def test_vmap():
    q, k, v = (jnp.stack([x, 2 * x]) for x in inputs())
    rows, keys = jnp.stack([lengths(4, 9, 1), lengths(1, 2, 3)]), jnp.stack([lengths(3, 9, 8), lengths(9, 9, 2)])

    def call(q, k, v, rows, keys):
        return ours(q, k, v, is_causal=True, query_seq_lengths=rows, key_value_seq_lengths=keys)
    o = jax.vmap(call)(q, k, v, rows, keys)
    assert close(o, jnp.stack([call(*x) for x in zip(q, k, v, rows, keys)]))
    shared = jax.jit(jax.vmap(call, in_axes=(0, None, None, None, 0)))(q, k[0], v[0], rows[0], keys)
    assert close(shared[1], call(q[1], k[0], v[0], rows[0], keys[1]))

    def loss(q, n):
        return (call(q, k[0], v[0], n, n) ** 2).sum()
    assert close(jax.vmap(jax.grad(loss))(q, keys)[1], jax.grad(loss)(q[1], keys[1]))
    ids = jnp.broadcast_to(jnp.array([3, 1, 1, 3, 3, 0, 0, 1, 0]), (2, B, 9))
    o = jax.vmap(lambda *x: ours(*x[:3], segment_ids=x[3]))(q, k, v, ids)
    assert close(o[1], ours(q[1], k[1], v[1], segment_ids=ids[1]))


IDS = [
    np.array([[1] * 3 + [2] * 4 + [0] * 2, [1] * 9, [5, 4, 4, 3, 3, 3, 2, 1, 0]]),
    np.array([[0, 1, 1, 1, 2, 2, 2, 0, 0], [1, 2, 1, 2, 1, 2, 1, 2, 1], [7] * 8 + [-7]]),
]


@pytest.mark.parametrize("ids", IDS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_segments(ids, is_causal):
    q, k, v = inputs()
    seen = visible(9, 9, is_causal) & (ids[:, :, None] == ids[:, None])
    ids = jnp.asarray(ids)
    for most in (None, 6):
        check(q, k, v, seen, arrays={"segment_ids": ids}, is_causal=is_causal, max_segments_per_seq=most)
    assert close(ours(q, k, v, segment_ids=ids, is_causal=is_causal), exact(q, k, v, seen)[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", WINDOWS[2:])
def test_segments_and_windows(options):
    q, k, v = inputs()
    ids = IDS[0]
    seen = visible(9, 9, **options) & (ids[:, :, None] == ids[:, None])
    check(q, k, v, seen, arrays={"segment_ids": jnp.asarray(ids)}, **options)
    assert close(ours(q, k, v, segment_ids=ids, **options), exact(q, k, v, seen)[0])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("most", [None, 5])
def test_segments_of_queries_and_keys(most):
    q, k, v = inputs(sq=7, sk=9)
    q_ids = np.array([[0, 0, 1, 1, 1, 2, 3], [4, 4, 4, 4, 4, 4, 4], [3, 2, 2, 1, 9, 9, 3]])
    k_ids = np.array([[1, 1, 1, 1, 0, 0, 3, 3, 5], [4] * 9, [9, 3, 2, 8, 8, 1, 3, 3, 0]])
    seen = q_ids[:, :, None] == k_ids[:, None]
    ids = dfa.jax.SegmentIds(jnp.asarray(q_ids), jnp.asarray(k_ids))
    check(q, k, v, seen, arrays={"segment_ids": ids}, max_segments_per_seq=most)
    assert close(ours(q, k, v, segment_ids=ids, max_segments_per_seq=most), exact(q, k, v, seen)[0])


@pytest.mark.parametrize("options", [{"local_window_size": 2}, {"local_window_size": (3, 0), "is_causal": True}])
def test_segments_that_are_known_inside_of_a_traced_function(options):
    q, k, v = inputs()
    seen = visible(9, 9, **options) & (IDS[0][:, :, None] == IDS[0][:, None])
    o = jax.jit(partial(ours, segment_ids=jnp.asarray(IDS[0]), **options))(q, k, v)
    assert close(o, exact(q, k, v, seen)[0])
    with pytest.raises(ValueError, match="a number that comes again"):
        jax.jit(partial(ours, segment_ids=jnp.asarray(IDS[1]), **options))(q, k, v)


def test_equal_segments_that_are_not_one_array():
    q, k, v = inputs()
    ids = jnp.asarray(IDS[0])
    one = ours(q, k, v, segment_ids=ids, is_causal=True)
    assert jnp.array_equal(ours(q, k, v, segment_ids=(ids, ids + 0), is_causal=True), one)
    with pytest.raises(ValueError, match="not one array, with is_causal"):
        jax.jit(lambda a, b: ours(q, k, v, segment_ids=(a, b), is_causal=True))(ids, ids)


def test_what_only_values_tell_gives_nan_where_it_is_traced():
    q, k, v = inputs()
    scattered = jnp.asarray(IDS[1])
    with pytest.raises(ValueError, match="a number that comes again"):
        ours(q, k, v, segment_ids=scattered, local_window_size=2)
    o = jax.jit(lambda ids: ours(q, k, v, segment_ids=ids, local_window_size=2))(scattered)
    assert jnp.isnan(o[:2]).all() and jnp.isfinite(o[2]).all()
    ids = jnp.asarray(IDS[0])
    with pytest.raises(ValueError, match="max_segments_per_seq is 2, but segment_ids has 6 numbers"):
        ours(q, k, v, segment_ids=ids, max_segments_per_seq=2)
    o = jax.jit(lambda ids: ours(q, k, v, segment_ids=ids, max_segments_per_seq=2))(ids)
    assert jnp.isnan(o[0, 7:]).all() and jnp.isfinite(o[0, :7]).all() and jnp.isfinite(o[1]).all()
    assert jnp.isfinite(o[2, :3]).all() and jnp.isnan(o[2, 3:]).all()


@pytest.mark.parametrize("sizes", [{"b": 0}, {"sq": 0}, {"sk": 0}, {"hq": 0, "hk": 0}])
def test_sizes_of_zero(sizes):
    q, k, v = inputs(**sizes)
    given = jnp.zeros(q.shape[0], jnp.int32)
    for options in ({}, {"is_causal": True}, {"key_value_seq_lengths": given}, {"local_window_size": 2},
                    {"segment_ids": (jnp.zeros(q.shape[:2], jnp.int32), jnp.zeros(k.shape[:2], jnp.int32))}):
        assert ours(q, k, v, **options).shape == q.shape
        assert jax.grad(lambda q: ours(q, k, v, **options).sum())(q).shape == q.shape  # noqa: B023


def test_a_scale_that_is_learned():
    q, k, v = inputs()
    n = lengths(4, 9, 1)
    got = jax.grad(lambda s: (ours(q, k, v, scale=s, key_value_seq_lengths=n) ** 2).sum())(jnp.float32(0.3))
    wanted = jax.grad(lambda s: (theirs(q, k, v, scale=s, key_value_seq_lengths=n) ** 2).sum())(jnp.float32(0.3))
    assert close(got, wanted, 1e-4)


def test_double_precision_enabled():
    with jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64():
        q, k, v = inputs()
        n, ids = lengths(4, 9, 1), jnp.asarray(IDS[1])
        for options in ({"key_value_seq_lengths": n, "local_window_size": (2, 3)}, {"segment_ids": ids, "is_causal": True}):
            o = ours(q, k, v, **options)
            assert o.dtype == jnp.float32
        assert close(o, exact(q, k, v, visible(9, 9, True) & (IDS[1][:, :, None] == IDS[1][:, None]))[0])


def test_exported():
    q, k, v = inputs()
    n = lengths(4, 9, 1)
    call = jax.jit(lambda q, n: ours(q, k, v, key_value_seq_lengths=n))
    checks = [jax.export.DisabledSafetyCheck.custom_call("dfa_variant_forward")]
    assert close(jax.export.export(call, disabled_checks=checks)(q, n).call(q, n), call(q, n))


def test_derivatives_that_there_are_not():
    q, k, v = inputs()
    with pytest.raises((TypeError, ValueError), match="accepted: grad, vjp|differentiated once"):
        jax.jvp(lambda q: ours(q, k, v, key_value_seq_lengths=lengths(4, 9, 1)), (q,), (q,))


IDS_OF_9 = jnp.zeros((B, 9), jnp.int32)


@pytest.mark.parametrize("change, message", [
    ({"implementation": "cudnn"}, "implementation is not supported"),
    ({"query_seq_lengths": jnp.ones(B)}, r"query_seq_lengths is float32 \[3\]; accepted: int32 \[3\]"),
    ({"key_value_seq_lengths": lengths(1, 2)}, r"key_value_seq_lengths is int32 \[2\]; accepted"),
    ({"local_window_size": (-1, 0)}, r"local_window_size \(-1, 0\); accepted"),
    ({"local_window_size": 2.5}, "local_window_size 2.5; accepted"),
    ({"local_window_size": (1, 2, 3)}, r"local_window_size \(1, 2, 3\); accepted"),
    ({"is_causal": 1}, "is_causal is 1; accepted: True or False"),
    ({"return_residual": 1}, "return_residual is 1"),
    ({"segment_ids": jnp.zeros((B, 8), jnp.int32)}, r"segment_ids is int32 \[3, 8\]; accepted: integers \[3, 9\]"),
    ({"segment_ids": jnp.zeros((B, 9))}, "segment_ids is float32"),
    ({"segment_ids": (IDS_OF_9, jnp.zeros((B, 8), jnp.int32))}, "segment_ids of keys is int32"),
    ({"segment_ids": IDS_OF_9, "query_seq_lengths": lengths(1, 2, 3)}, "segment_ids beside query_seq_lengths"),
    ({"max_segments_per_seq": 4}, "max_segments_per_seq without segment_ids"),
    ({"segment_ids": IDS_OF_9, "max_segments_per_seq": 0}, "max_segments_per_seq is 0; accepted"),
    ({"key": jnp.ones((B, 9, 3, 16)), "value": jnp.ones((B, 9, 3, 16))}, "hq a multiple of hk"),
    ({"value": jnp.ones((B, 8, 2, 16))}, "shapes do not match"),
    ({"value": jnp.ones((B, 9, 2, 16), jnp.bfloat16)}, "element types"),
    ({"query": jnp.ones((9, 4, 16))}, "have 3, 4, 4 dimensions"),
    ({"scale": 0.0, "key_value_seq_lengths": lengths(1, 2, 3)}, "scale 0"),
])
def test_what_is_refused_is_told_in_one_line(change, message):
    with pytest.raises((TypeError, ValueError), match=message) as caught:
        ours(**dict(zip(("query", "key", "value"), inputs())) | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("change, message", [
    ({"key_value_seq_lengths": np.array([3, 2**32 + 3, 1])}, "key_value_seq_lengths has the number 4294967299"),
    ({"query_seq_lengths": [3, 2, -2**40]}, "query_seq_lengths has the number -1099511627776"),
    ({"segment_ids": np.arange(9)[None].repeat(B, 0) * 2**31}, "segment_ids has the number 17179869184"),
    ({"segment_ids": (np.zeros((B, 9), int), (np.zeros((B, 9), int) + 2**32))}, "segment_ids of keys has the number 4294967296"),
    ({"segment_ids": [[10**30] * 9] * B}, "segment_ids has the number 1000000"),
    ({"segment_ids": (np.zeros((B, 9), "uint32"), np.zeros((B, 9), "int32"))},
     "segment_ids is uint32 of queries and int32 of keys, which have no type here in common; accepted: one type for both"),
])
def test_numbers_that_32_bits_do_not_hold_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        ours(*inputs(), **change)


@pytest.mark.parametrize("types", [("uint32", "uint8"), ("int8", "int32"), ("int64", "uint8")])
def test_segments_of_two_types_that_one_holds(types):
    q, k, v = inputs()
    ids = np.array([[1, 1, 1, 2, 2, 2, 5, 5, 5]] * B), np.array([[2, 2, 1, 1, 1, 1, 5, 5, 2]] * B)
    o = ours(q, k, v, segment_ids=tuple(x.astype(kind) for x, kind in zip(ids, types)))
    assert close(o, exact(q, k, v, ids[0][:, :, None] == ids[1][:, None])[0])


@pytest.mark.parametrize("name, at", [("query", 0), ("key", 1), ("value", 2)])
def test_what_is_no_array_is_named(name, at):
    given = inputs()
    given[at] = None
    with pytest.raises(TypeError, match=f"{name} is None; accepted: an array"):
        ours(*given)


def test_one_array_of_segments_for_queries_and_keys_of_other_lengths():
    q, k, v = inputs(sq=7)
    with pytest.raises(ValueError, match="one array, with 7 queries and 9 keys"):
        ours(q, k, v, segment_ids=IDS_OF_9[:, :7])

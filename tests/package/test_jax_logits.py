"""Softcap, ALiBi, sinks, biases and dropout of JAX arrays: against float64 written out, NumPy's door, and one another's transforms."""

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import dfa  # noqa: E402
from dfa import _core  # noqa: E402

if not hasattr(_core, "jax_targets"):
    pytest.skip("dfa was built without JAX", allow_module_level=True)
if jax.default_backend() != "cpu":
    pytest.skip("the bounds are those of processors", allow_module_level=True)

import dfa.jax  # noqa: E402

GIVEN = [{"softcap": 2.0}, {"alibi_slopes": (4,)}, {"alibi_slopes": (2, 4)}, {"sinks": (4,)},
         {"softcap": 3.0, "alibi_slopes": (2, 4), "sinks": (4,), "bias": (1, 4, 9, 13)}]
NAMES = ["softcap", "slopes", "slopes of each batch", "sinks", "all"]
MASKS = [{}, {"causal": True}, {"window": (3, 2)}, {"causal": True, "chunk": 5}, {"causal": True, "prefix": 7}]
BOUNDS = {"float32": 2e-5, "bfloat16": 5e-2, "float16": 6e-3}


def drawn(shape, seed, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def qkv(sq=9, sk=13, dtype=jnp.float32):
    return [drawn(shape, seed, dtype) for seed, shape in enumerate([(2, 4, sq, 16), (2, 2, sk, 16), (2, 2, sk, 24)])]


def made(given):
    """The options with arrays in the place of shapes: slopes and sinks of the size that models have."""
    return {name: drawn(x, 7) * 0.3 + 0.2 if isinstance(x, tuple) and name != "window" else x for name, x in given.items()}


def in_float64():
    return jax.enable_x64(True) if hasattr(jax, "enable_x64") else jax.experimental.enable_x64()


def written_out(q, k, v, causal=False, window=None, chunk=None, prefix=None, scale=None, softcap=None, alibi_slopes=None,
                sinks=None, bias=None, mask=None, factors=1.0, aligned=True):
    """(o, lse) by the definition. factors: of dropout, 0 or 1 / what is left, [b, h, sq, sk]. aligned: to the last query and key."""
    (b, h, sq, d), sk = q.shape, k.shape[2]
    k, v = (jnp.repeat(x, h // x.shape[1], 1) for x in (k, v))
    x = jnp.einsum("bhid,bhjd->bhij", q, k) * (d ** -0.5 if scale is None else scale)
    if softcap:
        x = softcap * jnp.tanh(x / softcap)
    at, key = jnp.arange(sq)[:, None] + (sk - sq if aligned else 0), jnp.arange(sk)
    if alibi_slopes is not None:
        x = x - jnp.broadcast_to(alibi_slopes, (b, h))[:, :, None, None] * jnp.abs(at - key)
    x = x if bias is None else x + bias
    left, right = window or (-1, -1)
    seen = ((left < 0) | (key >= at - left)) & (((0 if causal else right) < 0) | (key <= at + (0 if causal else right)))
    seen = seen if chunk is None else seen & (at // chunk == key // chunk)
    seen = seen if prefix is None else seen | (key < prefix)
    seen = seen if mask is None else seen & mask
    x = jnp.where(seen, x, -jnp.inf)
    parts = [x] if sinks is None else [x, jnp.broadcast_to(sinks[:, None, None], (b, h, sq, 1))]
    lse = jax.nn.logsumexp(jnp.concatenate(parts, -1), -1)
    p = jnp.where(seen, jnp.exp(x - jnp.where(jnp.isneginf(lse), 0, lse)[..., None]), 0)
    return (p * factors) @ v, lse


def results(function, arrays, **options):
    """[o, lse, gradients of all arrays that are given by name or place] of a loss that weighs both."""
    learned = {name: options[name] for name in ("sinks", "bias") if name in options}
    rest = {name: x for name, x in options.items() if name not in learned}

    def loss(q, k, v, learned):
        o, lse = function(q, k, v, **rest, **learned)
        weights = jnp.cos(jnp.arange(o.size, dtype=lse.dtype)).reshape(o.shape)
        return (o * weights).sum() + (jnp.where(jnp.isneginf(lse), 0, lse) * weights[..., 0]).sum(), (o, lse)
    gradients, outputs = jax.grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*arrays, learned)
    return jax.tree.leaves((outputs, gradients))


def ours(*arrays, **options):
    return dfa.attention(*arrays, return_lse=True, **options)


def held_against_float64(function, reference, arrays, bound, **options):
    got = results(function, arrays, **options)
    with in_float64():
        arrays, options = jax.tree.map(lambda x: jnp.asarray(x, jnp.float64) if hasattr(x, "dtype") and x.dtype != bool else x,
                                       (arrays, options))
        wanted = [np.asarray(x) for x in results(reference, arrays, **options)]
    close(got, wanted, bound)


def close(got, wanted, bound=2e-5):
    assert len(got) == len(wanted) > 0
    for one, other in zip(got, wanted):
        assert one.shape == other.shape
        np.testing.assert_allclose(*(np.asarray(x, np.float64) for x in (one, other)), atol=bound, rtol=bound)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("mask", MASKS, ids=str)
@pytest.mark.parametrize("given", GIVEN, ids=NAMES)
def test_values_and_gradients_are_those_written_out(given, mask):
    held_against_float64(ours, written_out, qkv(), 3e-5, **made(given), **mask)


@pytest.mark.parametrize("dtype", BOUNDS)
def test_of_every_element_type(dtype):
    arrays = qkv(dtype=dtype)
    options = made(GIVEN[-1]) | {"causal": True, "mask": jax.random.bernoulli(jax.random.key(3), 0.7, (2, 1, 9, 13))}
    held_against_float64(ours, written_out, arrays, BOUNDS[dtype], **options)
    assert ours(*arrays, **options)[0].dtype == dtype


@pytest.mark.parametrize("given", GIVEN + [{"dropout_p": 0.4, "seed": 2 ** 41 + 5, "softcap": 2.0}], ids=[*NAMES, "dropout"])
def test_the_numbers_are_those_of_numpy(given):
    options = made(given) | {"causal": True}
    def as_numpy(x):
        return np.asarray(x) if isinstance(x, jax.Array) else x
    wanted = ours(*map(np.asarray, qkv()), **{name: as_numpy(x) for name, x in options.items()})
    for one, other in zip(ours(*qkv(), **options), wanted):
        np.testing.assert_array_equal(one, other)
    close(jax.jit(lambda *x: ours(*x, **options))(*qkv()), wanted, 1e-6)


def test_differences_of_sinks():
    q, k, v = qkv()
    sinks, step = jnp.array([0.5, -1.0, 2.0, 0.0]), 2.0 ** -6

    def loss(sinks):
        o, lse = ours(q, k, v, sinks=sinks, causal=True)
        return (o * o).sum() + jnp.sin(lse).sum()
    gradient = jax.grad(loss)(sinks)
    for head in range(4):
        more, less = (loss(sinks.at[head].add(by)) for by in (step, -step))
        assert abs((more - less) / (2 * step) - gradient[head]) < 2e-2 * (1 + abs(gradient[head]))


def test_a_row_that_sees_no_key_has_the_sink():
    q, k, v = qkv(sq=13, sk=9)
    sinks = jnp.arange(4.0)
    o, lse = ours(q, k, v, sinks=sinks, causal=True)
    assert (o[:, :, :4] == 0).all() and (lse[:, :, :4] == sinks[:, None]).all()
    o, lse = ours(q, k[:, :, :0], v[:, :, :0], sinks=sinks)
    assert (o == 0).all() and (lse == sinks[:, None]).all()
    assert (jax.grad(lambda sinks: ours(q, k[:, :, :0], v[:, :, :0], sinks=sinks)[1].sum())(sinks) == 2 * 13).all()


def weighed(function):
    return lambda *x: sum((jnp.cos(jnp.arange(y.size)).reshape(y.shape) * y).sum() for y in function(*x))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("axes", [(0, 0, 0, None), (0, None, None, 0), (None, None, None, 0)], ids=str)
@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.3, "seed": 4}], ids=["", "dropout"])
def test_vmap_is_each_by_itself(axes, options):
    def function(q, k, v, sinks):
        return ours(q, k, v, sinks=sinks, softcap=3.0, alibi_slopes=jnp.arange(4.0), causal=True, **options)
    arrays = [jnp.stack([x, x + 1, 2 * x]) if axis == 0 else x for x, axis in zip((*qkv(), jnp.array([0.1, 1, -1, 2])), axes)]
    for step in (function, jax.grad(weighed(function), argnums=(0, 1, 2, 3))):
        alone = [step(*(x[i] if axis == 0 else x for x, axis in zip(arrays, axes))) for i in range(3)]
        close(jax.tree.leaves(jax.vmap(step, axes)(*arrays)), [jnp.stack(x) for x in zip(*alone)], 5e-5)


def test_checkpoint_scan_and_a_traced_scale():
    q, k, v = qkv()
    slopes, key = jnp.arange(4.0) / 8, jax.random.key(1)

    def layer(q, sinks, scale):
        return dfa.attention(q, k, v[..., :16], scale=scale, sinks=sinks, alibi_slopes=slopes, dropout_p=0.2, seed=key)
    sinks = drawn((3, 4), 5)

    def loss(wrapped, q, sinks, scale):
        return (jax.lax.scan(lambda q, sink: (wrapped(q, sink, scale), None), q, sinks)[0] ** 2).sum()
    plain, again = (jax.jit(jax.grad(lambda *x, f=f: loss(f, *x), argnums=(0, 1, 2)))(q, sinks, 0.3) for f in (layer, jax.checkpoint(layer)))
    close(again, plain)

    def unrolled(q, sinks, scale):
        for sink in sinks:
            q = layer(q, sink, scale)
        return (q ** 2).sum()
    close(plain, jax.grad(unrolled, argnums=(0, 1, 2))(q, sinks, 0.3), 1e-4)


def factors_of(options, sizes):
    """0 or 1 / what is left of 1, of each pair: values that pick out one key each show what is left of its probability."""
    b, h, sq, sk = sizes
    q, k = jnp.zeros((b, h, sq, 8)), jnp.zeros((b, h, sk, 8))
    return dfa.attention(q, k, jnp.broadcast_to(jnp.eye(sk), (b, h, sk, sk)), **options) * sk


@pytest.mark.parametrize("seed", [3, 2 ** 64 - 1, jax.random.key(2), jax.random.PRNGKey(2), jax.random.key(2, impl="rbg")], ids=str)
def test_dropout_and_its_gradients(seed):
    options = {"dropout_p": 0.25, "seed": seed}
    factors = factors_of(options, (2, 4, 9, 16))
    assert 0.6 < (factors != 0).mean() < 0.9
    np.testing.assert_allclose(factors[factors != 0], 4 / 3, rtol=1e-5)

    def dropped(*x, **more):
        return ours(*x, **options, **more)

    def reference(*x, **more):
        return written_out(*x, factors=jnp.round(jnp.asarray(factors, x[0].dtype) * 0.75) / 0.75, **more)
    held_against_float64(dropped, reference, qkv(sk=16), 3e-5, sinks=jnp.arange(4.0) / 2, softcap=3.0, causal=True)


def test_keys_draw_masks_of_their_own_and_the_same_again():
    def of(key):
        return factors_of({"dropout_p": 0.5, "seed": key}, (2, 2, 16, 32))
    first, second = jax.random.split(jax.random.key(0))
    assert (of(first) == of(first)).all() and (of(first) != of(second)).mean() > 0.3
    np.testing.assert_array_equal(jax.jit(of)(first), of(first))
    both = jax.vmap(of)(jnp.stack([first, second]))
    np.testing.assert_array_equal(both, jnp.stack([of(first), of(second)]))
    heads = of(first).reshape(4, -1)
    assert ((heads[:, None] != heads).mean(-1) > 0.3).sum() == 12


def rows_first(*arrays):
    return [x.swapaxes(1, 2) for x in arrays]


def of_jax(*arrays, **options):
    """dot_product_attention of arrays [b, h, s, d]."""
    o, lse = dfa.jax.dot_product_attention(*rows_first(*arrays), return_residual=True, **options)
    return o.swapaxes(1, 2), lse.swapaxes(1, 2)


def from_the_first(q, k, v, is_causal=False, local_window_size=None, rows=None, keys=None, **options):
    """What dot_product_attention means."""
    sq, sk = q.shape[2], k.shape[2]
    mask = jnp.ones((1, 1, sq, sk), bool) if keys is None else (jnp.arange(sk) < keys[:, None])[:, None, None]
    o, lse = written_out(q, k, v, causal=is_causal, window=local_window_size and (local_window_size,) * 2, mask=mask, aligned=False, **options)
    if rows is None:
        return o, lse
    counts = (jnp.arange(sq) < rows[:, None])[:, None]
    return jnp.where(counts[..., None], o, 0), jnp.where(counts, lse, -jnp.inf)


LENGTHS = {"rows": jnp.array([8, 13], jnp.int32), "keys": jnp.array([5, 0], jnp.int32)}


@pytest.mark.one_in(3)
@pytest.mark.parametrize("lengths", [(), ("keys",), ("rows", "keys")], ids=str)
@pytest.mark.parametrize("mask", [{}, {"is_causal": True}, {"local_window_size": 2}], ids=str)
@pytest.mark.parametrize("given", [GIVEN[0], GIVEN[2], GIVEN[3], {"softcap": 3.0, "alibi_slopes": (4,), "sinks": (4,), "bias": (1, 4, 13, 13)}],
                         ids=["softcap", "slopes", "sinks", "all"])
def test_dot_product_attention(given, mask, lengths):
    names = {"rows": "query_seq_lengths", "keys": "key_value_seq_lengths"}
    lengths = {name: LENGTHS[name] for name in lengths}

    def function(*arrays, **more):
        return of_jax(*arrays, **more, **{names[name]: x for name, x in lengths.items()})
    held_against_float64(function, lambda *x, **more: from_the_first(*x, **more, **lengths), qkv(sq=13), 3e-5, **made(given), **mask)


@pytest.mark.parametrize("given", [{"softcap": 3.0}, {"alibi_slopes": (4,)}, {"bias": (1, 4, 13, 13)}], ids=["softcap", "slopes", "bias"])
def test_what_does_not_count_may_hold_anything(given):
    arrays, rows = qkv(sq=13), jnp.array([5, 8], jnp.int32)
    beyond = (jnp.arange(13) >= rows[:, None])[:, None, :, None]

    def step(*arrays):
        return results(of_jax, arrays, query_seq_lengths=rows, key_value_seq_lengths=rows, **made(given))
    close(step(*(jnp.where(beyond, jnp.nan, x) for x in arrays)), step(*arrays))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("sizes", [(9, 13), (13, 9)])
@pytest.mark.parametrize("mask", [{}, {"is_causal": True}, {"local_window_size": 2}], ids=str)
def test_dot_product_attention_of_other_keys_than_queries(sizes, mask):
    options = made({"softcap": 3.0, "sinks": (4,)})
    held_against_float64(of_jax, from_the_first, qkv(*sizes), 3e-5, **options, **mask)
    keys = {"keys": jnp.array([4, 9], jnp.int32)}
    held_against_float64(lambda *x, **more: of_jax(*x, key_value_seq_lengths=keys["keys"], **more),
                         lambda *x, **more: from_the_first(*x, **keys, **more), qkv(*sizes), 3e-5, **options, **mask)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("ids", [[0, 0, 0, 5, 5, 5, 5, 5, 1, 1, 1, 1, 1], [4] * 13], ids=["three", "one"])
@pytest.mark.parametrize("traced", [False, True])
def test_segments(ids, traced):
    ids = jnp.array([ids, [2] * 13], jnp.int32)

    def function(*arrays, **options):
        def step(ids, *x):
            return of_jax(*x, segment_ids=ids, is_causal=True, **options)
        return (jax.jit(step) if traced else step)(ids, *arrays)

    def reference(*arrays, **options):  # within a segment distances are those of the rows
        return written_out(*arrays, causal=True, mask=(ids[:, :, None] == ids[:, None])[:, None], **options)
    held_against_float64(function, reference, qkv(sq=13), 3e-5, **made({"softcap": 3.0, "alibi_slopes": (2, 4), "sinks": (4,)}))
    scattered = ids.at[0, 12].set(0)
    if ids[0, 0] == 0:
        with pytest.raises(ValueError, match="a number that comes again behind another one, with local_window_size or alibi_slopes"):
            of_jax(*qkv(sq=13), segment_ids=scattered, alibi_slopes=jnp.ones(4))


def test_dropout_of_dot_product_attention():
    key = jax.random.key(9)
    q, k, v = qkv(sq=13)
    o, _ = of_jax(q, k, v, dropout_p=0.3, dropout_key=key, is_causal=True)
    np.testing.assert_array_equal(o, dfa.attention(q, k, v, dropout_p=0.3, seed=key, causal=True))
    lengths = jnp.array([13, 6], jnp.int32)
    masked = of_jax(q, k, v, dropout_p=0.3, dropout_key=key, key_value_seq_lengths=lengths)[0]
    close([masked], [dfa.attention(q, k, v, dropout_p=0.3, seed=key, mask=(jnp.arange(13) < lengths[:, None])[:, None, None])])
    assert (of_jax(q, k, v, dropout_p=0.3, dropout_key=jax.random.key(8), is_causal=True)[0] != o).any()


def mesh_of(kind):
    return jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices("cpu")[:4], axis_types=(getattr(jax.sharding.AxisType, kind),) * 2)


def on_devices(q, k, v, sinks, bias, slopes, **dropout):
    return ours(q, k, v, sinks=sinks, alibi_slopes=slopes, bias=bias, causal=True, **dropout)


@pytest.mark.skipif(len(jax.devices("cpu")) < 4, reason="JAX was started with fewer devices")
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("dropout", [{}, {"dropout_p": 0.3, "seed": 6}], ids=["", "dropout"])
def test_arrays_on_several_devices(kind, dropout):
    learned, slopes = [*qkv(), drawn((4,), 3), drawn((2, 4, 9, 13), 5)], drawn((2, 4), 4) ** 2
    step = jax.grad(weighed(lambda *x: on_devices(*x, slopes=slopes, **dropout)), argnums=tuple(range(5)))
    wanted = step(*learned)
    specs = [jax.P("x", "y"), jax.P("x", "y"), jax.P("x", "y"), jax.P(), jax.P("x", "y")]
    mesh = mesh_of(kind)
    placed = [jax.device_put(x, jax.NamedSharding(mesh, spec)) for x, spec in zip(learned, specs)]
    compiled = jax.jit(step).lower(*placed).compile()
    gathered = re.search(r"f32\[\d+,\d+,\d+,\d+\]\S* all-gather\(", compiled.as_text())  # of the size of q, not of lse
    assert bool(gathered) == bool(dropout)
    close(compiled(*placed), wanted)


@pytest.mark.skipif(len(jax.devices("cpu")) < 4, reason="JAX was started with fewer devices")
def test_shard_map_adds_up_the_gradient_of_sinks():
    arrays = [*qkv(), drawn((4,), 3)]
    mesh = jax.make_mesh((2,), ("x",), devices=jax.devices("cpu")[:2], axis_types=(jax.sharding.AxisType.Auto,))
    mapped = jax.shard_map(lambda q, k, v, sinks: ours(q, k, v, sinks=sinks, softcap=3.0), mesh=mesh,
                           in_specs=(jax.P("x"),) * 3 + (jax.P(),), out_specs=jax.P("x"))
    got, wanted = (jax.grad(weighed(f), argnums=(0, 1, 2, 3))(*arrays)
                   for f in (mapped, lambda q, k, v, sinks: ours(q, k, v, sinks=sinks, softcap=3.0)))
    close(got, wanted)


@pytest.mark.parametrize("error, words, options", [
    (ValueError, r"alibi_slopes has shape \[3\]", {"alibi_slopes": jnp.ones(3)}),
    (ValueError, r"sinks has shape \[2, 4\]", {"sinks": jnp.ones((2, 4))}),
    (TypeError, "sinks is of bool", {"sinks": jnp.ones(4, bool)}), (TypeError, "sinks is <object", {"sinks": object()}),
    (ValueError, "softcap -1", {"softcap": -1}), (TypeError, "softcap ", {"softcap": jnp.ones(2)}),
    (ValueError, "bias has shape", {"bias": jnp.ones((9, 13))}), (TypeError, "bias is of int32", {"bias": jnp.ones((1, 1, 9, 13), int)}),
    (TypeError, "mask is of float32", {"mask": jnp.ones((1, 1, 9, 13))}), (ValueError, "chunk=3 beside prefix=3", {"chunk": 3, "prefix": 3}),
    (ValueError, "dropout_p 1.0; accepted: from 0", {"dropout_p": 1.0, "seed": 1}),
    (ValueError, "seed None; accepted: a whole number from 0 to .*key of jax.random", {"dropout_p": 0.5}),
    (ValueError, "seed -1", {"dropout_p": 0.5, "seed": -1}), (ValueError, "seed 3 beside dropout_p of 0", {"seed": 3}),
    (ValueError, "seed Array", {"dropout_p": 0.5, "seed": jax.random.split(jax.random.key(1))}),
    (ValueError, "algorithm auto", {"softcap": 3.0, "algorithm": "standard"}),
    (ValueError, "block_mask is not supported on arrays of jax", {"block_mask": object()})], ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_what_is_refused(error, words, options):
    with pytest.raises(error, match=words) as raised:
        dfa.attention(*qkv(), **options)
    assert "\n" not in str(raised.value)


def test_integers_of_64_bits_are_read_as_they_are():
    """JAX's own have 32."""
    _, lse = dfa.attention(*qkv(), sinks=np.array([2 ** 40, 2, 3, 4]), return_lse=True)
    assert float(lse[0, 0, 0]) == 2.0 ** 40


@pytest.mark.parametrize("error, words, options", [
    (ValueError, "dropout_key None; accepted beside dropout_p", {"dropout_p": 0.5}),
    (ValueError, "dropout_key 5; accepted beside dropout_p", {"dropout_p": 0.5, "dropout_key": 5}),
    (ValueError, "beside dropout_p of 0", {"dropout_key": jax.random.key(1)}),
    (ValueError, "alibi_slopes with 9 queries and 13 keys", {"alibi_slopes": jnp.ones(4)}),
    (ValueError, "segment_ids beside dropout_p", {"segment_ids": jnp.zeros((2, 9), int), "dropout_p": 0.5, "dropout_key": jax.random.key(1)})],
    ids=lambda x: x[:40] if isinstance(x, str) else "")
def test_what_dot_product_attention_refuses(error, words, options):
    with pytest.raises(error, match=words) as raised:
        of_jax(*qkv(), **options)
    assert "\n" not in str(raised.value)


def test_what_is_traced_and_may_not_be():
    q, k, v = qkv()
    for name, more in (("softcap", {}), ("dropout_p", {"seed": 3}), ("seed", {"dropout_p": 0.5})):
        with pytest.raises((TypeError, ValueError), match=f"^{name} .*accepted: "):
            jax.jit(lambda x: dfa.attention(q, k, v, **{name: x}, **more))(jnp.float32(0.5) if name != "seed" else jnp.int32(1))
    with pytest.raises(ValueError, match="alibi_slopes has a gradient, which is not computed; accepted: jax.lax.stop_gradient"):
        jax.grad(lambda slopes: dfa.attention(q, k, v, alibi_slopes=slopes).sum())(jnp.ones(4))
    jax.grad(lambda slopes: dfa.attention(q, k, v, alibi_slopes=jax.lax.stop_gradient(slopes)).sum())(jnp.ones(4))
    with pytest.raises(TypeError, match="no forward-mode derivative"):
        jax.jvp(lambda q: dfa.attention(q, k, v, softcap=3.0), (q,), (q,))

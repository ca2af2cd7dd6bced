"""mask_mod and score_mod of JAX arrays: against what they mean, written out, NumPy's door, and one another's transforms."""

import re

import numpy as np
import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402

import dfa  # noqa: E402
from dfa import _core  # noqa: E402

if not hasattr(_core, "jax_targets"):
    pytest.skip("dfa was built without JAX", allow_module_level=True)

import dfa.jax  # noqa: E402

PLATFORMS = ["cpu", *(["cuda"] if jax.default_backend() == "gpu" else [])]
TEXTS = [
    ("causal", {"mask_mod": "kv_idx <= q_idx + sk - sq"}, lambda at: at["k"] <= at["q"] + at["sk"] - at["sq"], None),
    ("of heads and batches", {"mask_mod": "(kv_idx + 3 * h + b) % 5 != 0 && kv_idx / 16 <= q_idx / 4"},
     lambda at: ((at["k"] + 3 * at["h"] + at["b"]) % 5 != 0) & (at["k"] // 16 <= at["q"] // 4), None),
    ("of lengths", {"mask_mod": "(kv_idx + sk) % 7 < 4 || (q_idx + sq) % 2 == 0"},
     lambda at: ((at["k"] + at["sk"]) % 7 < 4) | ((at["q"] + at["sq"]) % 2 == 0), None),
    ("softcap", {"score_mod": "2.0f * tanh(score / 2.0f) + 0.25f * h - 0.1f * b"}, None,
     lambda s, at: 2 * jnp.tanh(s / 2) + 0.25 * at["h"] - 0.1 * at["b"]),
    ("both", {"mask_mod": "q_idx % 4 != 3", "score_mod": "kv_idx % 3 == 0 ? -INFINITY : score * score - 0.1f * abs(q_idx - kv_idx)"},
     lambda at: (at["q"] % 4 != 3) & (at["k"] >= 0),
     lambda s, at: jnp.where(at["k"] % 3 == 0, -jnp.inf, s * s - 0.1 * jnp.abs(at["q"] - at["k"]))),
]
NAMES = [text[0] for text in TEXTS]
OF_PLACES, OF_HEADS, OF_BATCHES = ({"score_mod": f"score * (1 + 0.5f * {name}) - 0.1f * {name} * kv_idx"} for name in ("q_idx", "h", "b"))


def drawn(shape, seed, dtype=jnp.float32):
    return jax.random.normal(jax.random.key(seed), shape, dtype)


def qkv(sq=21, sk=33, dtype=jnp.float32):
    return [drawn(shape, seed, dtype) for seed, shape in enumerate([(2, 4, sq, 16), (2, 2, sk, 16), (2, 2, sk, 24)])]


def written_out(q, k, v, sees=None, becomes=None, seen=True):
    """(o, lse). seen: what other masks show."""
    (b, h, sq, d), sk = q.shape, k.shape[2]
    k, v = (jnp.repeat(x, h // x.shape[1], 1) for x in (k, v))
    at = dict(zip("bhqk", jnp.meshgrid(*map(jnp.arange, (b, h, sq, sk)), indexing="ij"))) | {"sq": sq, "sk": sk}
    x = jnp.einsum("bhid,bhjd->bhij", q, k, precision="highest") * d ** -0.5
    x = becomes(x, at) if becomes else x
    seen = jnp.broadcast_to(seen, x.shape) & (sees(at) if sees else True) & (x > -1e30)
    x = jnp.where(seen, x, -jnp.inf)
    most = jax.lax.stop_gradient(jnp.max(x, -1))
    most = jnp.where(jnp.isneginf(most), 0, most)
    p = jnp.where(seen, jnp.exp(x - most[..., None]), 0)
    total = p.sum(-1)
    lse = jnp.where(total > 0, most + jnp.log(jnp.where(total > 0, total, 1)), -jnp.inf)
    return jnp.einsum("bhij,bhjd->bhid", p / jnp.where(total > 0, total, 1)[..., None], v, precision="highest"), lse


def ours(*arrays, **options):
    return dfa.attention(*arrays, return_lse=True, **options)


def weighed(function):
    """A loss of o and lse."""
    def loss(*arrays):
        return sum((jnp.cos(jnp.arange(y.size)).reshape(y.shape) * jnp.where(jnp.isneginf(y), 0, y)).sum() for y in function(*arrays))
    return loss


def results(function, arrays):
    return [*function(*arrays), *jax.grad(weighed(function), argnums=(0, 1, 2))(*arrays)]


def close(got, wanted, bound=5e-5):
    assert len(got) == len(wanted) > 0
    for one, other in zip(got, wanted):
        assert one.shape == other.shape
        np.testing.assert_allclose(*(np.asarray(x, np.float32) for x in (one, other)), atol=bound, rtol=bound)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("_, options, sees, becomes", TEXTS, ids=NAMES)
def test_values_and_gradients_are_those_written_out(_, options, sees, becomes, platform):
    arrays = jax.device_put(qkv(), jax.devices(platform)[0])
    bound = 1e-4 if platform == "cpu" else 2e-3
    wanted = results(lambda *x: written_out(*x, sees, becomes), arrays)
    close(results(lambda *x: ours(*x, **options), arrays), wanted, bound)
    close(jax.jit(lambda *x: results(lambda *x: ours(*x, **options), x))(*arrays), wanted, bound)


@pytest.mark.parametrize("platform", PLATFORMS)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_half_precision(dtype, platform):
    arrays = jax.device_put([x.astype(dtype) for x in qkv()], jax.devices(platform)[0])
    _, options, sees, becomes = TEXTS[3]
    got = results(lambda *x: ours(*x, **options, causal=True), arrays)
    assert got[0].dtype == dtype
    causal = jnp.arange(33) <= jnp.arange(21)[:, None] + 12
    wanted = results(lambda *x: written_out(*x, sees, becomes, causal), [x.astype(jnp.float32) for x in arrays])
    close(got, wanted, 6e-2)


@pytest.mark.parametrize("beside", [{}, {"causal": True, "softcap": 3.0}, {"dropout_p": 0.4, "seed": 5}, {"window": (9, 9)}], ids=str)
def test_the_numbers_are_those_of_numpy(beside):
    arrays = jax.device_put(qkv(), jax.devices("cpu")[0])
    texts = TEXTS[1][1] | OF_HEADS
    wanted = ours(*map(np.asarray, arrays), **texts, **beside)
    for one, other in zip(ours(*arrays, **texts, **beside), wanted):
        np.testing.assert_array_equal(one, other)


def test_a_program_keeps_its_texts_apart():
    arrays = qkv()

    @jax.jit
    def all_of_them(*x):
        return [dfa.attention(*x), *(dfa.attention(*x, score_mod=text) for text in ("score", "2 * score", "2*score"))]
    plain, same, twice, again = all_of_them(*arrays)
    close([same, twice, again], [plain, *[dfa.attention(*arrays, scale=0.5)] * 2])
    step = jax.jit(jax.grad(lambda q: (jax.checkpoint(lambda q: dfa.attention(q, *arrays[1:], **OF_HEADS))(q) ** 2).sum()))
    close([step(arrays[0])], [jax.grad(lambda q: (dfa.attention(q, *arrays[1:], **OF_HEADS) ** 2).sum())(arrays[0])])


@pytest.mark.one_in(2)
@pytest.mark.parametrize("options", [OF_PLACES, OF_HEADS, OF_BATCHES, {"mask_mod": "kv_idx % 3 != b"}], ids=lambda x: next(iter(x.values())))
@pytest.mark.parametrize("axes", [(0, 0, 0), (None, 0, 0), (1, None, None)], ids=str)
def test_vmap_is_each_by_itself(options, axes):
    arrays = [x if axis is None else jnp.stack([x, x + 1, 2 * x], axis) for x, axis in zip(qkv(), axes)]

    def function(*x):
        return ours(*x, **options)
    for step in (function, jax.grad(weighed(function), argnums=(0, 1, 2))):
        alone = [step(*(x if axis is None else x.take(i, axis) for x, axis in zip(arrays, axes))) for i in range(3)]
        close(jax.tree.leaves(jax.vmap(step, axes)(*arrays)), [jnp.stack(x) for x in zip(*alone)])


def mesh_of(kind):
    return jax.make_mesh((2, 2), ("x", "y"), devices=jax.devices("cpu")[:4], axis_types=(getattr(jax.sharding.AxisType, kind),) * 2)


@pytest.mark.skipif(len(jax.devices("cpu")) < 4, reason="JAX was started with fewer devices")
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
@pytest.mark.parametrize("options, shared", [(OF_PLACES, True), (OF_HEADS, False), (OF_BATCHES, False), ({"mask_mod": "kv_idx % 3 != b + h"}, False)],
                         ids=["places", "heads", "batches", "both"])
def test_arrays_on_several_devices(kind, options, shared):
    """Where a text names b or h, each device has to know the whole arrays': it gets them, and no other numbers."""
    step = jax.grad(weighed(lambda *x: ours(*x, **options, causal=True)), argnums=(0, 1, 2))
    arrays = jax.device_put(qkv(), jax.devices("cpu")[0])
    placed = [jax.device_put(x, jax.NamedSharding(mesh_of(kind), jax.P("x", "y"))) for x in arrays]
    compiled = jax.jit(step).lower(*placed).compile()
    gathered = re.search(r"f32\[\d+,\d+,\d+,\d+\]\S* all-gather\(", compiled.as_text())
    assert bool(gathered) != shared
    close(compiled(*placed), step(*arrays))


def rows_first(*arrays):
    return [x.swapaxes(1, 2) for x in arrays]


def of_jax(*arrays, **options):
    """dot_product_attention of arrays [b, h, s, d]."""
    o, lse = dfa.jax.dot_product_attention(*rows_first(*arrays), return_residual=True, **options)
    return o.swapaxes(1, 2), lse.swapaxes(1, 2)


LENGTHS = {"query_seq_lengths": jnp.array([8, 21], jnp.int32), "key_value_seq_lengths": jnp.array([5, 30], jnp.int32)}


@pytest.mark.one_in(2)
@pytest.mark.parametrize("lengths", [(), ("key_value_seq_lengths",), tuple(LENGTHS)], ids=lambda x: f"{len(x)} lengths")
@pytest.mark.parametrize("mask", [{}, {"is_causal": True}, {"local_window_size": (4, 2)}], ids=str)
@pytest.mark.parametrize("_, options, sees, becomes", TEXTS[1:4], ids=NAMES[1:4])
def test_dot_product_attention(_, options, sees, becomes, mask, lengths):
    """Its places count from the first query and key, and its lengths change no number that a text names."""
    arrays = jax.device_put(qkv(), jax.devices("cpu")[0])
    given = {name: LENGTHS[name] for name in lengths}
    rows, keys = jnp.arange(21)[:, None], jnp.arange(33)
    seen = jnp.ones((1, 1, 21, 33), bool)
    if mask:
        left, right = mask.get("local_window_size", (33, 0))
        seen &= (keys >= rows - left) & (keys <= rows + right)
    for name, places in (("query_seq_lengths", rows), ("key_value_seq_lengths", keys)):
        if name in given:
            seen &= (places < given[name][:, None, None])[:, None]
    wanted = results(lambda *x: written_out(*x, sees, becomes, seen), arrays)
    close(results(lambda *x: of_jax(*x, **options, **mask, **given), arrays), wanted, 1e-4)


def test_what_a_text_says_of_padding_reaches_nobody():
    text = {"score_mod": "kv_idx < 5 ? score : sqrt(-1.0f)"}
    arrays = qkv()
    got = results(lambda *x: of_jax(*x, **text, key_value_seq_lengths=jnp.array([5, 3], jnp.int32)), arrays)
    assert all(np.isfinite(x).all() for x in got)


def test_no_keys():
    q, k, v = qkv()
    o, lse = ours(q, k[:, :, :0], v[:, :, :0], **OF_HEADS)
    assert (o == 0).all() and jnp.isneginf(lse).all()


@pytest.mark.parametrize("options, error, words", [
    ({"mask_mod": "kv_idx <= "}, ValueError, "mask_mod: column 11: expected a value at the end"),
    ({"score_mod": "int(score)"}, ValueError, "score_mod: column 1: int.* of the score has no derivative"),
    ({"mask_mod": lambda b, h, q, k: k <= q}, TypeError, "mask_mod is <function"),
    ({"score_mod": ""}, ValueError, "score_mod is empty"),
    ({"mask_mod": "true", "algorithm": "standard"}, ValueError, "chunk and prefix take algorithm auto"),
    ({"mask_mod": "true", "block_mask": object()}, ValueError, "block_mask is not supported on arrays of jax")])
def test_what_is_wrong_is_one_line(options, error, words):
    q, k, v = qkv()
    for call in (lambda q: dfa.attention(q, k, v, **options), jax.jit(lambda q: dfa.attention(q, k, v, **options))):
        with pytest.raises(error, match=words) as raised:
            call(q)
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="mask_mod: column 11"):
        dfa.attention(q, k[:, :, :0], v[:, :, :0], mask_mod="kv_idx <= ")


def test_who_takes_no_text_says_so():
    with pytest.raises(ValueError, match="segment_ids beside mask_mod or score_mod; accepted: one of them"):
        of_jax(*qkv(33), segment_ids=jnp.zeros((2, 33), jnp.int32), **OF_PLACES)
    with pytest.raises(ValueError, match="score_mod is not supported beside JAX arrays in float8_e4m3fn"):
        dfa.attention(*(x.astype(jnp.float8_e4m3fn) for x in qkv()), **OF_PLACES)
    with pytest.raises(TypeError, match="no forward-mode derivative"):
        jax.jvp(lambda q: dfa.attention(q, *qkv()[1:], **OF_PLACES), (qkv()[0],), (qkv()[0],))

"""dfa.jax.ring_attention over four devices of a processor against dfa.attention of the whole."""

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import dfa  # noqa: E402
import dfa.jax  # noqa: E402
from dfa import _core  # noqa: E402
from test_jax import close, inputs  # noqa: E402
from test_jax_devices import mesh_of  # noqa: E402

pytestmark = [pytest.mark.skipif(not hasattr(_core, "jax_targets"), reason="dfa was built without JAX"),
              pytest.mark.skipif(len(jax.devices("cpu")) < 4, reason="JAX was started with fewer devices")]
SHAPES = {"b": 2, "hq": 4, "hk": 2, "sq": 24, "sk": 24, "d": 16, "dv": 16}


def rows_first(**sizes):
    return [x.swapaxes(1, 2) for x in inputs(**SHAPES | sizes)]


def ring_of(check=True, **options):
    spec = P(None, "x")
    return jax.shard_map(lambda *x: dfa.jax.ring_attention(*x, "x", return_residual=True, **options), mesh=mesh_of(x=4),
                         in_specs=(spec,) * 3, out_specs=(spec, spec), check_vma=check)


def whole(*x, **options):
    o, lse = dfa.attention(*(one.swapaxes(1, 2) for one in x), return_lse=True, **options)
    return o.swapaxes(1, 2), lse.swapaxes(1, 2)


def loss(outputs, of_lse):
    o, lse = outputs
    return (o.astype(jnp.float32) ** 2).sum() + (lse.sum() if of_lse else 0)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("of_lse", [False, True])
@pytest.mark.parametrize("layout, causal, check, sizes", [
    (None, False, True, {}), (None, True, True, {}), (None, True, False, {"hk": 1}), ("contiguous", True, True, {}),
    ("contiguous", False, True, {"sk": 40}), (None, True, True, {"d": 20, "dv": 12})])
def test_a_ring_gives_what_the_whole_gives(layout, causal, check, sizes, of_lse):
    arrays = rows_first(**sizes)
    ring = ring_of(check, is_causal=causal, layout=layout)
    zigzag = causal and layout is None

    def ringed(*x):
        x = [dfa.jax.zigzag(one, 4) for one in x] if zigzag else x
        return tuple(dfa.jax.zigzag(one, 4, back=True) if zigzag else one for one in ring(*x))
    got, wanted = jax.jit(ringed)(*arrays), whole(*arrays, causal=causal)
    assert all(close(a, b, 1e-5) for a, b in zip(got, wanted))
    got = jax.grad(lambda *x: loss(ringed(*x), of_lse), argnums=(0, 1, 2))(*arrays)
    wanted = jax.grad(lambda *x: loss(whole(*x, causal=causal), of_lse), argnums=(0, 1, 2))(*arrays)
    assert all(close(a, b, 1e-5) for a, b in zip(got, wanted))


def test_keys_go_round_and_nothing_is_gathered():
    arrays = rows_first()
    text = jax.jit(ring_of(is_causal=True)).lower(*arrays).compile().as_text()
    assert "collective-permute" in text and "all-gather" not in text and "all-to-all" not in text


def test_half_precision_is_summed_in_float32():
    arrays = [x.astype(jnp.bfloat16) for x in rows_first(sq=256, sk=256)]
    got, _ = ring_of()(*arrays)
    wanted, _ = whole(*(x.astype(jnp.float32) for x in arrays))
    assert got.dtype == jnp.bfloat16 and close(got.astype(jnp.float32), wanted, 2e-2)


def test_what_a_ring_cannot_take_is_refused():
    q, k, v = rows_first()
    for arguments, options, text in (
            ((q[0], k, v), {}, "3, 4, 4 dimensions"), ((q, k[:, :20], v[:, :20]), {"is_causal": True}, "6 rows and 5 keys"),
            ((q[:, :20], k[:, :20], v[:, :20]), {"is_causal": True}, "5 rows and 5 keys"), ((q, k, v), {"layout": "stripe"}, "layout is 'stripe'"),
            ((q, k, v), {"is_causal": 2}, "is_causal"), ((q, k[..., :8], v), {}, "shapes do not match"),
            ((q, k, v.astype(jnp.bfloat16)), {}, "element types")):
        spec = P(None, "x")
        specs = tuple(spec if x.ndim == 4 else P() for x in arguments)
        with pytest.raises((ValueError, TypeError), match=text):
            jax.shard_map(lambda *x: dfa.jax.ring_attention(*x, "x", **options), mesh=mesh_of(x=4), in_specs=specs, out_specs=spec)(*arguments)
    with pytest.raises(NameError):
        dfa.jax.ring_attention(q, k, v, "x")
    with pytest.raises(ValueError, match="20 rows over 4 devices"):
        dfa.jax.zigzag(q[:, :20], 4)

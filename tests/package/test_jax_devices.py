"""dfa.attention on JAX arrays that lie on several devices: results, gradients, and who sends what to whom."""

import pytest

jax = pytest.importorskip("jax")
import jax.numpy as jnp  # noqa: E402
from jax.sharding import NamedSharding  # noqa: E402
from jax.sharding import PartitionSpec as P  # noqa: E402

import dfa  # noqa: E402
import dfa.jax  # noqa: E402
from dfa import _core  # noqa: E402
from test_jax import close, inputs  # noqa: E402

pytestmark = [pytest.mark.skipif(not hasattr(_core, "jax_targets"), reason="dfa was built without JAX"),
              pytest.mark.skipif(len(jax.devices("cpu")) < 4, reason="JAX was started with fewer devices")]


def mesh_of(kind="Auto", **sizes):
    devices = jax.devices("cpu")[:4]
    types = (getattr(jax.sharding.AxisType, kind),) * len(sizes)
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), devices=devices, axis_types=types)


def loss(*x):
    o, lse = dfa.attention(*x, causal=True, return_lse=True)
    return (o.astype(jnp.float32) ** 2).sum() + lse.sum()


gradients = jax.grad(loss, argnums=(0, 1, 2))
SHAPES = {"b": 4, "hq": 8, "hk": 4, "sq": 9, "sk": 9, "d": 16, "dv": 16}


def all_close(got, wanted):
    return all(close(a, b, 1e-5) for a, b in zip(got, wanted, strict=True))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P("x", "y"), P(("x", "y"))])
@pytest.mark.parametrize("step", [gradients, lambda *x: [dfa.attention(*x, causal=True)]])
def test_batches_and_heads_stay_on_their_devices(spec, step):
    mesh = mesh_of(x=2, y=2)
    arrays = inputs(**SHAPES)
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]
    compiled = jax.jit(step).lower(*placed).compile()
    text = compiled.as_text()
    assert not any(word in text for word in ("all-gather", "all-to-all", "collective-permute", "all-reduce"))
    got = compiled(*placed)
    assert all(x.sharding.is_equivalent_to(placed[0].sharding, 4) for x in got)
    assert all_close(got, step(*arrays))


@pytest.mark.parametrize("hk, spec", [(1, P(None, "x")), (2, P(None, ("x", "y"))), (4, P(None, None, "x")),
                                      (4, P(None, None, None, "x"))])
def test_what_devices_cannot_share_is_brought_together(hk, spec):
    """Heads of keys that do not come out even, rows, columns."""
    mesh = mesh_of(x=2, y=2)
    q, k, v = inputs(**SHAPES | {"hk": hk, "sq": 8, "sk": 8})
    placed = jax.device_put(q, NamedSharding(mesh, spec))
    assert all_close(jax.jit(gradients)(placed, k, v), gradients(q, k, v))


@pytest.mark.parametrize("spec", [P("x"), P(None, "x")])
@pytest.mark.parametrize("step", [gradients, lambda *x: [dfa.attention(*x, causal=True)]])
def test_devices_that_are_part_of_the_type(spec, step):
    mesh = mesh_of("Explicit", x=4)
    arrays = inputs(**SHAPES)
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]
    got = jax.jit(step)(*placed)
    assert all(x.sharding.is_equivalent_to(placed[0].sharding, 4) for x in got)
    assert all_close(got, step(*arrays))


@pytest.mark.parametrize("spec", [P("x"), P(None, None, "x"), P(None, None, None, "x")])
@pytest.mark.parametrize("which", [0, 1])
def test_devices_that_are_part_of_the_type_of_one_array_or_of_rows(spec, which):
    arrays = inputs(**SHAPES | {"sq": 8, "sk": 8})
    with jax.set_mesh(mesh_of("Explicit", x=4)):
        placed = [jax.reshard(x, spec if at == which else P()) for at, x in enumerate(arrays)]
        got = jax.jit(gradients)(*placed)
    assert all(jax.typeof(a).sharding.spec == jax.typeof(b).sharding.spec for a, b in zip(got, placed))
    assert all_close(got, gradients(*arrays))


@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_arrays_of_one_device_where_there_is_a_mesh(kind):
    arrays = inputs(**SHAPES)
    with jax.set_mesh(mesh_of(kind, x=4)):
        got = [step(*arrays) for step in (gradients, jax.jit(gradients))]
    assert all(all_close(x, gradients(*arrays)) for x in got)


@pytest.mark.parametrize("check", [True, False])
def test_shard_map_with_gradients(check):
    mesh, arrays = mesh_of(x=4), inputs(**SHAPES)
    mapped = jax.shard_map(lambda *x: dfa.attention(*x, causal=True), mesh=mesh, in_specs=P("x"), out_specs=P("x"),
                           check_vma=check)
    assert all_close([mapped(*arrays)], [dfa.attention(*arrays, causal=True)])
    got = jax.grad(lambda *x: (mapped(*x) ** 2).sum(), argnums=(0, 1, 2))(*arrays)
    wanted = jax.grad(lambda *x: (dfa.attention(*x, causal=True) ** 2).sum(), argnums=(0, 1, 2))(*arrays)
    assert all_close(got, wanted)


def test_shard_map_adds_up_the_gradients_of_what_all_devices_share():
    mesh = mesh_of(x=4)
    q, k, v = inputs(**SHAPES)
    mapped = jax.shard_map(dfa.attention, mesh=mesh, in_specs=(P("x"), P(), P()), out_specs=P("x"))
    got = jax.grad(lambda *x: (mapped(*x) ** 2).sum(), argnums=(0, 1, 2))(q, k[:1], v[:1])
    wanted = jax.grad(lambda *x: (dfa.attention(*x) ** 2).sum(), argnums=(0, 1, 2))(q, k[:1], v[:1])
    assert all_close(got, wanted)


@pytest.mark.one_in(2)
@pytest.mark.parametrize("step", [lambda *x: [dfa.attention(*x, causal=True)], gradients])
@pytest.mark.parametrize("axes", [(0, 0, 0), (1, None, None)])
def test_vmap_inside_a_shard_map(step, axes):
    mesh = mesh_of(x=4)
    arrays = [jnp.stack([x, 2 * x], axis) if axis is not None else x for axis, x in zip(axes, inputs(**SHAPES))]
    specs = tuple(P() if axis is None else P(None, "x") if axis == 0 else P("x") for axis in axes)
    arrays = [x if axis is not None else x[:1] for axis, x in zip(axes, arrays)]
    mapped = jax.shard_map(jax.vmap(step, axes), mesh=mesh, in_specs=specs, out_specs=P(None, "x"))
    if None in axes:  # the keys' gradients are of one device's queries: they stand one after the other
        got, wanted = mapped(*arrays)[:1], jax.vmap(step, axes)(*arrays)[:1]
    else:
        got, wanted = mapped(*arrays), jax.vmap(step, axes)(*arrays)
    assert all_close(got, wanted)


def test_shard_map_over_some_axes():
    mesh, arrays = mesh_of(x=2, y=2), inputs(**SHAPES)
    mapped = jax.shard_map(gradients, mesh=mesh, in_specs=P("x"), out_specs=P("x"), axis_names={"x"})
    assert all_close(jax.jit(mapped)(*arrays), gradients(*arrays))


def test_vmap_over_what_devices_share():
    mesh = mesh_of(x=4)
    arrays = [jnp.stack([x, x + 1]) for x in inputs(**SHAPES)]
    placed = [jax.device_put(x, NamedSharding(mesh, P(None, None, "x"))) for x in arrays]
    compiled = jax.jit(jax.vmap(gradients)).lower(*placed).compile()
    assert "all-gather" not in compiled.as_text()
    assert all_close(compiled(*placed), jax.vmap(gradients)(*arrays))


def packed(q, k, v, lengths):
    o, lse = dfa.jax.dot_product_attention(*(x.swapaxes(1, 2) for x in (q, k, v)), is_causal=True, query_seq_lengths=lengths,
                                           key_value_seq_lengths=lengths, return_residual=True)
    return (o.astype(jnp.float32) ** 2).sum() + jnp.where(jnp.isinf(lse), 0, lse).sum()


gradients_of_packed = jax.grad(packed, argnums=(0, 1, 2))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("spec", [P("x"), P(None, "x"), P("x", "y")])
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_packed_sequences_stay_on_their_devices(spec, kind):
    mesh = mesh_of(kind, x=2, y=2)
    arrays, lengths = inputs(**SHAPES), jnp.array([9, 4, 0, 7], jnp.int32)
    placed = [jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]
    where = jax.device_put(lengths, NamedSharding(mesh, P(*spec[:1])))
    compiled = jax.jit(gradients_of_packed).lower(*placed, where).compile()
    if kind == "Auto":
        assert not any(word in compiled.as_text() for word in ("all-gather", "all-to-all", "collective-permute"))
    got = compiled(*placed, where)
    assert all(x.sharding.is_equivalent_to(placed[0].sharding, 4) for x in got)
    assert all_close(got, gradients_of_packed(*arrays, lengths))
    with jax.set_mesh(mesh):
        assert all_close(jax.jit(gradients_of_packed)(*placed, where), gradients_of_packed(*arrays, lengths))


def test_packed_sequences_inside_a_shard_map():
    mesh, arrays, lengths = mesh_of(x=4), inputs(**SHAPES), jnp.array([9, 4, 0, 7], jnp.int32)
    mapped = jax.shard_map(gradients_of_packed, mesh=mesh, in_specs=P("x"), out_specs=P("x"))
    assert all_close(mapped(*arrays, lengths), gradients_of_packed(*arrays, lengths))


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["Auto", "Explicit"])
def test_segments_on_devices(kind):
    mesh, arrays = mesh_of(kind, x=4), inputs(**SHAPES)
    ids = jnp.array([[0] * 4 + [1] * 5, [1, 1, 0, 0, 1, 1, 2, 2, 2], [7] * 9, [3, 2, 2, 1, 1, 1, 0, 0, 3]], jnp.int32)

    def step(q, k, v, ids):
        return dfa.jax.dot_product_attention(*(x.swapaxes(1, 2) for x in (q, k, v)), is_causal=True, segment_ids=ids)
    placed = [jax.device_put(x, NamedSharding(mesh, P("x"))) for x in (*arrays, ids)]
    assert all_close([jax.jit(step)(*placed)], [step(*arrays, ids)])
    with jax.set_mesh(mesh):
        assert all_close([jax.jit(step)(*placed)], [step(*arrays, ids)])

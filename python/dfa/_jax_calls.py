"""XLA's foreign functions dfa_forward and dfa_backward, and those of variants: logits, dropout, packed sequences. With rules
for vmap, for arrays that lie on several devices and for derivatives, which they have none of.

All operands and results are [b, heads, …], so what holds for one of them holds for all: vmap counts as batch, and devices
share batches and heads of keys, with all heads of queries that read them. Rows and columns stay together. Lengths of packed
sequences are [b, …]: each entry of the batch has sequences of its own. Sinks are of heads alone, and a dropout's mask goes by
the numbers of batches and heads: vmap calls once for each of what it maps over there, and a dropout is of one device, or of all.
So it is with texts that name b or h.
"""

from functools import lru_cache, partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding, PartitionSpec

from dfa import _core
from dfa._logits import texts_name

if not hasattr(_core, "jax_targets"):
    raise ImportError("dfa was built without JAX; build it where jax is: "
                      "pip install --no-build-isolation .")
for (_name, _platform), _target in _core.jax_targets.items():
    jax.ffi.register_ffi_target(_name, _target, platform=_platform)


def forward(q, k, v, **attributes):
    """(o, lse)"""
    return _call(("dfa_forward", *attributes.items()), q, k, v)


def backward(q, k, v, o, lse, d_o, **attributes):
    """(dq, dk, dv)"""
    return _call(("dfa_backward", *attributes.items()), q, k, v, o, lse, d_o)


def scaled_forward(q, k, v, q_descale, k_descale, v_descale, **attributes):
    """(o in bfloat16, lse) of q, k, v in float8_e4m3fn, with factors float32 [b, hk, blocks of rows]"""
    return _call(("dfa_scaled_forward", *attributes.items()), q, k, v, q_descale, k_descale, v_descale)


class Options(NamedTuple):
    """What is known of a variant before it runs, as kernels have it."""

    left: int
    right: int
    scale: float
    deterministic: bool = False
    softcap: float = 0.0
    chunk: int = 0
    prefix: int = 0
    dropout: float = 0.0
    mask_mod: str = ""
    score_mod: str = ""


_BESIDE = ("lengths", "alibi", "sinks", "bias", "dropout")  # in the order of operands


def variant_forward(q, k, v, beside, options):
    """(o, lse) of q, k, v [b, h, s, d]. beside: a dict of what there is of
    alibi float32 [b, hq]; sinks float32 [1, hq]; bias [b, hq, sq or 1, sk or 1], which is added to logits; dropout uint32 [4], seed
    and offset, low halves first; lengths, int32 begins of the sequences of each entry of the batch, of q and k [b, n + 1], and how
    many rows of each count, of q and k [b, n]."""
    return _call(_variant("dfa_variant_forward", beside, options), q, k, v, *_operands(beside))


def variant_backward(q, k, v, o, lse, d_o, beside, options, learned=False):
    """(dq, dk, dv, dbias in float32, of no elements unless learned). lse has the sinks, which are not beside."""
    what = _variant("dfa_variant_backward", beside, options, learned)
    return _call(what, q, k, v, o, lse, d_o, *_operands(beside))


def _variant(name, beside, options, learned=False):
    named = " ".join(one for one in _BESIDE if one in beside)
    return (name, *options._asdict().items(), ("with", named), ("learned", learned))


def _operands(beside):
    for name in _BESIDE:
        if name in beside:
            yield from beside[name] if name == "lengths" else (beside[name],)


def _names(what, count):
    """Of so many operands: what each of them is, "" of a tensor."""
    named = dict(what[1:]).get("with", "").split()
    kinds = [kind for name in named for kind in ([name] * 4 if name == "lengths" else [name])]
    if what[0] == "dfa_scaled_forward":
        kinds = ["descale"] * 3
    return [""] * (count - len(kinds)) + kinds


def in_same_axes(*arrays):
    """Arrays that differ along the same axes of a shard_map: JAX adds up the gradients of those that did not."""
    axes = frozenset().union(*map(_axes_of, arrays))
    return tuple(_in_axes(array, axes) for array in arrays)


def _axes_of(array):
    kind = jax.typeof(array)
    if hasattr(kind, "manual_axis_type"):  # from JAX 0.11 on
        return frozenset(kind.manual_axis_type.varying)
    return frozenset(getattr(kind, "vma", ()))


def _in_axes(array, axes):
    missing = tuple(sorted(axes - _axes_of(array), key=str))
    return jax.lax.pcast(array, missing, to="varying") if missing else array


def _call(what, *operands):
    operands = in_same_axes(*operands)
    placed = _on_explicit_devices(what, operands)
    return tuple((placed or partial(_first_derivative, what))(*operands))


def placed_alike(q, k, v, shared=(True, True)):
    """Where devices are part of the arrays' types: each on the devices that share batches and heads, where these may be shared."""
    mesh, places = _explicit_places(q, k, shared)
    if mesh is None:
        return q, k, v
    spec = PartitionSpec(*places, None, None)
    return tuple(x if jax.typeof(x).sharding.spec == spec else jax.reshard(x, NamedSharding(mesh, spec)) for x in (q, k, v))


def _explicit_places(q, k, shared=(True, True)):
    """(the mesh whose devices are part of types, who shares batches and heads there), or None, None."""
    shardings = [getattr(jax.typeof(x), "sharding", None) for x in (q, k)]
    meshes = [*(getattr(sharding, "mesh", None) for sharding in shardings), jax.sharding.get_abstract_mesh()]
    mesh = next((mesh for mesh in meshes if getattr(mesh, "explicit_axes", ())), None)
    if mesh is None:
        return None, None
    return mesh, _places(mesh.shape, *(sharding.spec for sharding in shardings), k.shape, shared)


def _on_explicit_devices(what, operands):
    """A call of which the places of the results have to be said; None where devices are no part of the types."""
    mesh, places = _explicit_places(*operands[:2], _sharing(what))
    if mesh is None:
        return None
    results = tuple(PartitionSpec(*places, *(None,) * (len(x.shape) - 2)) for x in _results(what, *operands))
    return jax.sharding.auto_axes(partial(_first_derivative, what), out_sharding=results)


def with_devices_outside_types(call, q, k):
    """A call of which the results (o, lse) are placed as q and k are, that itself needs not say at each step where arrays lie."""
    mesh, places = _explicit_places(q, k)
    if mesh is None:
        return call
    results = tuple(NamedSharding(mesh, PartitionSpec(*places, *rest)) for rest in ((None, None), (None,)))
    return jax.jit(jax.sharding.auto_axes(call, out_sharding=results))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _first_derivative(what, *operands):
    return _batched(what)(*operands)


def _refuse(what, *operands):
    if what[0] == "dfa_scaled_forward":
        raise ValueError("float8_e4m3fn has a forward alone; accepted where a gradient is asked for: float32, float16, bfloat16")
    raise ValueError("dfa.attention is differentiated once, in reverse mode (grad, vjp, jacrev); its derivatives have "
                     "none themselves")


_first_derivative.defvjp(_refuse, _refuse)


def _batched(what):
    @jax.custom_batching.custom_vmap
    def call(*operands):
        manual = jax.sharding.get_abstract_mesh().manual_axes  # inside a shard_map, which has done the sharing
        return _here(what, *operands) if manual else _partitioned(what)(*operands)

    @call.def_vmap
    def rule(size, mapped, *operands):
        names = _names(what, len(operands))
        if _counts_batches(what) or any(name == "sinks" and is_mapped for name, is_mapped in zip(names, mapped)):
            return _one_by_one(what, mapped, operands)
        whole = (x if is_mapped else jnp.broadcast_to(x, (size, *x.shape)) for x, is_mapped in zip(operands, mapped))
        results = _call(what, *(given if name == "sinks" else x.reshape(size * x.shape[1], *x.shape[2:])
                                for x, given, name in zip(whole, operands, names)))
        split = tuple(x.reshape(size, x.shape[0] // size if size else operands[0].shape[mapped[0]], *x.shape[1:])
                      for x in results)
        return split, (True,) * len(split)

    return call


def _one_by_one(what, mapped, operands):
    def one(those):
        those = iter(those)
        return _call(what, *(next(those) if is_mapped else x for x, is_mapped in zip(operands, mapped)))
    results = jax.lax.map(one, [x for x, is_mapped in zip(operands, mapped) if is_mapped])
    return results, (True,) * len(results)


def _results(what, *operands):
    q, _, v = operands[:3]
    if what[0].endswith("forward"):
        dtype = jnp.bfloat16 if what[0] == "dfa_scaled_forward" else q.dtype
        return (jax.ShapeDtypeStruct((*q.shape[:3], v.shape[3]), dtype), jax.ShapeDtypeStruct(q.shape[:3], jnp.float32))
    gradients = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands[:3])
    if what[0] == "dfa_backward":
        return gradients
    bias = next((x for x, name in zip(operands, _names(what, len(operands))) if name == "bias"), None)
    learned = dict(what[1:])["learned"]
    return (*gradients, jax.ShapeDtypeStruct(bias.shape if learned else (*q.shape[:2], 0, 0), jnp.float32))


def sharing(beside, mask_mod, score_mod):
    """May devices share (batches, heads)? Not where what is computed goes by their numbers."""
    texts = mask_mod, score_mod
    return tuple("dropout" not in beside and not texts_name(texts, name) for name in ("b", "h"))


def _sharing(what):
    attributes = dict(what[1:])
    return sharing(attributes.get("with", "").split(), attributes.get("mask_mod", ""), attributes.get("score_mod", ""))


def _counts_batches(what):
    return not _sharing(what)[0]


def _here(what, *operands):
    attributes = dict(what[1:])
    if "lengths" in attributes.get("with", "").split():
        return _packed_here(what, *operands)
    if "with" in attributes:
        attributes |= {"most_q": 0, "most_k": 0}
    results = jax.ffi.ffi_call(what[0], _results(what, *operands))(*operands, **attributes)
    return tuple(_in_axes(result, _axes_of(operands[0])) for result in results)  # here, where vmap has its own rule


def _packed_here(what, *operands):
    """By rows of all sequences one after the other, [b · s, h, d]: those of an entry of the batch, then the rest of it."""
    names = _names(what, len(operands))
    tensors = operands[:names.count("")]
    cu_q, cu_k, used_q, used_k = operands[len(tensors):len(tensors) + 4]
    (b, _, sq, _), sk = tensors[0].shape, tensors[1].shape[2]
    lengths = _joined(cu_q, sq), _joined(cu_k, sk), *(jnp.pad(used, ((0, 0), (0, 1))).reshape(-1) for used in (used_q, used_k))
    others = (jnp.repeat(x, cu_q.shape[1], 0) if name == "alibi" else x
              for x, name in zip(operands[len(tensors) + 4:], names[len(tensors) + 4:]))
    wanted = _results(what, *operands)
    shapes = [jax.ShapeDtypeStruct(_rows_shape(x.shape), x.dtype) if x.size else x for x in wanted]
    results = jax.ffi.ffi_call(what[0], shapes)(*map(_rows, tensors), *lengths, *others, **dict(what[1:]), most_q=sq, most_k=sk)
    return tuple(_in_axes(_entries(result, b) if result.size else result, _axes_of(operands[0])) for result in results)


def _joined(cu_seqlens, rows):
    """[b · (n + 1) + 1] of the begins [b, n + 1] in each entry of the batch: behind its last sequence one of what is left."""
    b = cu_seqlens.shape[0]
    begins = cu_seqlens + jnp.arange(b, dtype=jnp.int32)[:, None] * rows
    return jnp.append(begins.reshape(-1), jnp.int32(b * rows))


def _rows(x):
    return jnp.moveaxis(x, -2, 1).reshape(_rows_shape(x.shape)) if x.ndim == 4 else x.swapaxes(0, 1).reshape(_rows_shape(x.shape))


def _rows_shape(shape):
    b, heads, rows, *columns = shape
    return (b * rows, heads, *columns) if columns else (heads, b * rows)


def _entries(x, b):
    if x.ndim == 3:
        return jnp.moveaxis(x.reshape(b, -1, *x.shape[1:]), 1, -2)
    return x.reshape(x.shape[0], b, -1).swapaxes(0, 1)


def _places(mesh_shape, q_spec, k_spec, k_shape, shared):
    """(the mesh's axes that share the batch, those that share the heads), where these may be shared and come out even."""
    def even(spec, at):
        axes = spec[at] if len(spec) > at and shared[at] else None
        devices = 1
        for axis in (axes if isinstance(axes, tuple) else (axes,)) if axes else ():
            devices *= mesh_shape[axis]
        return axes if k_shape[at] % devices == 0 else None

    batch, heads = even(q_spec, 0), even(k_spec, 1)
    def named(axes):
        return set(axes if isinstance(axes, tuple) else (axes,)) - {None}
    return batch, None if named(batch) & named(heads) else heads


def _partition(what, mesh, operands, results):
    # Without a spec JAX knows no names for the devices: then nothing is shared, and each computes all.
    q, k = (getattr(x.sharding, "spec", PartitionSpec()) for x in operands[:2])
    places = _places(mesh.shape, q, k, operands[1].shape, _sharing(what))

    def placed(x, name=""):
        first = {"lengths": (places[0], None), "sinks": (None, places[1]), "dropout": (None,)}.get(name, places)
        return NamedSharding(mesh, PartitionSpec(*first, *(None,) * (len(x.shape) - len(first))))

    return (mesh, partial(_on_one_device, what), tuple(map(placed, results)),
            tuple(map(placed, operands, _names(what, len(operands)))))


def _on_one_device(what, *operands):
    """What is left when arrays have been shared out: a mesh that is set would have each step say anew where arrays lie."""
    with jax.sharding.use_abstract_mesh(jax.sharding.AbstractMesh((), ())):
        return _here(what, *operands)


def _rule(what, mesh, operands, results):
    """What Shardy may carry from one array to another: batches, and heads of keys with their groups of queries."""
    hq, hk = operands[0].shape[1], operands[1].shape[1]
    q_heads = "(h g)" if hq != hk and hk > 1 else "h" if hq == hk else "g"
    k_heads = "h" if hk > 1 or hq == hk else "j"
    q, k, v = f"b {q_heads} s d", f"b {k_heads} t d", f"b {k_heads} t e"
    o, lse = f"b {q_heads} s e", f"b {q_heads} s"
    more, of_bias = [], f"b {q_heads} m n"
    for x, name in zip(operands, _names(what, len(operands))):
        if name == "bias":
            of_bias = f"b {q_heads} {'s' if x.shape[2] > 1 else 'x'} {'t' if x.shape[3] > 1 else 'y'}"
        if name:
            at = len(more)
            more.append({"lengths": f"b l{at // 2}", "alibi": f"b {q_heads}", "sinks": f"r {q_heads}", "bias": of_bias, "dropout": "w",
                         "descale": f"b {k_heads} m{at}"}[name])
    if what[0].endswith("forward"):
        text = f"{', '.join((q, k, v, *more))} -> {o}, {lse}"
    else:
        d_bias = [] if what[0] == "dfa_backward" else [of_bias if dict(what[1:])["learned"] else f"b {q_heads} c e0"]
        text = f"{', '.join((q, k, v, o, lse, o, *more))} -> {', '.join((q, k, v, *d_bias))}"
    return (text, {"g": hq // hk}) if "(" in text else text


@lru_cache(maxsize=1024)
def _partitioned(what):
    def call(*operands):
        return _here(what, *operands)

    partitioned = custom_partitioning(call)
    partitioned.def_partition(partition=partial(_partition, what), sharding_rule=partial(_rule, what))
    return partitioned

"""JAX arrays: foreign functions for XLA and a rule for their derivative. Works inside jit, grad and vmap."""

from functools import partial

import jax
import jax.numpy as jnp

from dfa import _core
from dfa._shapes import scale_of, sizes_of, window_of

if not hasattr(_core, "jax_targets"):
    raise ImportError("dfa was built without JAX; build it where jax is: "
                      "pip install --no-build-isolation .")
for (_name, _platform), _target in _core.jax_targets.items():
    jax.ffi.register_ffi_target(_name, _target, platform=_platform)

_TYPES = (jnp.float32, jnp.float16, jnp.bfloat16)


def attention(q, k, v, causal, window, scale, return_lse, deterministic, algorithm):
    if algorithm not in ("auto", "flash"):
        raise ValueError(f"algorithm '{algorithm}' with JAX; accepted: auto, flash")
    sizes_of(q.shape, k.shape, v.shape)
    if len({q.dtype, k.dtype, v.dtype}) > 1 or q.dtype not in _TYPES:
        raise ValueError(f"q, k, v have element types {q.dtype}, {k.dtype}, {v.dtype}; accepted: one of "
                         "float32, float16, bfloat16 for all")
    o, lse = _attention(q, k, v, *window_of(causal, window), scale_of(scale), bool(deterministic))
    return (o, jax.lax.stop_gradient(lse)) if return_lse else o


def _forward(q, k, v, left, right, scale):
    results = (jax.ShapeDtypeStruct((*q.shape[:-1], v.shape[-1]), q.dtype),
               jax.ShapeDtypeStruct(q.shape[:-1], jnp.float32))
    call = jax.ffi.ffi_call("dfa_forward", results, vmap_method="broadcast_all")
    return call(q, k, v, left=left, right=right, scale=scale)


# Every forward gives the same bits in every run: `deterministic` is for the backward.
@partial(jax.custom_vjp, nondiff_argnums=(3, 4, 5, 6))
def _attention(q, k, v, left, right, scale, deterministic):
    return _forward(q, k, v, left, right, scale)


def _keep(q, k, v, left, right, scale, deterministic):
    o, lse = _forward(q, k, v, left, right, scale)
    return (o, lse), (q, k, v, o, lse)


def _backward(left, right, scale, deterministic, kept, gradients):
    results = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in kept[:3])
    call = jax.ffi.ffi_call("dfa_backward", results, vmap_method="broadcast_all")
    return call(*kept, gradients[0], left=left, right=right, scale=scale, deterministic=deterministic)


_attention.defvjp(_keep, _backward)

"""Dropout of JAX arrays: seed and offset as an array, which kernels read when they run, so that jit may trace them."""

import jax
import jax.numpy as jnp
import numpy

from dfa._dropout import probability_of, refuse_seed, words_of
from dfa._shapes import shown


def beside_of(dropout_p, seed):
    """({"dropout": uint32 [4]}, {"dropout": the probability}) as _jax_variants.attention has them, empty where nothing is dropped.
    seed: a whole number, which draws what it draws at every door, or a key of jax.random."""
    probability = probability_of(dropout_p)
    if probability == 0:
        refuse_seed(seed)
        return {}, {}
    state = _drawn(seed)
    if state is None:
        state = jnp.asarray(numpy.array(words_of(seed, ", or a key of jax.random"), "int64").view("uint32"))
    return {"dropout": state}, {"dropout": probability}


def beside_of_key(dropout_p, dropout_key):
    """Likewise, of a key alone."""
    probability = probability_of(dropout_p)
    if probability == 0:
        if dropout_key is not None:
            raise ValueError(f"dropout_key {shown(dropout_key)} beside dropout_p of 0; accepted: None")
        return {}, {}
    state = _drawn(dropout_key)
    if state is None:
        raise ValueError(f"dropout_key {shown(dropout_key)}; accepted beside dropout_p: a key of jax.random")
    return {"dropout": state}, {"dropout": probability}


def _drawn(key):
    """uint32 [4] by a key of jax.random, of its new or of its old kind; None of what is none."""
    dtype = getattr(key, "dtype", None)
    if not isinstance(key, jax.Array) or not (jnp.issubdtype(dtype, jax.dtypes.prng_key) and key.shape == () or
                                              dtype == jnp.uint32 and key.ndim == 1):
        return None
    try:
        return jax.random.bits(key, (4,), jnp.uint32)
    except (TypeError, ValueError):  # of other sizes than keys here have
        return None

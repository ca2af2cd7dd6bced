"""Numbers of segments of JAX arrays as packed sequences: rows of one number next to each other are a sequence of their own.

Where a number comes again, or comes in another order with queries than with keys, rows are sorted by it: their order within a
number stays, and so does what a mask within it shows. Where numbers are traced, they are looked at when they run, and rows are
sorted if they have to be.
"""

from operator import index

import jax
import jax.numpy as jnp
import numpy

from dfa import _jax_variants
from dfa._jax import integers
from dfa._jax_calls import with_devices_outside_types
from dfa._shapes import shown


def attend(q, k, v, segment_ids, most, window, beside, **options):
    """(o, lse) of q, k, v [b, h, s, d]. segment_ids: integers [b, s] for both, or two of them, of queries and keys. most: of how
    many numbers an entry of the batch has at most, or None. window: (left, right), None for no limit. beside, options: as
    _jax_variants.attention has them."""
    q_ids, k_ids = _checked(segment_ids, q, k)
    sides = tuple(-1 if side is None else side for side in window)
    if q_ids is not k_ids and (sides != (-1, -1) or "alibi" in beside):
        raise ValueError("segment_ids of queries and keys that are not one array, with is_causal, local_window_size or alibi_slopes; "
                         "accepted: one array [b, s] for both")
    most = _most(most, q_ids)
    if 0 in (*q.shape[:3], *k.shape[1:3]):
        return _jax_variants.attention(q, k, v, beside, sides, **options)
    ids = (q_ids,) if q_ids is k_ids else (q_ids, k_ids)
    counts_rows = _counts_rows(sides) or "alibi" in beside
    if counts_rows and not isinstance(q_ids, jax.core.Tracer) and _come_again(q_ids):
        raise ValueError("segment_ids has a number that comes again behind another one, with local_window_size or alibi_slopes; accepted: "
                         "each number's rows next to each other")

    def call(q, k, v, beside, *ids):
        return _attend(q, k, v, ids[0], ids[-1], most, sides, counts_rows, beside, options)
    return with_devices_outside_types(call, q, k)(q, k, v, beside, *ids)


def _attend(q, k, v, q_ids, k_ids, most, sides, counts_rows, beside, options):
    order = _Order(q_ids, ascending=q_ids is not k_ids)
    which = _counted(order.ids)
    begins, rows = _begins(which, most)
    wrong = which >= most
    if q_ids is k_ids:
        k_order, k_begins, keys = order, begins, rows
        if counts_rows:
            wrong |= order.scattered[:, None]
    else:
        k_order = _Order(k_ids, ascending=True)
        k_begins, keys = _found(k_order.ids, order.ids, begins, rows)
    q, k, v = order.ordered(q), k_order.ordered(k), k_order.ordered(v)
    o, lse = _jax_variants.attention(q, k, v, beside | {"lengths": (begins, k_begins, rows, keys)}, sides, **options)
    o, lse = jnp.where(wrong[:, None, :, None], jnp.nan, o), jnp.where(wrong[:, None], jnp.nan, lse)
    return order.back(o), order.back(lse)


def _counts_rows(sides):
    """Does the mask ask how many rows are between two, which sorting changes?"""
    return sides[0] != -1 or sides[1] > 0


class _Order:
    """Rows in an order in which those of one number are next to each other: their own where they are already, else sorted.
    ascending: by rising numbers. scattered: [b], does a number come again?"""

    def __init__(self, ids, ascending):
        self._order = jnp.argsort(ids, axis=1, stable=True)
        by_number = jnp.take_along_axis(ids, self._order, axis=1)
        self.scattered = _changes(ids).sum(1) != _changes(by_number).sum(1)
        self._kept = (ids == by_number).all() if ascending else ~self.scattered.any()
        self.ids = jnp.where(self._kept, ids, by_number)

    def ordered(self, x):
        return self._taken(x, lambda: self._order)

    def back(self, x):
        return self._taken(x, lambda: jnp.argsort(self._order, axis=1))

    def _taken(self, x, order):
        def sort(x):
            return jnp.take_along_axis(x, order().reshape(x.shape[0], 1, -1, *(1,) * (x.ndim - 3)), axis=2)
        if isinstance(self._kept, jax.core.Tracer):
            return jax.lax.cond(self._kept, lambda x: x, sort, x)
        return x if self._kept else sort(x)


def _come_again(ids):
    """Does a number come again? By NumPy, since JAX would trace this inside a function that is traced, though the numbers are known."""
    return any(numpy.count_nonzero(entry[1:] != entry[:-1]) + 1 != len(numpy.unique(entry)) for entry in numpy.asarray(ids))


def _changes(ids):
    return ids[:, 1:] != ids[:, :-1]


def _counted(ids):
    """Of each row [b, s], the how many-th number it has, from 0 on."""
    return jnp.pad(jnp.cumsum(_changes(ids), axis=1, dtype=jnp.int32), ((0, 0), (1, 0)))


def _begins(which, most):
    """(begins [b, most + 1], rows [b, most]) of the numbers; those there are not begin at the end."""
    numbers = jnp.arange(most + 1, dtype=jnp.int32)
    begins = jax.vmap(lambda row: jnp.searchsorted(row, numbers))(which).astype(jnp.int32)
    return begins, jnp.diff(begins, axis=1)


def _found(k_ids, q_ids, begins, rows):
    """(begins, how many) of the keys that have the numbers of the queries that begin so; both rise."""
    numbers = jnp.take_along_axis(q_ids, jnp.minimum(begins[:, :-1], q_ids.shape[1] - 1), axis=1)
    first, end = (jax.vmap(lambda ids, numbers, side=side: jnp.searchsorted(ids, numbers, side=side))(k_ids, numbers)
                  for side in ("left", "right"))
    first = jnp.where(rows > 0, first, k_ids.shape[1]).astype(jnp.int32)
    keys = jnp.where(rows > 0, end - first, 0).astype(jnp.int32)
    return jnp.pad(first, ((0, 0), (0, 1)), constant_values=k_ids.shape[1]), keys


def _checked(given, q, k):
    """(of queries, of keys): one array where they are the same."""
    pair = given if isinstance(given, (tuple, list)) and len(given) == 2 else (given, given)
    q_ids = _array(pair[0], "", q)
    if pair[0] is pair[1]:
        if q.shape[2] != k.shape[2]:
            raise ValueError(f"segment_ids is one array, with {q.shape[2]} queries and {k.shape[2]} keys; accepted: SegmentIds(q, kv)")
        return q_ids, q_ids
    k_ids = _array(pair[1], " of keys", k)
    both = numpy.promote_types(q_ids.dtype, k_ids.dtype)
    if both.kind == "f" or jax.dtypes.canonicalize_dtype(both) != both:
        raise ValueError(f"segment_ids is {q_ids.dtype} of queries and {k_ids.dtype} of keys, which have no type here in common; "
                         "accepted: one type for both")
    known = not any(isinstance(x, jax.core.Tracer) for x in (q_ids, k_ids))
    return q_ids, q_ids if known and numpy.array_equal(q_ids, k_ids) else k_ids


def _array(ids, of, x):
    ids = integers(f"segment_ids{of}", ids)
    if ids.ndim == 1 and x.shape[0] == 1:
        ids = ids[None]
    if not jnp.issubdtype(ids.dtype, jnp.integer) or ids.shape != (x.shape[0], x.shape[2]):
        raise ValueError(f"segment_ids{of} is {ids.dtype} {list(ids.shape)}; accepted: integers [{x.shape[0]}, {x.shape[2]}]")
    return ids


def _most(most, ids):
    """How many numbers an entry of the batch has at most. Where they are known, the next power of two: not each count is
    compiled for."""
    rows = ids.shape[1]
    if most is not None:
        try:
            if isinstance(most, (bool, jax.core.Tracer)) or index(most) < 1:
                raise ValueError
        except (TypeError, ValueError):
            raise ValueError(f"max_segments_per_seq is {shown(most)}; accepted: a whole number, 1 or more") from None
    if isinstance(ids, jax.core.Tracer):
        return rows if most is None else min(index(most), rows)
    count = max((len(numpy.unique(entry)) for entry in numpy.asarray(ids)), default=1)
    if most is not None and count > most:
        raise ValueError(f"max_segments_per_seq is {most}, but segment_ids has {count} numbers in an entry of the batch")
    return min(index(most), rows) if most is not None else min(rows, 1 << max(0, count - 1).bit_length())

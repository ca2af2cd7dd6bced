"""What NumPy's and CuPy's arrays have in common: shapes and byte strides."""

from typing import Any, NamedTuple

from dfa._plan import plan_of
from dfa._shapes import (dense_strides, flag_of, lies_apart, nothing_to_read, padded_width, positions_of, rows_before_heads,
                         scale_at_width, scale_of, sizes_of, strides_of, window_of)

E4M3 = {"float8_e4m3fn": "e4m3"}
DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def dtype_of(*arrays, dtypes=None):
    dtypes = dtypes or DTYPES
    names = [array.dtype.name for array in arrays]
    if any(array.dtype.fields for array in arrays):
        raise ValueError(f"element types {', '.join(names)}; accepted: {', '.join(dtypes)}, not records")
    if len(set(names)) > 1:
        raise ValueError(f"q, k, v have element types {', '.join(names)}; one for all is expected")
    if names[0] not in dtypes:
        raise ValueError(f"element type {names[0]}; accepted: {', '.join(dtypes)}")
    return dtypes[names[0]]


def refuse_masked(name, array):
    if type(array).__module__.startswith("numpy.ma"):
        raise TypeError(f"{name} is a masked array, whose mask would be lost; accepted: plain arrays (filled(…))")


def plain(array, module):
    """The array with elements as the processor has them, at whole strides and none twice; else a copy of such."""
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    width = array.itemsize
    odd = any(stride % width for stride in array.strides) or not getattr(array.flags, "aligned", True)
    apart = 0 in array.shape or lies_apart(array.shape, element_strides(array))
    return module.array(array, order="C") if odd or not apart else array


def fitting(q, k, v, module):
    """q, k, v with one batch, and head dims that are multiples of 8."""
    if not q.ndim == k.ndim == v.ndim == 4:
        sizes_of(q.shape, k.shape, v.shape)  # names the one that has other dimensions
    batches = {array.shape[0] for array in (q, k, v)}
    if len(batches) == 2 and 1 in batches:
        b = max(batches - {1})
        q, k, v = (module.broadcast_to(x, (b, *x.shape[1:])) if x.shape[0] == 1 else x for x in (q, k, v))
    sizes_of(q.shape, k.shape, v.shape)

    def padded(x):
        missing = padded_width(x.shape[3]) - x.shape[3]
        return module.pad(x, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x

    return tuple(map(padded, (q, k, v)))


def element_strides(array):
    return tuple(stride // array.itemsize for stride in array.strides)


class Logits(NamedTuple):
    """What becomes of logits: as plans, and as kernels are told of it, and the sinks themselves; and what a mask has beside its
    window."""
    planned: tuple = (0.0, False, False, "")
    pointers: tuple = (0, 0, 0, 0, (0, 0, 0))
    sinks: Any = None
    positions: tuple = (None, None)  # of a chunk, of the prefix
    dropout: tuple = (0.0, 0)  # its probability, and where seed and offset are
    descales: tuple | None = None  # pointers and strides of those of q, k and v in float8_e4m3fn
    texts: tuple = ("", "")  # mask_mod and score_mod
    descale_rows: int = 0  # that share one of the descales; 0: all


def run(module, pointer, stream, backend, q, k, v, causal, window, scale, return_lse, deterministic,
        algorithm, logits=Logits()):
    """The call for arrays of `module` (numpy or cupy)."""
    for name, array in zip("qkv", (q, k, v)):
        refuse_masked(name, array)
    dtype = dtype_of(q, k, v, dtypes=DTYPES if logits.descales is None else E4M3)
    shapes = q.shape, k.shape, v.shape
    q, k, v = fitting(q, k, v, module)
    if (q.shape, k.shape, v.shape) != shapes and shapes[0][-1] != q.shape[-1]:
        scale = scale_at_width(scale_of(scale), shapes[0][-1])
    q, k, v = (plain(array, module) for array in (q, k, v))
    sizes = sizes_of(q.shape, k.shape, v.shape)
    b, hq, _, sq, _, _, dv = sizes
    rows_first = rows_before_heads(q.shape, q.strides)
    make = module.zeros if nothing_to_read(sizes) else module.empty
    o = make((b, sq, hq, dv) if rows_first else (b, hq, sq, dv), dtype=q.dtype if logits.descales is None else "bfloat16")
    if rows_first:
        o = o.transpose(0, 2, 1, 3)
    lse = module.empty((b, hq, sq), dtype="float32") if return_lse else None
    options = window_of(causal, window), scale_of(scale), flag_of("deterministic", deterministic)
    positions = positions_of(options[0], *logits.positions)
    if nothing_to_read(sizes):
        if return_lse:
            lse[:] = -module.inf if logits.sinks is None else logits.sinks[:, None]
    else:
        strides = tuple(strides_of(name, array.shape, element_strides(array))
                        for name, array in (("q", q), ("k", k), ("v", v)))
        plan = plan_of("fwd", dtype, sizes, *options,
                       (*strides, dense_strides(o.shape, rows_first)), backend, algorithm, 0, (0, 0), logits.planned,
                       0, positions, logits.dropout[0], text=logits.texts, descale_rows=logits.descale_rows)
        workspace = module.empty(plan.workspace_bytes + 64, dtype="uint8")
        plan._forward(pointer(q), pointer(k), pointer(v), pointer(o), pointer(lse) if return_lse else 0,
                      (pointer(workspace) + 63) // 64 * 64, stream, logits=logits.pointers,
                      dropout=logits.dropout[1], descales=logits.descales or ((0, 0, 0, 0),) * 3)
    o = o[..., :shapes[2][-1]]
    return (o, lse) if return_lse else o

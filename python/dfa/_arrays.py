"""What NumPy's and CuPy's arrays have in common: shapes and byte strides."""

from dfa._plan import plan_of
from dfa._shapes import dense_strides, rows_before_heads, scale_of, sizes_of, strides_of, window_of

DTYPES = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def dtype_of(*arrays):
    names = [array.dtype.name for array in arrays]
    if len(set(names)) > 1:
        raise ValueError(f"q, k, v have element types {', '.join(names)}; one for all is expected")
    if names[0] not in DTYPES:
        raise ValueError(f"element type {names[0]}; accepted: {', '.join(DTYPES)}")
    return DTYPES[names[0]]


def element_strides(array):
    return tuple(stride // array.itemsize for stride in array.strides)


def run(module, pointer, stream, backend, q, k, v, causal, window, scale, return_lse, deterministic,
        algorithm):
    """The call for arrays of `module` (numpy or cupy)."""
    sizes = sizes_of(q.shape, k.shape, v.shape)
    b, hq, _, sq, _, _, dv = sizes
    rows_first = rows_before_heads(q.shape, q.strides)
    o = module.empty((b, sq, hq, dv) if rows_first else (b, hq, sq, dv), dtype=q.dtype)
    if rows_first:
        o = o.transpose(0, 2, 1, 3)
    lse = module.empty((b, hq, sq), dtype="float32") if return_lse else None
    strides = tuple(strides_of(name, array.shape, element_strides(array))
                    for name, array in (("q", q), ("k", k), ("v", v)))
    plan = plan_of("fwd", dtype_of(q, k, v), sizes, window_of(causal, window), scale_of(scale),
                   deterministic, (*strides, dense_strides(o.shape, rows_first)), backend, algorithm)
    workspace = module.empty(plan.workspace_bytes + 64, dtype="uint8")
    plan._forward(pointer(q), pointer(k), pointer(v), pointer(o), pointer(lse) if return_lse else 0,
                  (pointer(workspace) + 63) // 64 * 64, stream)
    return (o, lse) if return_lse else o

"""dfa.attention: one function for the arrays of several libraries."""

import sys

from dfa._policy import choice_of
from dfa._shapes import flag_of, shown

_AUTO = "auto"
_ALGORITHMS = (_AUTO, "standard", "flash")


def attention(q, k, v, *, causal=False, window=None, scale=None, softcap=None, alibi_slopes=None, sinks=None, bias=None,
              chunk=None, prefix=None, mask=None, block_mask=None, mask_mod=None, score_mod=None, dropout_p=0.0, seed=None,
              q_descale=None, k_descale=None, v_descale=None, descale_rows=None, return_lse=False, deterministic=False, algorithm="auto", policy=None):
    """o = softmax(logits + mask) v with logits = scale · q kᵀ, exactly, in O(N·d) memory.

    q: [b, hq, sq, d]; k: [b, hk, sk, d]; v: [b, hk, sk, dv]. NumPy, PyTorch, CuPy or JAX arrays, all of
    one library, device and element type (float32, float16, bfloat16). Head dims are up to 512, d up
    to 576 where no gradient is asked for. A batch of 1 is
    there for every batch of the others. Read as they lie where the last dimension is contiguous and head dims are
    multiples of 8, else by a copy. hq is a multiple of hk: query head h reads key head h // (hq // hk).
    causal: query i sees keys up to i + sk - sq. window: (left, right) keys to each side of that
    position, -1 for no limit. scale: 1 / sqrt(d) unless given; a number, or of PyTorch and JAX an array of one or of [hq], one of each
    query head, with its gradient. A single number is read before the kernels run, for which a GPU is waited for. [hq], and a scale of
    which a graph is for all values, multiplies q, which is rounded to its element type again: of float16 it may overflow.
    chunk: a query sees only keys of its own chunk of so many positions, c · chunk to (c + 1) · chunk - 1, beside what causal and
    window allow. prefix: with causal, every query sees so many first keys as well. One of the two, whole numbers from 1 on.
    mask: bool, [b, hq, sq, sk] with 1 where it is one value for all; of what the others show, a query sees the keys at which it is
    True. It becomes a bias in the element type of q, or of bias, and hides no tile: what causal, window, chunk and prefix can say
    costs less there.
    block_mask: a BlockMask of torch.nn.attention.flex_attention, or what dfa.torch.block_lists makes of one, of these sq and sk,
    beside causal, window, chunk and prefix: blocks of queries and keys that are in no list are neither read nor computed, those
    of the full lists are not masked, and of the others mask_mod is evaluated, at each call. With PyTorch.
    mask_mod, score_mod: a mask and what becomes of a logit, each a text of one C++ expression: a bool of the ints b, h, q_idx,
    kv_idx, sq and sk (batch, query head, query, key, how many there are), such as "kv_idx <= q_idx", beside the other masks; a float of
    score, which is scale · q kᵀ, and these, such as "score - 0.1f * abs(q_idx - kv_idx)", before softcap. Its derivative comes from
    the text. A score below -1e30 hides the key, as -INFINITY does. NumPy, PyTorch and JAX (docs/guide/python.md has the language). On
    a GPU tiles that mask_mod hides are computed; block_mask=dfa.torch.block_mask(mask_mod, …) in its place passes over them.
    softcap: c, with which a logit x becomes c · tanh(x / c). alibi_slopes: [hq] or [b, hq], of which each logit loses
    slope · |i + sk - sq - j|. bias: [b, hq, sq, sk] in float32, float16 or bfloat16, with 1 where it is one value for all, is
    added to the logits then; below -1e30 it hides the key, as -inf does. sinks: [hq], one more logit of each row of a head,
    in the denominator and in lse, without a value. On a processor slopes and sinks that are NaN are refused; on a GPU, where nobody waits
    for values, o and lse of their heads are NaN. These four, chunk, prefix and mask: NumPy, PyTorch and JAX, with gradients of q, k, v,
    sinks and bias.
    dropout_p: from 0 on and below 1, in steps of 2^-16; each probability is 0 with it, and else divided by what is left of 1. seed: a
    whole number from 0 to 2^64 - 1; of PyTorch also a torch.Generator, int64 [2] (seed and offset) on the device, or None: PyTorch's
    generator of the device; of JAX also a key of jax.random. The same seed drops the same, on every engine. lse is as without. NumPy,
    PyTorch and JAX.
    q_descale, k_descale, v_descale: of q, k, v in float8_e4m3fn (PyTorch's, of ml_dtypes, JAX's; dfa.quantize makes them), what their
    numbers are multiplied by: float32 [b, hk] with 1 where it is one for all, or a number; None for 1. Query heads have that of
    the key head that they read. descale_rows: a multiple of 64; row r then has the factor of block r // descale_rows, of
    [b, hk, blocks]. o is bfloat16, and a backward raises NotImplementedError. Beside causal, window and scale: softcap, alibi_slopes,
    sinks, chunk and prefix with PyTorch and NumPy. On processors, which widen to float32, and on Hopper with dense
    tensors, causal and windows; other GPUs refuse it.
    deterministic: equal bits in every run of the backward. algorithm: auto, flash, or standard,
    the baseline that holds the whole score matrix.
    policy: dfa.Policy or its text; chooses the tile of each pass from what `dfa tune` measured (not with JAX).

    Returns o [b, hq, sq, dv] on the same device and, with return_lse, (o, lse): the natural log of
    the sum of exponentials, float32 [b, hq, sq]. A query that sees no key has o = 0, lse = -inf,
    or the sink.
    PyTorch tensors take part in autograd, JAX arrays in grad, jit and vmap; lse has a gradient, too. GPU
    work is put on the library's current stream.

    Raises ValueError on shapes, strides or values it cannot take, TypeError on arrays it does not
    know, RuntimeError where no backend here can run the problem, MemoryError when memory lacks.
    """
    if algorithm is not _AUTO or policy is not None:
        algorithm = _choice(algorithm, policy)
    if return_lse is not False and return_lse is not True:
        return_lse = flag_of("return_lse", return_lse)
    kinds = type(q), type(k), type(v)
    adapted = _adapted.get(kinds) or adapted_to(kinds)
    if softcap is not None or alibi_slopes is not None or sinks is not None or bias is not None or chunk is not None \
            or prefix is not None or mask is not None or block_mask is not None or seed is not None \
            or mask_mod is not None or score_mod is not None \
            or q_descale is not None or k_descale is not None or v_descale is not None or descale_rows is not None \
            or not (type(dropout_p) in (int, float) and dropout_p == 0):
        options = {"causal": causal, "window": window, "scale": scale, "deterministic": deterministic, "softcap": softcap,
                   "alibi_slopes": alibi_slopes, "sinks": sinks, "bias": bias, "chunk": chunk, "prefix": prefix,
                   "mask": mask, "dropout_p": dropout_p, "seed": seed, "mask_mod": mask_mod, "score_mod": score_mod}
        if is_e4m3(q) or not q_descale is k_descale is v_descale is descale_rows is None:
            return _of_e4m3(q, k, v, return_lse, algorithm, (q_descale, k_descale, v_descale),
                            options | {"block_mask": block_mask, "descale_rows": descale_rows})
        return _of_logits(q, k, v, return_lse, algorithm, options, block_mask)
    return adapted(q, k, v, causal, window, scale, return_lse, deterministic, algorithm)


def is_e4m3(array):
    """Is it of PyTorch's, ml_dtypes' or JAX's float8_e4m3fn?"""
    return str(getattr(array, "dtype", "")).rpartition(".")[2] == "float8_e4m3fn"


def _of_e4m3(q, k, v, return_lse, algorithm, descales, options):
    library = type(q).__module__.partition(".")[0]
    if algorithm not in (_AUTO, "flash"):
        raise ValueError("float8_e4m3fn takes algorithm auto or flash and no policy")
    if library == "cupy":
        raise ValueError("q_descale, k_descale and v_descale are not supported on CuPy arrays; accepted: NumPy, PyTorch and JAX")
    if library == "numpy":
        from dfa._numpy import attention_of_e4m3 as adapted
    elif library in ("jax", "jaxlib"):
        from dfa._jax_e4m3 import attention as adapted
    else:
        from dfa._torch_e4m3 import attention as adapted
    return adapted(q, k, v, return_lse, descales, **options)


_OF_LOGITS = "softcap, alibi_slopes, sinks, bias, mask_mod, score_mod, dropout_p, mask, block_mask, chunk and prefix"


def _of_logits(q, k, v, return_lse, algorithm, options, block_mask):
    if algorithm not in (_AUTO, "flash"):
        raise ValueError(f"{_OF_LOGITS} take algorithm auto and no policy")
    library = type(q).__module__.partition(".")[0]
    if block_mask is not None:
        if library in ("numpy", "cupy", "jax", "jaxlib"):
            raise ValueError(f"block_mask is not supported on arrays of {library}; accepted: PyTorch's tensors")
        from dfa._torch_blocks import attention as adapted
        return adapted(q, k, v, return_lse, block_mask, **options)
    if library in ("numpy", "cupy"):
        from dfa._numpy import attention_of_logits as adapted
        if library == "cupy":
            raise ValueError(f"{_OF_LOGITS} are not supported on CuPy arrays; accepted: NumPy, PyTorch and JAX")
    elif library in ("jax", "jaxlib"):
        from dfa._jax_logits import attention as adapted
    else:
        from dfa._torch_logits import attention as adapted
    return adapted(q, k, v, return_lse, **options)


def _choice(algorithm, policy):
    if not isinstance(algorithm, str) or algorithm not in _ALGORITHMS:
        raise ValueError(f"algorithm {shown(algorithm)}; accepted: {', '.join(_ALGORITHMS)}")
    if policy is None:
        return algorithm
    return choice_of(algorithm, policy)


_adapted = {}  # by the three types; a plain dict, which torch.compile can look through


def adapted_to(types):
    """The attention of the library that all these types are of."""
    names = {kind.__module__.partition(".")[0] for kind in types}
    torch = sys.modules.get("torch")
    if names == {"numpy"}:
        from dfa._numpy import attention as adapted
    elif torch is not None and all(issubclass(kind, torch.Tensor) for kind in types):
        from dfa._torch import attention_on
        adapted = attention_on(types)
    elif names == {"cupy"}:
        from dfa._cupy import attention as adapted
    elif names <= {"jax", "jaxlib"}:  # arrays, and what jit and grad put in their place
        from dfa._jax import attention as adapted
    else:
        raise TypeError(f"q, k, v are {', '.join(kind.__qualname__ for kind in types)}; accepted: "
                        "NumPy, PyTorch, CuPy or JAX arrays, all of one library")
    # Kept by a graph's first call, it would be what the graph was made without: the second call would make another.
    if torch is None or not torch.compiler.is_compiling():
        _adapted[types] = adapted
    return adapted

"""NumPy arrays, on the CPU. bfloat16 is that of the package ml_dtypes."""

import numpy

from dfa import _arrays
from dfa._descales import check_descale_shape, descale_number, descale_rows_of, descale_sizes, refuse_others
from dfa._dropout import probability_of, refuse_seed, words_of
from dfa._logits import bias_text, check_bias_shape, check_shapes, slopes_of_batch, softcap_of, texts_of
from dfa._shapes import shown


def _pointer(array):
    return array.__array_interface__["data"][0]


def attention(q, k, v, causal, window, scale, return_lse, deterministic, algorithm):
    if q.dtype.name == k.dtype.name == v.dtype.name == "float8_e4m3fn":
        from dfa._attention import _of_e4m3
        return _of_e4m3(q, k, v, return_lse, algorithm, (None,) * 3,
                        {"causal": causal, "window": window, "scale": scale, "deterministic": deterministic})
    options = causal, window, scale, return_lse, deterministic, algorithm
    return _arrays.run(numpy, _pointer, 0, "cpu", q, k, v, *options)


def attention_of_logits(q, k, v, return_lse, *, causal, window, scale, deterministic, softcap, alibi_slopes, sinks,
                        bias, chunk, prefix, mask, dropout_p, seed, mask_mod, score_mod, descales=None, descale_rows=0):
    b = max(x.shape[0] if x.ndim == 4 else 0 for x in (q, k, v))
    hq = q.shape[1] if q.ndim == 4 else 0
    alibi_slopes, sinks = (_floats(name, x) for name, x in (("alibi_slopes", alibi_slopes), ("sinks", sinks)))
    check_shapes(alibi_slopes, sinks, b, hq)
    sizes = b, hq, *(x.shape[2] if x.ndim == 4 else 0 for x in (q, k))
    if mask is not None:
        bias = _hidden(bias, mask, q.dtype, sizes)
    bias, biased, steps = _bias_of(bias, *sizes)
    dropout = 0.0, 0
    if probability := probability_of(dropout_p):
        state = numpy.array(words_of(seed), dtype="int64")
        dropout = probability, _pointer(state)
    else:
        refuse_seed(seed)
    pointers = [0 if x is None else _pointer(x) for x in (alibi_slopes, sinks, bias)]
    logits = _arrays.Logits((softcap_of(softcap), alibi_slopes is not None, sinks is not None, biased),
                            (pointers[0], slopes_of_batch(alibi_slopes, hq), *pointers[1:], steps), sinks, (chunk, prefix), dropout, descales,
                            texts_of(mask_mod, score_mod), descale_rows)
    return _arrays.run(numpy, _pointer, 0, "cpu", q, k, v, causal, window, scale, return_lse, deterministic, "auto", logits)


def attention_of_e4m3(q, k, v, return_lse, descales, *, dropout_p=0.0, bias=None, mask=None, block_mask=None, seed=None, mask_mod=None,
                      score_mod=None, descale_rows=None, **options):
    """As dfa.attention. descales: of q, k and v, each None, a number or an array [b, hk] with 1 where it is one for all, and with
    descale_rows [b, hk, blocks of so many rows]."""
    refuse_others("arrays", dropout_p, {"bias": bias, "mask": mask, "block_mask": block_mask, "seed": seed, "mask_mod": mask_mod,
                                       "score_mod": score_mod})
    b = max(x.shape[0] if x.ndim == 4 else 0 for x in (q, k, v))
    hk = k.shape[1] if k.ndim == 4 else 0
    descale_rows = descale_rows_of(descale_rows)
    factors = [descale_of(f"{name}_descale", given, descale_sizes(b, hk, x.shape[2] if x.ndim == 4 else 0, descale_rows))
               for name, given, x in zip("qkv", descales, (q, k, v))]
    pointers = tuple((0, 0, 0, 0) if x is None else (_pointer(x), *_arrays.element_strides(x), *(0,) * (3 - x.ndim)) for x in factors)
    return attention_of_logits(q, k, v, return_lse, **_NOTHING | options, descales=pointers, descale_rows=descale_rows)


_NOTHING = dict.fromkeys(("softcap", "alibi_slopes", "sinks", "bias", "chunk", "prefix", "mask", "seed", "mask_mod", "score_mod")) | {"dropout_p": 0.0}


def descale_of(name, given, sizes):
    """float32 of these sizes, b, hk and, of blocks of rows, their number, of strides 0 where it is one for all; None for none."""
    given = _floats(name, descale_number(name, given))
    if given is None:
        return None
    check_descale_shape(name, given.shape, *sizes)
    return numpy.broadcast_to(given[..., None] if 0 < given.ndim < len(sizes) else given, sizes)


def _floats(name, values):
    if values is None:
        return None
    _arrays.refuse_masked(name, values)
    try:
        array = numpy.asarray(values)
    except (TypeError, ValueError, RuntimeError):  # lists of different lengths, tensors that NumPy cannot read
        raise TypeError(f"{name} is {shown(values)}; accepted: an array of real numbers") from None
    if array.dtype.kind not in "fiu" and array.dtype.name != "bfloat16":
        raise TypeError(f"{name} is of {array.dtype}; accepted: real numbers")
    return numpy.asarray(array, dtype="float32", order="C")


def _hidden(bias, mask, dtype, sizes):
    """The bias, of this type where there is none, with -inf where the mask is False."""
    _arrays.refuse_masked("mask", mask)
    if not isinstance(mask, numpy.ndarray) or mask.dtype != bool:
        raise TypeError(f"mask is {shown(mask)}; accepted: a NumPy array of bool, True where a key is seen")
    check_bias_shape(mask.shape, *sizes, more=False, name="mask")
    bias, _, _ = _bias_of(numpy.zeros((1, 1, 1, 1), dtype) if bias is None else bias, *sizes)
    return numpy.where(mask, bias, bias.dtype.type(-numpy.inf))


def _bias_of(bias, *sizes):
    """The bias with contiguous keys, what the planner is told of it, and its strides of batch, head and row."""
    if bias is None:
        return None, "", (0, 0, 0)
    _arrays.refuse_masked("bias", bias)
    bias = numpy.asarray(bias)
    if bias.dtype.fields or bias.dtype.name not in _arrays.DTYPES:
        raise TypeError(f"bias is of {bias.dtype}; accepted: {', '.join(_arrays.DTYPES)}")
    check_bias_shape(bias.shape, *sizes, more=False)
    bias = numpy.ascontiguousarray(bias, dtype=bias.dtype.newbyteorder("="))
    return bias, bias_text(bias.shape, _arrays.DTYPES[bias.dtype.name]), _arrays.element_strides(bias)[:3]

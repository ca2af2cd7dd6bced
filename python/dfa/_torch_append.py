"""New rows of a cache on a GPU, by one kernel of Triton in the place of some fifty operators: q and k are rotated, k and v written, lengths
counted up. A call that is made again launches it before its plan. What the kernel does is defined by the operators of _torch_kvcache, which
serve all else: torch.compile, who looks on, tensors that do not lie as the kernel reads them, a GPU without Triton."""

from functools import lru_cache

import torch
from torch.autograd.graph import increment_version

from dfa import _torch_again
from dfa._torch_again import OF_CACHES
from dfa._torch_quantize import E4M3, seen_by_kernels

# Tests and benchmarks turn it off: then operators serve all calls.
BY_KERNEL = True
_ALIGNED = 16  # bytes, of q, k, v and the caches
_TURNED, _K_CACHE, _V_CACHE, _USED = 3, 4, 5, 8  # among the kernel's tensors


def appended(cache, rows, new, before, rotary, moves, factors, scale):
    """Appended, or None where operators are to do it. rows, new: _Rows of q and of k, with those of v; factors: of descales_of;
    moves: is each row of q at a position of its own?"""
    tensors = _tensors_of(cache, rows, new, before, rotary, factors)
    # A scale that is a tensor multiplies q, and autocast casts it, before rows are written.
    if not BY_KERNEL or not seen_by_kernels(*tensors) or isinstance(scale, torch.Tensor) or torch._C._is_any_autocast_enabled():
        return None
    if torch.cuda.get_device_capability(cache.k.device) < ((8, 9) if cache.k.dtype == E4M3 else (8, 0)) or _kernels() is None:
        return None
    q, k, v, to_k, to_v = data = tensors[:3] + tensors[_K_CACHE:_V_CACHE + 1]
    if any(x.numel() == 0 or x.stride(-1) != 1 or x.data_ptr() % _ALIGNED for x in data) or any(_meet(x, to) for x in (q, k, v) for to in (to_k, to_v)):
        return None
    in_rows = [x for x in (rotary and rotary.cos, rotary and rotary.sin, cache.table) if x is not None]
    if any(x.stride(1) != 1 and x.shape[1] > 1 for x in in_rows):
        return None
    made = Appended(cache, rows, new, before, rotary, moves, factors)
    return made if made.launch is not None and (made.is_ready() or not _torch_again.is_recorded()) else None


def _tensors_of(cache, rows, new, before, rotary, factors):
    """In the kernel's order, without those that it makes."""
    table = cache.table if cache.paged else cache.batch_idx
    turns = (None,) * 3 if rotary is None else (rotary.cos, rotary.sin, rotary.base)
    return (rows.given, new.given, new.values.given, None, cache.k, cache.v, table, before, None, *turns, *factors,
            None if rotary is None else rows.begins, new.begins)


class Appended:
    """queries: q, rotated or as it was; used: rows of each sequence with the new ones. write() fills both, and the cache."""

    def __init__(self, cache, rows, new, before, rotary, moves, factors):
        turns = rotary is not None
        tensors = list(_tensors_of(cache, rows, new, before, rotary, factors))
        self.used = tensors[_USED] = torch.empty_like(before)
        if turns:
            tensors[_TURNED] = rows.flat.new_empty(rows.flat.shape)
        self.queries, self.prepared = (tensors[_TURNED], ["q", "seqused_k"]) if turns else (rows.flat, ["seqused_k"])
        (pages, page, hk, d), dv = cache.k.shape, cache.v.shape[3]
        (q_batch, *q_steps), (k_batch, *k_steps), (v_batch, *v_steps) = (x.steps for x in (rows, new, new.values))
        table_row = cache.table.stride(0) if cache.paged else 1
        positions, half, *of_turns = (rotary.cos.shape[0], rotary.cos.shape[1], rotary.cos.stride(0), rotary.sin.stride(0)) if turns else (0,) * 4
        of_factors = [step for x in factors for step in ((0, 0) if x is None else x.stride())]
        numbers = (rows.b, rows.of_each, new.of_each, new.flat.shape[0], pages, cache.capacity // page, table_row, positions,
                   q_batch, k_batch, v_batch, page, *of_turns, *q_steps, *k_steps, *v_steps, *cache.k.stride()[:3], *cache.v.stride()[:3], *of_factors)
        self._tensors, self._compiled = tensors, None
        self.launch = _kernels().launch_of(rows.flat.shape[0] if turns else 0, numbers, rows.flat.shape[1], hk, d, dv, half,
                                           turns and rotary.interleaved, moves, cache.k.dtype == E4M3)

    def is_ready(self):
        """May a CUDA graph record it?"""
        return _kernels().is_ready(self._tensors, self.launch[1])

    def write(self):
        grid, numbers = self.launch
        with torch.cuda.device_of(self._tensors[_K_CACHE]):
            self._compiled = _kernels().append(grid, self._tensors, numbers)
        increment_version(self._tensors[_K_CACHE:_V_CACHE + 1])

    def again(self, key):
        """prepare() of a launch() for calls of this key, after write(). It keeps none of this call's tensors."""
        table = "block_table" if key[OF_CACHES["block_table"]] is not None else "cache_batch_idx"
        base = "rotary_seqlens" if key[OF_CACHES["rotary_seqlens"]] is not None else "seqused_k"
        names = ("q", "new_k", "new_v", None, "k", "v", table, "seqused_k", None, "rotary_cos", "rotary_sin", base, "k_descale", "v_descale",
                 "cu_seqlens_q", "cu_seqlens_k_new")
        present = [(at, OF_CACHES[name] - 1) for at, (name, x) in enumerate(zip(names, self._tensors)) if name and x is not None]
        makers = [(at, *_torch_again._maker_of(self._tensors[at])) for at in (_TURNED, _USED) if self._tensors[at] is not None]
        data = [self._tensors[at] for at in (0, 1, 2, _K_CACHE, _V_CACHE)]
        of_q, of_k, of_v, of_k_cache, of_v_cache = map(span_of, data)
        apart, device = data[4].data_ptr() - data[3].data_ptr(), data[3].device.index
        (grid, numbers), compiled = self.launch, _kernels().again(self._compiled, self.launch[0])
        at_k, at_v = (OF_CACHES[name] - 1 for name in ("k", "v"))
        nothing = [None] * len(names)

        def prepare(*arguments):
            caches = arguments[at_k], arguments[at_v]
            if (caches[0].is_inference() or caches[1].is_inference()) and not torch.is_inference_mode_enabled():
                return None
            addresses = nothing.copy()
            for at, place in present:
                addresses[at] = arguments[place].data_ptr()
            q, k, v, _, to_k, to_v = addresses[:6]
            if (q | k | v | to_k | to_v) % _ALIGNED or to_v - to_k != apart and -of_v_cache < to_v - to_k < of_k_cache:
                return None  # caches that lie among each other are looked at in full
            for x, span in ((q, of_q), (k, of_k), (v, of_v)):
                if -span < x - to_k < of_k_cache or -span < x - to_v < of_v_cache:
                    return None
            made = []
            for at, make, shape, named in makers:
                made.append(x := make(*shape, **named))
                addresses[at] = x.data_ptr()
            if compiled is not None:
                compiled(addresses, numbers, _torch_again._current_stream(device))
            else:
                tensors = nothing.copy()
                for at, place in present:
                    tensors[at] = arguments[place]
                for (at, *_), x in zip(makers, made):
                    tensors[at] = x
                _kernels().append(grid, tensors, numbers)
            increment_version(caches)
            return tuple(made)
        return prepare


def span_of(x):
    """Bytes from the first element to behind the last."""
    return x.element_size() * (1 + sum((n - 1) * stride for n, stride in zip(x.shape, x.stride())))


def _meet(x, y):
    """May an element of one be one of the other?"""
    return -span_of(x) < x.data_ptr() - y.data_ptr() < span_of(y)


@lru_cache(maxsize=1)
def _kernels():
    """The module of kernels, or None where Triton is not installed."""
    try:
        from dfa import _torch_append_kernel
    except ImportError:
        return None
    return _torch_append_kernel

"""flash_attn_with_kvcache of FlashAttention-2 and -3: new keys and values go to their place in a cache, rotated where that is
asked for, and queries attend to all that is there. The cache is dense, [b, s, hk, d], or in pages."""

import torch

from dfa import _torch_again, _torch_append, _torch_paged
from dfa._torch_again import OF_CACHES, places_of
from dfa._torch_append import span_of
from dfa._torch_undifferentiated import OF_CACHE, detached, learned_of, undifferentiated
from dfa._shapes import flag_of, shown, window_of
from dfa._torch_quantize import rounded
from dfa._torch_checks import check_integers, whole
from dfa._torch_varlen import splits_of


_OF_NEW_ROWS = ("new_k", "new_v", "rotary_cos", "rotary_sin", "cu_seqlens_k_new", "rotary_seqlens")


class Cache:
    """k [b_cache, s, hk, d] and v, or [pages, page, hk, d] with a table int32 [b, columns]: either way row j of sequence i is
    row j % page of page table[i, j // page]. batch_idx, leftpad: int32 [b]."""

    def __init__(self, k, v, b, table, table_name, batch_idx, leftpad):
        for name, tensor in (("k_cache", k), ("v_cache", v)):
            if not isinstance(tensor, torch.Tensor):
                raise TypeError(f"{name} is {type(tensor).__qualname__}; accepted: a tensor")
            if tensor.dim() != 4 or 0 in tensor.shape[:3]:
                raise ValueError(f"{name} has shape {list(tensor.shape)}; accepted: "
                                 f"{'[pages, page, hk, d]' if table is not None else '[b, s, hk, d]'}, of one row at least")
            if tensor.shape[3] > 1 and tensor.stride(3) != 1:
                raise ValueError(f"{name} is not contiguous in its last dimension (stride {tensor.stride(3)})")
        if k.shape[:3] != v.shape[:3]:
            raise ValueError(f"k_cache has shape {list(k.shape)}, v_cache {list(v.shape)}; expected are as many rows and heads")
        if table is not None and batch_idx is not None:
            raise ValueError(f"cache_batch_idx beside {table_name} is not supported; accepted: one of them")
        self.k, self.v, self.b, self.leftpad, self.batch_idx, self.paged = k, v, b, leftpad, batch_idx, table is not None
        columns = table.shape[1] if self.paged and isinstance(table, torch.Tensor) and table.dim() == 2 else 1
        check_integers(k.device, cache_batch_idx=(batch_idx, (b,)), cache_leftpad=(leftpad, (b,)))
        if self.paged:
            check_integers(k.device, **{table_name: (table, (b, columns or -1))})
        elif batch_idx is None and b > k.shape[0]:
            raise ValueError(f"q has a batch of {b}, k_cache of {k.shape[0]}; accepted: as many at most, or cache_batch_idx")
        self.table, self.table_name, self.capacity = table, table_name, columns * k.shape[1]

    def pages(self):
        """The table, also of a dense cache: each sequence has one page."""
        if self.paged:
            return self.table
        rows = torch.arange(self.b, dtype=torch.int32, device=self.k.device) if self.batch_idx is None else self.batch_idx
        return rows[:, None]

    def _room(self):
        page = self.k.shape[1]
        return f"{self.table_name} has {self.table.shape[1]} pages of {page}" if self.paged else f"the cache has {page} rows for each"

    def check_rows(self, before, used, counts, left):
        """On the CPU, before rows are written, as kernels look too late for that: whether lengths are of the cache, and the table or
        cache_batch_idx names what holds all rows that are seen. before, used: rows of keys of each sequence without the new ones and
        with them; counts: of queries; left: how far a window goes back, -1 for all."""
        if self.k.device.type != "cpu" or torch.compiler.is_compiling():
            return
        page = self.k.shape[1]
        for n, (least, most) in enumerate(zip(before.tolist(), used.tolist())):
            if least < 0:
                raise ValueError(f"cache_seqlens is {least} for sequence {n}; accepted: from 0 on")
            if most > self.capacity:
                raise ValueError(f"sequence {n} has {most} rows by cache_seqlens, but {self._room()}")
        if not self.paged and self.batch_idx is None:
            return
        first = torch.zeros_like(used) if self.leftpad is None else self.leftpad
        if left >= 0:
            first = torch.maximum(first, used - counts - left)
        table = self.pages()
        at = torch.arange(table.shape[1], device=used.device)
        seen = (at >= (first // page)[:, None]) & (at * page < used[:, None]) & (torch.as_tensor(counts) > 0).reshape(-1, 1)
        wrong = (seen & ((table < 0) | (table >= self.k.shape[0]))).nonzero()
        if len(wrong):
            self._refuse_page(*wrong[0].tolist())

    def check_writable(self):
        """Raises where new rows may not be written here, or one would take another's place."""
        for name, x in (("k_cache", self.k), ("v_cache", self.v)):
            if not torch.compiler.is_compiling() and x.is_inference() and not torch.is_inference_mode_enabled():
                raise ValueError(f"{name} was made under torch.inference_mode(); accepted beside k and v: that mode here, too")
            if any(size > 1 and stride == 0 for size, stride in zip(x.shape, x.stride())):
                raise ValueError(f"{name} is expanded, so that new rows of two sequences would be one; accepted beside k and v: a cache "
                                 "whose rows lie apart")
        if self._shares_memory():
            raise ValueError("v_cache shares memory with k_cache, so that new values would take the place of keys; accepted beside k and v: "
                             "caches that lie apart")

    def append(self, k, v, sequences, positions):
        """Rows [n, hk, d] to their positions in sequences, both int64 [n]."""
        page = self.k.shape[1]
        pages = self.pages()[sequences, positions // page].long()
        if self.k.device.type == "cpu" and pages.numel() and not 0 <= int(pages.min()) <= int(pages.max()) < self.k.shape[0]:
            n = int(((pages < 0) | (pages >= self.k.shape[0])).nonzero()[0])
            self._refuse_page(int(sequences[n]), int(positions[n]) // page)
        pages = torch.where((pages < 0) | (positions < 0), self.k.shape[0], pages)  # PyTorch would count them from the end
        for cache, rows in ((self.k, k), (self.v, v)):
            if rows.itemsize == 1:  # PyTorch stores no numbers of 8 bits by their indices, but bytes
                cache, rows = cache.view(torch.uint8), rows.view(torch.uint8)
            cache[pages, positions % page] = rows

    def _shares_memory(self):
        """Whether an element of k is one of v. Of views that lie among each other and whose strides differ it is said of all;
        where torch.compile traces there are no addresses, and one tensor given twice is seen."""
        if self.k is self.v or torch.compiler.is_compiling():
            return self.k is self.v
        size, starts = self.k.element_size(), (self.k.data_ptr(), self.v.data_ptr())
        ends = [start + span_of(x) for start, x in zip(starts, (self.k, self.v))]
        if 0 in starts or starts[0] >= ends[1] or starts[1] >= ends[0]:
            return False
        if (size, self.k.stride()[:3]) != (self.v.element_size(), self.v.stride()[:3]) or (starts[1] - starts[0]) % size:
            return True
        steps = sorted(zip(self.k.stride()[:3], self.k.shape[:3]), reverse=True)
        return _meets((starts[1] - starts[0]) // size, steps, self.k.shape[3], self.v.shape[3])

    def check_positions(self, sequences, positions):
        """On the CPU: whether new rows have a place in their sequences."""
        if self.k.device.type != "cpu":
            return
        beyond = ((positions < 0) | (positions >= self.capacity)).nonzero()
        if len(beyond):
            n = int(beyond[0])
            raise ValueError(f"a new key would be row {int(positions[n])} of sequence {int(sequences[n])}, but {self._room()}")

    def _refuse_page(self, sequence, column):
        what = f"{self.table_name} names page" if self.paged else "cache_batch_idx names batch"
        where = f"in column {column} of" if self.paged else "for"
        raise ValueError(f"{what} {int(self.pages()[sequence, column])} {where} sequence {sequence}, but the cache has {self.k.shape[0]}")


def _meets(offset, steps, columns, other_columns):
    """Whether a row of one view meets a row of another of these strides and sizes, the widest first, that begins offset elements later."""
    if not steps:
        return -other_columns < offset < columns
    (stride, size), rest = steps[0], steps[1:]
    near = {0} if stride == 0 else {offset // stride, offset // stride + 1}
    return any(abs(n) < size and _meets(offset - n * stride, rest, columns, other_columns) for n in near)


def with_kvcache(q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, cache_seqlens=None, cache_batch_idx=None,
                 cache_leftpad=None, table=None, table_name="block_table", cu_seqlens_q=None, cu_seqlens_k_new=None,
                 max_seqlen_q=None, rotary_seqlens=None, softmax_scale=None, causal=False, window=None, rotary_interleaved=True,
                 num_splits=0, batch_invariant=False, k_descale=None, v_descale=None, with_lse=False, logits=None, key=None):
    """o, or (o, lse) with_lse: q [b, sq, hq, d] → o [b, sq, hq, dv], lse [b, hq, sq]; with cu_seqlens_q [total_q, …], lse [hq, total_q].

    key: the door's, of _torch_again, with OF_CACHES, or None. Such a call of a GPU is kept there, with new rows where a kernel writes them."""
    if not isinstance(q, torch.Tensor):
        raise TypeError(f"q is {type(q).__qualname__}; accepted: a tensor")
    causal, rotary_interleaved = flag_of("causal", causal), flag_of("rotary_interleaved", rotary_interleaved)
    splits = splits_of(num_splits, batch_invariant)
    if learned := learned_of(q, k_cache, v_cache, k, v):
        if k is not None or v is not None:
            _refuse_to_write_gradients(k_cache=k_cache, v_cache=v_cache, k=k, v=v)
        q, k_cache, v_cache = detached(q, k_cache, v_cache)
    rows = _Rows("q", q, cu_seqlens_q, "cu_seqlens_q")
    if table is not None and cache_batch_idx is not None and table_name == "page_table":
        table, cache_batch_idx, key = _rows_of_table(table, cache_batch_idx, rows.b, q.device), None, None
    cache = Cache(k_cache, v_cache, rows.b, table, table_name, cache_batch_idx, cache_leftpad)
    before = _lengths_of("cache_seqlens", cache_seqlens, rows.b, q.device)
    if before is None and k is not None:
        raise ValueError("cache_seqlens is None; accepted beside k and v: how many rows each sequence has before them")
    new = _new_rows(k, v, cache, cu_seqlens_k_new, rows.b, q.dtype)
    factors = _torch_paged.descales_of(k_cache, v_cache, rows.b, k_descale, v_descale)
    rotate = None
    if rotary_cos is not None or rotary_sin is not None:
        if new is None:
            raise ValueError("rotary_cos and rotary_sin beside no k and v; accepted: with new keys alone, as in flash-attn")
        base = _lengths_of("rotary_seqlens", rotary_seqlens, rows.b, q.device)
        rotate = Rotary(rotary_cos, rotary_sin, rotary_interleaved, before if base is None else base, q)
    else:
        _lengths_of("rotary_seqlens", rotary_seqlens, rows.b, q.device)  # of no rotation they say nothing, as in FlashAttention-3
    moves = causal or window is not None and tuple(window) != (-1, -1)
    by_kernel = new and _torch_append.appended(cache, rows, new, before, rotate, moves, factors, softmax_scale)
    if new is None:
        queries, used, append = rows.flat, before, None
        if used is None:
            used = torch.full((rows.b,), cache.capacity, dtype=torch.int32, device=q.device)
    elif by_kernel is not None:
        queries, used, append = by_kernel.queries, by_kernel.used, by_kernel.write
    else:
        queries, used, append = _by_operators(cache, rows, new, before, rotate, moves, factors)
    _check_padding(cache, used)
    if q.device.type == "cpu":
        cache.check_rows(used if before is None else before, used, rows.counts, window_of(causal, window)[0])

    def write():
        cache.check_writable()
        append()
    most = _most_rows(cu_seqlens_q, max_seqlen_q, q.device)
    pages, keep = cache.pages(), None
    numbers = isinstance(cache_seqlens, int) or isinstance(rotary_seqlens, int)
    if key is not None and not learned and (new is None or by_kernel is not None) and cache.k.is_cuda and not numbers \
            and (queries is not rows.flat or queries.data_ptr() == q.data_ptr()) and not _torch_again.is_recorded():
        def keep(plan, _, outputs, steps):
            _keep_again(key, plan, cache, rows, outputs, steps, with_lse, by_kernel)
    o, lse = _torch_paged.attend(queries, cache.k, cache.v, cu_seqlens_q, None, used, pages, cache.leftpad, write=None if new is None else write,
                                 scale=softmax_scale, causal=causal, window=window, most_q=most, splits=splits,
                                 k_descale=factors[0], v_descale=factors[1], keep=keep, **(logits or {}))
    if learned:
        o, lse = undifferentiated(o, lse, learned, OF_CACHE)
    return (rows.of(o), rows.lse_of(lse)) if with_lse else rows.of(o)


def _rows_of_table(table, batch_idx, b, device):
    """FlashAttention-3's page_table beside cache_batch_idx: each sequence's row of it. On a GPU, where numbers are not read, what is no row
    has no page."""
    if not isinstance(table, torch.Tensor) or table.dim() != 2 or table.shape[0] == 0:
        raise ValueError(f"page_table is {[*table.shape] if isinstance(table, torch.Tensor) else shown(table)}; accepted: int32 [rows, columns]")
    check_integers(device, page_table=(table, tuple(table.shape)), cache_batch_idx=(batch_idx, (b,)))
    outside = (batch_idx < 0) | (batch_idx >= table.shape[0])
    if device.type == "cpu" and not torch.compiler.is_compiling() and outside.any():
        n = int(outside.nonzero()[0])
        raise ValueError(f"cache_batch_idx names row {int(batch_idx[n])} for sequence {n}, but page_table has {table.shape[0]}")
    return torch.where(outside[:, None], -1, table.index_select(0, torch.where(outside, 0, batch_idx)))


def _refuse_to_write_gradients(**tensors):
    """Rows of a cache would forget that they require one, for all calls that read them later."""
    for name in (name for name, x in tensors.items() if learned_of(x)):
        raise ValueError(f"{name} requires a gradient, which rows that are written to a cache have none of; accepted beside k and v: "
                         f"torch.no_grad(), or {name}.detach()")


def _by_operators(cache, rows, new, before, rotate, moves, factors):
    """(queries, rows of each sequence with the new ones, what writes these to the cache): what the kernel of _torch_append is defined by."""
    if rotate is not None:
        keys = rotate(new.flat, new.sequences, new.positions)
        queries = rotate(rows.flat, rows.sequences, rows.positions if moves else torch.zeros_like(rows.positions))
    else:
        keys, queries = new.flat, rows.flat
    positions = new.positions + before.long()[new.sequences]
    cache.check_positions(new.sequences, positions)
    if cache.k.device.type == "cpu":
        check_factors(k_descale=factors[0], v_descale=factors[1])

    def append():
        stored = (stored_as(x, factor, new.sequences, cache.k.dtype) for x, factor in zip((keys, new.values.flat), factors))
        cache.append(*stored, new.sequences, positions)
    return queries, before + new.counts, append


def _keep_again(key, plan, cache, rows, outputs, steps, with_lse, by_kernel):
    """Keeps what with_kvcache makes of calls of this key, by a plan whose outputs and steps are these. by_kernel: what appends, or None."""
    taken = places_of(key, OF_CACHES)
    places, made_here = {name: place for name, place in taken.items() if name not in _OF_NEW_ROWS}, {}
    if cache.batch_idx is not None:
        places["block_table"] = places.pop("cache_batch_idx")
    elif not cache.paged:
        made_here["block_table"] = range(cache.b)
    if "seqused_k" not in places:
        made_here["seqused_k"] = [cache.capacity] * cache.b
    # Of numbers, for which the device is waited for, once: calls on other streams read them.
    constants = {name: torch.tensor(numbers, dtype=torch.int32, device=cache.k.device) for name, numbers in made_here.items()}
    o, lse = outputs
    first = {} if by_kernel is None else {"prepare": by_kernel.again(key), "prepared": by_kernel.prepared}
    made = _torch_again.launch(plan, places, rows.of(o), rows.lse_of(lse), returns="(ol)" if with_lse else "o", steps=steps,
                               constants=constants, **first)
    _torch_again.keep(key, made, taken.values())


def check_factors(**factors):
    """Raises where new rows, which are divided by them, would be none."""
    for name, factor in factors.items():
        if factor is not None and not (factor.isfinite() & (factor != 0)).all():
            raise ValueError(f"{name} has a factor of 0, NaN or infinity; accepted beside k and v: finite ones other than 0")


def stored_as(x, factor, sequences, dtype):
    """Rows [n, hk, d] as a cache holds them: in float8_e4m3fn divided by their sequence's factor, at most 448 in size."""
    if dtype != _torch_paged.E4M3:
        return x
    return rounded(x.float() if factor is None else x.float() / factor[sequences][..., None])


class _Rows:
    """Rows of all sequences, flat [total, h, d], of a tensor [b, s, h, d], or as they are with cu_seqlens, begins: of which sequence each is,
    and its place there, int64 [total]."""

    def __init__(self, name, x, cu_seqlens, cu_name):
        self.given, self.begins, self.packed, count = x, cu_seqlens, cu_seqlens is not None, 3 if cu_seqlens is not None else 4
        if x.dim() != count:
            raise ValueError(f"{name} has {x.dim()} dimensions; {count} are expected: "
                             f"{'rows of all sequences' if self.packed else 'batch, sequence'}, heads, head dim")
        if self.packed:
            if not isinstance(cu_seqlens, torch.Tensor) or cu_seqlens.dim() != 1 or len(cu_seqlens) == 0:
                raise ValueError(f"{cu_name} is {shown(cu_seqlens)}; accepted: an int32 tensor [b + 1]")
            check_integers(x.device, **{cu_name: (cu_seqlens, tuple(cu_seqlens.shape))})
            self.b, self.of_each, self.flat = cu_seqlens.shape[0] - 1, 0, x
            if x.device.type == "cpu" and (int(cu_seqlens[0]) or int(cu_seqlens[-1]) != x.shape[0] or (self.counts < 0).any()):
                raise ValueError(f"{cu_name} is {shown(cu_seqlens.tolist())}; accepted: from 0, rising, to the {x.shape[0]} rows "
                                 f"of {name}")
        else:
            self.b, self.of_each, self.flat = x.shape[0], x.shape[1], x.flatten(0, 1)

    @property
    def counts(self):
        """Rows of each sequence: int32 [b], or a number."""
        return self.begins.diff() if self.packed else self.of_each

    @property
    def steps(self):
        """Elements from a sequence to the next, from a row and from a head."""
        return (0, *self.given.stride()[:2]) if self.packed else self.given.stride()[:3]

    @property
    def sequences(self):
        rows = torch.arange(self.flat.shape[0], device=self.flat.device)
        return torch.bucketize(rows, self.begins[1:], right=True, out_int32=False) if self.packed else rows // max(1, self.of_each)

    @property
    def positions(self):
        rows = torch.arange(self.flat.shape[0], device=self.flat.device)
        return rows - self.begins.long()[self.sequences] if self.packed else rows % max(1, self.of_each)

    def of(self, o):
        return o if self.packed else o.unflatten(0, (self.b, self.of_each))

    def lse_of(self, lse):
        """[hq, total] as kernels write it, or a view of it, [b, hq, sq], which no copy has to make."""
        return lse if self.packed else lse.view(-1, self.b, self.of_each).transpose(0, 1)


def _new_rows(k, v, cache, cu_seqlens_k_new, b, dtype):
    if k is None or v is None:
        for name, given in (("k", k), ("v", v), ("cu_seqlens_k_new", cu_seqlens_k_new)):
            if given is not None:
                raise ValueError(f"{name} beside no {'v' if name == 'k' else 'k'}; accepted: new keys and values together")
        return None
    for name, x, stored in (("k", k, cache.k), ("v", v, cache.v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} is {type(x).__qualname__}; accepted: a tensor")
        expected = dtype if stored.dtype == _torch_paged.E4M3 else stored.dtype
        if x.dtype != expected or x.device != stored.device or x.shape[-2:] != stored.shape[2:]:
            raise ValueError(f"{name} is {list(x.shape)} of {x.dtype} on {x.device}; expected are heads and head dim, type and "
                             f"device of {name}_cache, {list(stored.shape[2:])} of {expected} on {stored.device}")
    if k.shape[:-2] != v.shape[:-2]:
        raise ValueError(f"k has shape {list(k.shape)}, v {list(v.shape)}; expected are as many rows")
    new, values = (_Rows(name, x, cu_seqlens_k_new, "cu_seqlens_k_new") for name, x in (("k", k), ("v", v)))
    if new.b != b:
        raise ValueError(f"k is of {new.b} sequences, q of {b}; as many are expected")
    new.values = values
    return new


class Rotary:
    """Rotates pairs of the first columns, in float32: neighbours where interleaved, else column i and i + rotary_dim / 2. cos,
    sin: [positions, rotary_dim / 2]; base: int32 [b], the position of each sequence's first row."""

    def __init__(self, cos, sin, interleaved, base, q):
        for name, x in (("rotary_cos", cos), ("rotary_sin", sin)):
            if not isinstance(x, torch.Tensor) or x.dim() != 2 or x.dtype != q.dtype or x.device != q.device:
                kind = f"{list(x.shape)} of {x.dtype} on {x.device}" if isinstance(x, torch.Tensor) else type(x).__qualname__
                raise ValueError(f"{name} is {kind}; accepted: [positions, rotary_dim / 2] of {q.dtype} on {q.device}")
        if cos.shape != sin.shape or cos.shape[1] % 8 or 2 * cos.shape[1] > q.shape[-1]:
            raise ValueError(f"rotary_cos has shape {list(cos.shape)}, rotary_sin {list(sin.shape)}; accepted: one shape, "
                             f"rotary_dim a multiple of 16 up to the head dim {q.shape[-1]}")
        self.cos, self.sin, self.interleaved, self.base = cos, sin, interleaved, base

    def __call__(self, x, sequences, positions):
        at = self.base.long()[sequences] + positions
        if x.device.type == "cpu" and at.numel() and not 0 <= int(at.min()) <= int(at.max()) < self.cos.shape[0]:
            raise ValueError(f"positions {int(at.min())} to {int(at.max())} are rotated, but rotary_cos has {self.cos.shape[0]}")
        cos, sin = self.cos[at][:, None].float(), self.sin[at][:, None].float()
        half = cos.shape[-1]
        turned, rest = x[..., :2 * half].float(), x[..., 2 * half:]
        a, b = (turned[..., ::2], turned[..., 1::2]) if self.interleaved else turned.split(half, -1)
        pairs = a * cos - b * sin, a * sin + b * cos
        turned = torch.stack(pairs, -1).flatten(-2) if self.interleaved else torch.cat(pairs, -1)
        return torch.cat((turned.to(x.dtype), rest), -1)


def known_on_device(lengths, q, begins=None):
    """cache_seqlens as a door's key has it: of a GPU's call a number becomes int32 [b], so that the next one makes the same call again. What
    cannot be is left to who refuses it. begins: cu_seqlens_q."""
    if type(lengths) is not int or not 0 <= lengths < 2 ** 31 or not isinstance(q, torch.Tensor) or not q.is_cuda or q.dim() == 0:
        return lengths
    if begins is not None and (not isinstance(begins, torch.Tensor) or begins.dim() != 1 or len(begins) == 0):
        return lengths
    return torch.full((q.shape[0] if begins is None else begins.shape[0] - 1,), lengths, dtype=torch.int32, device=q.device)


def _lengths_of(name, lengths, b, device):
    if lengths is None:
        return None
    if isinstance(lengths, int) and not isinstance(lengths, bool):
        if not 0 <= lengths < 2 ** 31:
            raise ValueError(f"{name} is {lengths}; accepted: from 0 on")
        return torch.full((b,), lengths, dtype=torch.int32, device=device)
    check_integers(device, **{name: (lengths, (b,))})
    return lengths


def _most_rows(cu_seqlens_q, most, device):
    """Rows of a sequence of packed queries at most, 0 where it is not known."""
    if cu_seqlens_q is None or most is None or isinstance(most, torch.Tensor) and most.is_cuda:
        return 0
    most = whole("max_seqlen_q", most)
    if device.type == "cpu" and len(cu_seqlens_q) > 1 and most < (longest := int(cu_seqlens_q.diff().max())):
        raise ValueError(f"max_seqlen_q is {most}, but a sequence has {longest} rows")
    return most


def _check_padding(cache, used):
    if cache.leftpad is None or cache.leftpad.device.type != "cpu":
        return
    beyond = ((cache.leftpad < 0) | (cache.leftpad > used)).nonzero()
    if len(beyond):
        n = int(beyond[0])
        raise ValueError(f"cache_leftpad is {int(cache.leftpad[n])} for sequence {n}, which has {int(used[n])} rows")

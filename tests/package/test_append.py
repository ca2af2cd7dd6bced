"""New rows of a cache by the kernel of Triton, in the first call and in calls made again: the bits of the operators that define it, nothing
written beside. Interpreted on a processor, with tensors that say they are on a GPU, and as it is on a GPU."""

import contextlib
import gc
import importlib.util
import os
import subprocess
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

import dfa.flash_attn  # noqa: E402
from dfa import _torch_again, _torch_append, _torch_kvcache, _torch_quantize  # noqa: E402
from dfa.flash_attn import flash_attn_interface, flash_attn_with_kvcache  # noqa: E402
from test_torch_recalled import DTYPE, GPU, as_on_a_gpu  # noqa: E402, F401: a fixture of every test

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if importlib.util.find_spec("triton") is None:
    pytest.skip("no Triton", allow_module_level=True)
of_the_kernel = pytest.mark.skipif(not GPU and not INTERPRETED, reason="test_interpreted runs it")
WHERE = "cuda" if GPU else "cpu"


@pytest.mark.skipif(INTERPRETED, reason="runs itself")
def test_interpreted():
    run = subprocess.run([sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", __file__], capture_output=True, text=True, timeout=580,
                         env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-1000:]
    assert " passed" in run.stdout


@pytest.fixture(autouse=True)
def by_kernel(monkeypatch):
    monkeypatch.setattr(_torch_append, "BY_KERNEL", True)
    if not GPU:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def ints(*values):
    return torch.tensor(values, dtype=torch.int32).to(WHERE)


def random(*shape, seed=0, dtype=DTYPE):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(WHERE)


def angles(positions, half, dtype):
    angle = torch.arange(positions)[:, None] * 0.7 ** torch.arange(half)
    return angle.cos().to(dtype).to(WHERE), angle.sin().to(dtype).to(WHERE)


TABLES = [[4, 2, 0, 7], [1, 3, 5, 6]], [[0, 6, 2, 3], [7, 1, 4, 5]], [[5, 4, 7, 0], [2, 6, 1, 3]]
ROOM = 64


class Case:
    """A call of two sequences, whose caches have NaN wherever there is no row."""

    def __init__(self, seed, layout="pages", s_new=1, sq=None, rotary=None, packed=False, dtype=DTYPE, d=64, dv=None, halves=False, fused=False,
                 e4m3=False, rotary_seqlens=False, **options):
        dv, sq, hq, hk = dv or d, s_new if sq is None else sq, 4, 2
        self.lengths, self.layout, self.options = [(40, 17, 0)[seed % 3], (5, 33, 50)[seed % 3]], layout, options
        self.table, page = TABLES[seed % 3], ROOM if layout != "pages" else 16
        pages = {"pages": 8, "dense": 2, "indexed": 5}[layout]
        generator = 10 * seed
        if halves:
            both = torch.full((pages, 2, page, hk, d), torch.nan, dtype=dtype).to(WHERE)
            self.k, self.v = both[:, 0], both[:, 1]
        else:
            self.k, self.v = (torch.full((pages, page, hk, width), torch.nan, dtype=dtype).to(WHERE) for width in (d, dv))
        for i, length in enumerate(self.lengths):
            for j in range(length):
                at = (self.table[i][j // page], j % page) if layout == "pages" else ((4, 1)[i] if layout == "indexed" else i, j)
                self.k[at], self.v[at] = random(hk, d, seed=generator + 100 + i * 64 + j, dtype=dtype), random(hk, dv, seed=generator + 900 + i * 64 + j, dtype=dtype)
        if e4m3:
            self.k, self.v = self.k.to(torch.float8_e4m3fn), self.v.to(torch.float8_e4m3fn)
        if fused:
            qkv = random(2, s_new, hq + 2 * hk, d, seed=generator, dtype=dtype)
            q, k, v = qkv.split((hq, hk, hk), 2)
        else:
            q, k, v = (random(2, s, h, width, seed=generator + n, dtype=dtype) for n, (s, h, width) in enumerate(((sq, hq, d), (s_new, hk, d), (s_new, hk, dv))))
        self.named = {"cache_seqlens": ints(*self.lengths)} | {name: x() if callable(x) else x for name, x in options.items()}
        if rotary:
            cos, sin = angles(100, 16, dtype)
            self.named |= {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": rotary == "pairs"}
        if rotary_seqlens:
            self.named["rotary_seqlens"] = ints(*((3, 50), (8, 0), (1, 2))[seed % 3])
        self.third = packed or e4m3 or rotary_seqlens
        if layout == "pages":
            self.named["page_table" if self.third else "block_table"] = ints(*self.table)
        if layout == "indexed":
            self.named["cache_batch_idx"] = ints(4, 1)
        if packed:  # of unequal lengths, none of one sequence's new rows now and then
            at, new_at = ((1, 2 * sq), (sq, 2 * sq), (2 * sq, 2 * sq))[seed % 3], ((0, 2 * s_new), (1, 2 * s_new), (2 * s_new, 2 * s_new))[seed % 3]
            q, k, v = (x.flatten(0, 1) for x in (q, k, v))
            self.named |= {"cu_seqlens_q": ints(0, *at), "cu_seqlens_k_new": ints(0, *new_at)}
        self.new = q, k, v

    def run(self):
        q, k, v = self.new
        call = flash_attn_interface.flash_attn_with_kvcache if self.third else flash_attn_with_kvcache
        with torch.no_grad():
            outputs = call(q, self.k, self.v, k, v, **self.named)
        return outputs if isinstance(outputs, tuple) else (outputs,)


CASES = {
    "pages": {}, "pages, causal": {"causal": True, "s_new": 5}, "dense": {"layout": "dense", "causal": True}, "dense, more": {"layout": "dense", "s_new": 5},
    "indexed": {"layout": "indexed", "s_new": 3, "causal": True}, "lse": {"return_softmax_lse": True, "s_new": 3}, "half precision": {"dtype": torch.bfloat16},
    "padded": {"cache_leftpad": lambda: ints(0, 4), "layout": "dense"}, "fewer queries": {"s_new": 5, "sq": 2, "causal": True},
    "rotary": {"rotary": "pairs", "causal": True, "s_new": 3}, "rotary halves": {"rotary": "halves", "causal": True},
    "rotary at one position": {"rotary": "pairs", "s_new": 3}, "rotary window": {"rotary": "halves", "s_new": 2, "window_size": (9, 0)},
    "rotary dense": {"rotary": "halves", "layout": "dense", "causal": True, "return_softmax_lse": True},
    "rotary indexed": {"rotary": "pairs", "layout": "indexed", "causal": True}, "rotary half precision": {"rotary": "halves", "dtype": torch.float16, "causal": True},
    "rotary fused": {"rotary": "pairs", "fused": True, "s_new": 2, "causal": True}, "rotary odd widths": {"rotary": "halves", "d": 72, "dv": 40, "causal": True},
    "halves of one": {"halves": True, "s_new": 2}, "fused": {"fused": True}, "sinks and softcap": {"softcap": 5.0, "causal": True},
    "slopes": {"alibi_slopes": lambda: torch.tensor([0.5, 0.25, 0.125, 0.0625]).to(WHERE)}, "splits": {"num_splits": 3},
    "packed": {"packed": True, "s_new": 4, "sq": 3, "causal": True}, "packed rotary": {"packed": True, "s_new": 3, "rotary": "pairs", "causal": True, "return_softmax_lse": True},
    "positions of their own": {"rotary": "halves", "rotary_seqlens": True, "s_new": 2, "causal": True},
}


def same(x, y):
    return torch.equal(x.float().nan_to_num(7e9), y.float().nan_to_num(7e9)) and x.stride() == y.stride() and x.dtype == y.dtype


def by_operators(monkeypatch, case):
    with monkeypatch.context() as patch:
        patch.setattr(_torch_append, "BY_KERNEL", False)
        for module in (dfa.flash_attn, flash_attn_interface):
            patch.setattr(module, "recall", lambda key: None)
        return case.run()


@pytest.fixture
def seen(monkeypatch):
    """Of each call: was it made again?"""
    answers, recall = [], _torch_again.recall

    def watch(key):
        outputs = recall(key)
        answers.append(outputs is not None)
        return outputs
    for module in (dfa.flash_attn, flash_attn_interface):
        monkeypatch.setattr(module, "recall", watch)
    return answers


@of_the_kernel
@pytest.mark.parametrize("name", CASES)
def test_the_bits_of_the_operators_at_first_and_again(name, monkeypatch, seen):
    _torch_again.clear()
    for seed in (0, 1, 2, 0):
        case, right = (Case(seed, **CASES[name]) for _ in range(2))
        was = [x.clone() for x in case.new]
        outputs, wanted = case.run(), by_operators(monkeypatch, right)
        assert same(case.k, right.k) and same(case.v, right.v), seed
        assert len(outputs) == len(wanted) and all(map(same, outputs, wanted)), seed
        assert all(map(torch.equal, case.new, was))
    assert seen == [False, True, True, True]


K_DESCALE, V_DESCALE = [[0.01, 2.0], [1.0, 0.5]], [[3.0], [0.001]]


def floats(values):
    return torch.tensor(values).to(WHERE)


@pytest.mark.skipif(not GPU, reason="the interpreter's own rounding to 8 bits is not the hardware's")
@pytest.mark.parametrize("descales", [False, True])
def test_a_cache_in_e4m3(descales, monkeypatch, seen):
    named = {"k_descale": lambda: floats(K_DESCALE), "v_descale": lambda: floats(V_DESCALE)} if descales else {}
    for seed in (0, 1):
        case, right = (Case(seed, e4m3=True, rotary="pairs", s_new=2, causal=True, **named) for _ in range(2))
        outputs, wanted = case.run(), by_operators(monkeypatch, right)
        assert same(case.k, right.k) and same(case.v, right.v) and all(map(same, outputs, wanted))
    assert seen == [False, True]


@pytest.mark.skipif(not INTERPRETED, reason="on a GPU test_a_cache_in_e4m3")
@pytest.mark.parametrize("factors", [(None, None), (K_DESCALE, V_DESCALE)], ids=["1", "descales"])
def test_what_is_rounded_to_e4m3(factors, monkeypatch):
    """Of a cache in float32, which the kernel is told is one in 8 bits."""
    case, right = Case(1, rotary="halves", s_new=2, dtype=torch.float32), Case(1, rotary="halves", s_new=2, dtype=torch.float32, e4m3=True)
    case.new[1][0, 0, 0, 40:43] = torch.tensor([1e6, -1e6, torch.nan])
    factors = [None if x is None else floats(x).expand(2, 2) for x in factors]
    q, k, v = case.new
    written = []
    for of, e4m3 in ((case, torch.float32), (right, torch.float8_e4m3fn)):
        monkeypatch.setattr(_torch_append, "E4M3", e4m3)
        cache = _torch_kvcache.Cache(of.k, of.v, 2, case.named["block_table"], "block_table", None, None)
        rows, new = _torch_kvcache._Rows("q", q, None, ""), _torch_kvcache._new_rows(k, v, cache, None, 2, q.dtype)
        before = case.named["cache_seqlens"]
        rotate = _torch_kvcache.Rotary(case.named["rotary_cos"], case.named["rotary_sin"], False, before, q)
        if of is case:
            made = _torch_append.appended(cache, rows, new, before, rotate, True, factors, None)
            made.write()
            written.append((made.queries, made.used))
        else:
            *of_operators, append = _torch_kvcache._by_operators(cache, rows, new, before, rotate, True, factors)
            append()
            written.append(of_operators)
    for x, x8 in ((case.k, right.k), (case.v, right.v)):
        assert torch.equal(x.to(torch.float8_e4m3fn).view(torch.uint8), x8.view(torch.uint8))
    assert (right.k.float() == 448).any() and (right.k.float() == -448).any()
    assert all(map(torch.equal, *written))


def guarded(*shape):
    """A cache in the midst of NaN, and all of it."""
    memory = torch.full((3, *shape), torch.nan, dtype=DTYPE).to(WHERE)
    return memory[1], memory


@of_the_kernel
@pytest.mark.parametrize("wrong", [
    {"cache_seqlens": [64, 3]}, {"cache_seqlens": [-1, 3]}, {"cache_seqlens": [-9, 2 ** 31 - 1]}, {"cache_seqlens": [15, 63]},
    {"table": [[-1, 2, 0, 7], [1, 3, 5, 6]], "cache_seqlens": [2, 17]}, {"table": [[4, 2, 8, 7], [1, 2 ** 31 - 1, 5, 6]]}, {"table": [[-2 ** 31] * 4] * 2},
    {"cache_batch_idx": [2, 1]}, {"cache_batch_idx": [-1, -5]}, {"steps": [0, 1, 2]}, {"steps": [3, 3, 3]}, {"steps": [0, 4, -4]}, {"steps": [0, 9, 99]}], ids=str)
def test_what_has_no_place_is_written_nowhere(wrong):
    """A new row lies where its sequence's table says, or not at all; steps: of new rows, of which there are four."""
    lengths, table, steps = wrong.get("cache_seqlens", [40, 17]), wrong.get("table", TABLES[0]), wrong.get("steps", [0, 2, 4])
    indexed, packed = "cache_batch_idx" in wrong, "steps" in wrong
    (k_cache, k_all), (v_cache, v_all) = (guarded(2, 64, 2, 64) if indexed else guarded(8, 16, 2, 64) for _ in range(2))
    q, k, v = random(2, 1, 4, 64), random(2, 2, 2, 64, seed=1), random(2, 2, 2, 64, seed=2)
    named = {"cache_batch_idx": ints(*wrong["cache_batch_idx"])} if indexed else {"page_table": ints(*table)}
    if packed:
        q, k, v = (x.flatten(0, 1) for x in (q, k, v))
        named |= {"cu_seqlens_k_new": ints(*steps), "cu_seqlens_q": ints(0, 1, 2)}
    rows = set()
    for i, (begin, end) in enumerate(zip(steps, steps[1:])):
        for row in range(max(0, begin), min(4, end)):
            at = lengths[i] + row - begin
            page, inside = (wrong["cache_batch_idx"][i], at) if indexed else (table[i][at // 16] if 0 <= at < 64 else -1, at % 16)
            if 0 <= at < 64 and 0 <= page < len(k_cache):
                rows.add((1, page, inside))
    for _ in range(2):
        with torch.no_grad(), contextlib.nullcontext() if GPU else contextlib.suppress(ValueError):  # what attends on a processor looks at lengths
            flash_attn_interface.flash_attn_with_kvcache(q, k_cache, v_cache, k, v, cache_seqlens=ints(*lengths), **named)
        for memory in (k_all, v_all):
            found = set(map(tuple, (~memory.isnan()).flatten(3).any(3).nonzero().tolist()))
            assert found <= rows and (found == rows or steps != sorted(steps))  # steps that fall are found or not


@of_the_kernel
def test_a_position_without_a_rotation_is_no_number():
    case = Case(0, rotary="pairs", causal=True)
    case.named |= {"rotary_cos": angles(41, 16, DTYPE)[0][:40], "rotary_sin": angles(41, 16, DTYPE)[1][:40]}  # sequence 0 is at 40
    with contextlib.suppress(ValueError):
        o, = case.run()
        assert o[0].isnan().all() and o[1].isfinite().all()
    assert case.k[0, 8, :, :32].isnan().all() and case.k[0, 8, :, 32:].isfinite().all() and case.k[1, 5].isfinite().all()


@of_the_kernel
def test_refusals_come_each_time(seen):
    case = Case(0, layout="dense", dtype=torch.float32)
    case.run()
    case.run()
    assert seen == [False, True]
    q, k, v = case.new
    kept = case.k.clone(), case.v.clone()
    with torch.inference_mode():
        made_there = case.k.clone()
    with pytest.raises(ValueError, match=r"k_cache was made under torch.inference_mode\(\)"):
        flash_attn_with_kvcache(q, made_there, case.v, k, v, **case.named)
    for change in (0, 16 * 2 * 64):
        memory = torch.zeros(case.k.numel() + change).to(WHERE)
        k_cache, v_cache = (memory[at:at + case.k.numel()].view(case.k.shape) for at in (0, change))
        with pytest.raises(ValueError, match="v_cache shares memory with k_cache"):
            flash_attn_with_kvcache(q, k_cache, v_cache, k, v, **case.named)
        assert not memory.any()
    for change, message in (({"cache_seqlens": case.named["cache_seqlens"].long()}, "cache_seqlens is torch.int64"),
                            ({"k": k[..., :32]}, r"k is \[2, 1, 2, 32\]"), ({"cache_seqlens": None}, "cache_seqlens is None"), ({"v": None}, "k beside no v"),
                            ({"k": k.clone().requires_grad_()}, "k requires a gradient"), ({"causal": 1}, "causal")):
        given = {"q": q, "k_cache": case.k, "v_cache": case.v, "k": k, "v": v} | case.named | change
        with pytest.raises((ValueError, TypeError), match=message):
            flash_attn_with_kvcache(**given)
    assert torch.equal(case.k.nan_to_num(), kept[0].nan_to_num()) and torch.equal(case.v.nan_to_num(), kept[1].nan_to_num())
    assert seen[2:] == [False] * len(seen[2:])


@of_the_kernel
def test_new_rows_that_lie_in_the_cache_are_not_the_kernels(monkeypatch, seen):
    """It would read them while it writes."""
    for own in (False, True):
        case, right, other = (Case(0, layout="dense") for _ in range(3))
        for x in (case, right):
            x.new = x.new[0], (x if own and x is case else other).k[:, 3:4], x.new[2]
        assert all(map(same, case.run(), by_operators(monkeypatch, right))) and same(case.k, right.k)
    assert seen == [False, False]


@of_the_kernel
def test_autograd_learns_that_a_cache_has_changed():
    case = Case(0, layout="dense")
    for _ in range(2):
        before = case.k._version, case.v._version
        case.run()
        assert case.k._version > before[0] and case.v._version > before[1]


@of_the_kernel
def test_who_looks_on_sees_operators(monkeypatch, seen):
    from torch.utils._python_dispatch import TorchDispatchMode

    class Log(TorchDispatchMode):
        names = []

        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            self.names.append(str(function))
            return function(*arguments, **(named or {}))
    case, right = (Case(0, layout="dense") for _ in range(2))
    case.run()
    with Log():
        case.run()
    by_operators(monkeypatch, right)
    assert any("index_put" in name for name in Log.names) and same(case.k, right.k)
    assert not any(seen)


@of_the_kernel
def test_what_the_kernel_does_not_take_is_the_operators(monkeypatch, seen):
    """A scale that is a tensor multiplies q; rotations whose columns lie apart are not read by the kernel."""
    scales = [lambda case: case.named.update(softmax_scale=torch.tensor([0.5, 0.25, 1.0, 2.0]).to(WHERE))] * GPU
    for change in (*scales, lambda case: case.named.update(rotary_cos=case.named["rotary_cos"].t().contiguous().t())):
        for _ in range(2):
            case, right = (Case(0, rotary="halves", layout="dense", causal=True) for _ in range(2))
            change(case), change(right)
            assert all(map(same, case.run(), by_operators(monkeypatch, right))) and same(case.k, right.k)
    assert not any(seen)


def test_kernels_of_ours_do_not_see_numbers_of_the_other_sign():
    """Half of a conjugated complex tensor lies in memory with the other sign."""
    x = torch.view_as_complex(random(4, 8, 2, dtype=torch.float32)).conj().imag
    assert x.is_neg() and not _torch_quantize.seen_by_kernels(x) and _torch_quantize.seen_by_kernels(x.clone(), None)


@of_the_kernel
def test_nothing_of_a_call_is_kept_alive():
    case = Case(0, rotary="pairs", layout="dense", causal=True)
    case.run(), case.run()
    gone = [weakref.ref(x) for x in (*case.new, case.k, case.v, *(x for x in case.named.values() if isinstance(x, torch.Tensor)))]
    del case
    gc.collect()
    assert not any(one() is not None for one in gone)


@of_the_kernel
@pytest.mark.parametrize("packed", [False, True])
def test_a_number_of_rows_is_made_again_with_the_next(packed, monkeypatch, seen):
    for length in (3, 4, 5):
        case, right = (Case(2, packed=packed, s_new=2, causal=True) for _ in range(2))
        for x in (case, right):
            x.k[:], x.v[:] = (random(*y.shape, seed=n) for n, y in enumerate((x.k, x.v)))
            x.named["cache_seqlens"] = length
        assert all(map(same, case.run(), by_operators(monkeypatch, right))) and same(case.k, right.k)
    assert seen == [False, True, True]
    for wrong in (-1, 2 ** 31, True, 1.5):
        case.named["cache_seqlens"] = wrong
        with pytest.raises((ValueError, TypeError), match="cache_seqlens"):
            case.run()


def compiled(kernel, capability, types, numbers, **constants):
    """PTX of a kernel of which tensors that have no type, and numbers that are none, are not there."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource
    import triton
    signature, values, attributes = {}, {}, {}
    for place, name in enumerate(kernel.arg_names):
        if name in constants or types.get(name, "") is None:
            signature[name], values[(place,)] = "constexpr", constants.get(name)
        else:
            signature[name] = types.get(name, "i32")
            if name in numbers or name in ("q", "k", "v", "turned", "k_cache", "v_cache"):
                attributes[(place,)] = [["tt.divisibility", 16]]
    return triton.compile(ASTSource(kernel, signature, values, attributes), target=GPUTarget("cuda", capability, 32), options={"enable_fp_fusion": False}).asm


@pytest.mark.skipif(INTERPRETED, reason="nothing is compiled")
@pytest.mark.parametrize("capability, rotary, packed, e4m3", [(80, True, False, False), (90, False, True, False), (90, True, False, True)])
def test_it_compiles_for_gpus_that_are_not_here(capability, rotary, packed, e4m3):
    """Without memory of a thread's own, with wide loads and stores of rows, and without sums in one rounding with their products."""
    from dfa import _torch_append_kernel as ours
    kind, cache = "*bf16", "*fp8e4nv" if e4m3 else "*bf16"
    types = {"q": kind, "k": kind, "v": kind, "k_cache": cache, "v_cache": cache, "table": "*i32", "before": "*i32", "used": "*i32"}
    types |= {"turned": kind, "cos": kind, "sin": kind, "base": "*i32"} if rotary else dict.fromkeys(("turned", "cos", "sin", "base"))
    types |= {"k_descale": "*fp32", "v_descale": "*fp32"} if e4m3 else dict.fromkeys(("k_descale", "v_descale"))
    types |= {"cu_new": "*i32" if packed else None, "cu_q": "*i32" if packed and rotary else None}
    numbers = set(ours._append.arg_names) - set(types) - set(ours._OF_BATCHES)
    code = compiled(ours._append, capability, types, numbers, HQ=32, HK=8, D=128, DV=128, HALF=64 if rotary else 0, INTERLEAVED=False, MOVES=True,
                    E4M3=e4m3, HEADS=8, COLUMNS=128, COLUMNS_V=128)
    assert ".local" not in code["ptx"] and "fma.rn.f32" not in code["ptx"]
    assert "ld.global.v4" in code["ptx"] and "st.global.v4" in code["ptx"] or e4m3
    assert len(code["cubin"]) > 1000


on_a_gpu = pytest.mark.skipif(not GPU, reason="needs a GPU")


@on_a_gpu
@pytest.mark.parametrize("layout", ["pages", "dense", "indexed"])
@pytest.mark.parametrize("warm", [False, True])
def test_a_graph_replays_what_lies_there_then(layout, warm, monkeypatch):
    """Recorded as the first call of its kind, or as one that is made again; lengths, tables and rows are those of each replay."""
    options = {"layout": layout, "rotary": "halves", "causal": True, "s_new": 2, "return_softmax_lse": True}
    recorded = Case(0, **options)
    if warm:
        for _ in range(2):
            Case(0, **options).run()
        torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = recorded.run()
    for seed in (0, 1, 2):
        case, right = (Case(seed, **options) for _ in range(2))
        for to, x in zip((*recorded.new, recorded.k, recorded.v), (*case.new, case.k, case.v)):
            to.copy_(x)
        for name, x in recorded.named.items():
            if isinstance(x, torch.Tensor):
                x.copy_(case.named[name])
        graph.replay()
        torch.cuda.synchronize()
        wanted = by_operators(monkeypatch, right)
        assert all(map(same, outputs, wanted)) and same(recorded.k, right.k) and same(recorded.v, right.v)


@of_the_kernel
def test_a_graph_records_the_kernel_where_it_is_loaded(monkeypatch):
    """Else operators: a kernel that comes first while a graph records might end it."""
    from dfa import _torch_append_kernel as ours
    monkeypatch.setattr(ours, "_ready", set())
    runs, append, recording = [], ours.append, [True]
    monkeypatch.setattr(ours, "append", lambda *given: runs.append(1) or append(*given))
    monkeypatch.setattr(_torch_again, "is_recorded", lambda: bool(recording))
    for dtype in (torch.float32, torch.bfloat16, torch.float32):
        case, right = (Case(0, layout="dense", rotary="halves", dtype=dtype) for _ in range(2))
        wanted = by_operators(monkeypatch, right)
        assert all(map(same, case.run(), wanted)) and same(case.k, right.k)
        runs.append(dtype)
        if dtype == torch.bfloat16:
            recording.clear()
            Case(0, layout="dense", rotary="halves", dtype=torch.float32).run()
            recording.append(True)
            runs.append("loaded")
    assert runs == [torch.float32, torch.bfloat16, 1, "loaded", 1, torch.float32] and _torch_again.count() == 1


@on_a_gpu
def test_torch_compile_has_operators(monkeypatch):
    case, right = (Case(0, rotary="pairs", causal=True) for _ in range(2))
    q, k, v = case.new
    o = torch.compile(lambda q, k, v: flash_attn_with_kvcache(q, case.k, case.v, k, v, **case.named))(q, k, v)
    wanted, = by_operators(monkeypatch, right)
    torch.testing.assert_close(o, wanted, rtol=2e-2, atol=2e-2)
    torch.testing.assert_close(case.k, right.k, rtol=2e-2, atol=2e-2, equal_nan=True)


@on_a_gpu
def test_streams_and_threads_do_not_meet():
    """Each stream's call writes its own cache."""
    streams, cases, rights = [torch.cuda.Stream() for _ in range(3)], [Case(s, rotary="halves") for s in range(3)], [Case(s, rotary="halves") for s in range(3)]
    for right in rights:
        right.run()
    torch.cuda.synchronize()
    for _ in range(20):
        for stream, case in zip(streams, cases):
            with torch.cuda.stream(stream):
                case.run()
    torch.cuda.synchronize()
    assert all(same(case.k, right.k) and same(case.v, right.v) for case, right in zip(cases, rights))


@on_a_gpu
def test_a_call_made_again_goes_past_tritons_search(monkeypatch):
    from dfa import _torch_append_kernel as ours
    searched, append = [], ours.append
    monkeypatch.setattr(ours, "append", lambda *given: searched.append(1) or append(*given))
    for _ in range(3):
        Case(0, rotary="halves").run()
    assert len(searched) == 1


@on_a_gpu
def test_many_sequences_and_a_prompt(monkeypatch):
    """More sequences than one program counts, more rows than one wave of programs."""
    b, page, d, hk, hq, columns = 300, 16, 128, 8, 32, 5
    for s_new in (1, 40):
        caches = [torch.full((b * columns + 1, page, hk, d), torch.nan, dtype=DTYPE, device="cuda") for _ in range(4)]
        table = torch.randperm(b * columns, generator=torch.Generator().manual_seed(s_new)).to(torch.int32).view(b, columns).cuda()
        used = torch.arange(b, dtype=torch.int32, device="cuda") % 33
        q, k, v = (random(b, s_new, h, d, seed=n) for n, h in enumerate((hq, hk, hk)))
        cos, sin = angles(100, d // 2, DTYPE)
        o = flash_attn_with_kvcache(q, *caches[:2], k, v, cos, sin, used, block_table=table, causal=True)
        with monkeypatch.context() as patch:
            patch.setattr(_torch_append, "BY_KERNEL", False)
            patch.setattr(dfa.flash_attn, "recall", lambda key: None)
            wanted = flash_attn_with_kvcache(q, *caches[2:], k, v, cos, sin, used, block_table=table, causal=True)
        assert same(caches[0], caches[2]) and same(caches[1], caches[3])
        torch.testing.assert_close(o, wanted, rtol=0, atol=0, equal_nan=True)  # rows behind a length that are NaN are none of them

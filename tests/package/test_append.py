"""New rows of a cache by the kernel of Triton, in the first call and in calls made again: the bits of the operators that define it, nothing
written beside. Interpreted on a processor, with tensors that say they are on a GPU, and as it is on a GPU."""

import contextlib
import importlib.util
import os
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

import dfa.flash_attn  # noqa: E402
from dfa import _torch_again, _torch_append  # noqa: E402
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
    monkeypatch.setattr(_torch_append, "KERNEL_HAS_RUN", True)
    if not GPU:
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


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
        patch.setattr(_torch_append, "KERNEL_HAS_RUN", False)
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

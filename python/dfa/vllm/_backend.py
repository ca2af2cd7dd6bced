"""vLLM's three classes of an attention backend (vllm/v1/attention/backend.py of 0.33)."""

import dataclasses

import torch
from vllm.v1.attention.backend import (AttentionBackend, AttentionImpl, AttentionMetadata, AttentionMetadataBuilder, AttentionType,
                                       MultipleOf)

from dfa._shapes import MOST_WIDE
from dfa._torch_varlen import attention_varlen


@dataclasses.dataclass
class Metadata(AttentionMetadata):
    """A batch: rows of request i are query_start_loc[i] to [i + 1], and its last keys are theirs."""

    num_actual_tokens: int
    max_query_len: int
    query_start_loc: torch.Tensor  # int32 [b + 1]
    seq_lens: torch.Tensor  # int32 [b]: keys of each, new ones included
    block_table: torch.Tensor  # int32 [b, columns]
    slot_mapping: torch.Tensor  # int64 [tokens]: page · rows of a page + row, -1 for none
    causal: bool


class Builder(AttentionMetadataBuilder[Metadata]):
    """Hands on what vLLM has: nothing is planned ahead, and no graph is captured."""

    def __init__(self, kv_cache_spec, layer_names, vllm_config, device):
        super().__init__(kv_cache_spec, layer_names, vllm_config, device)

    def build(self, common_prefix_len, common_attn_metadata, fast_build=False):
        common = common_attn_metadata
        if isinstance(common.causal, torch.Tensor):
            raise NotImplementedError("dfa: causal for each request apart is not supported; accepted: True or False for all")
        for name in ("mm_req_doc_ranges", "rswa_prefix_lens"):
            if getattr(common, name, None) is not None:
                raise NotImplementedError(f"dfa: {name} is not supported; accepted: None")
        return Metadata(common.num_actual_tokens, common.max_query_len, common.query_start_loc, common.seq_lens,
                        common.block_table_tensor, common.slot_mapping, common.causal)


class Backend(AttentionBackend):
    """Pages of any size, head sizes up to 256, 16-bit and 32-bit floats, caches of the model's own type."""

    supported_dtypes = [torch.float16, torch.bfloat16, torch.float32]
    supported_kv_cache_dtypes = ["auto", "float16", "bfloat16"]
    forward_includes_kv_cache_update = False

    @staticmethod
    def get_name():
        return "CUSTOM"

    @staticmethod
    def get_impl_cls():
        return Impl

    @staticmethod
    def get_builder_cls():
        return Builder

    @staticmethod
    def get_supported_kernel_block_sizes(kv_cache_spec=None):
        return [MultipleOf(1)]

    @classmethod
    def supports_head_size(cls, head_size):
        return 0 < head_size <= MOST_WIDE

    @classmethod
    def supports_sliding_window(cls):
        return True

    @classmethod
    def supports_sink(cls):
        return True

    @classmethod
    def supports_non_causal(cls):
        return True

    @classmethod
    def supports_batch_invariance(cls):
        """On processors the bits of a sequence do not depend on its company (docs/design/0029-serving.md)."""
        return True

    @classmethod
    def supports_compute_capability(cls, capability):
        """vLLM asks this on GPUs alone."""
        return False


class Impl(AttentionImpl):
    """One layer. What it cannot do it refuses when it is made."""

    def __init__(self, num_heads, head_size, scale, num_kv_heads=None, alibi_slopes=None, sliding_window=None, kv_cache_dtype="auto",
                 logits_soft_cap=None, attn_type=AttentionType.DECODER, kv_sharing_target_layer_name=None, sinks=None):
        if attn_type != AttentionType.DECODER:
            raise NotImplementedError(f"dfa: attention type {attn_type}; accepted: {AttentionType.DECODER}")
        if kv_cache_dtype not in Backend.supported_kv_cache_dtypes:
            raise NotImplementedError(f"dfa: kv_cache_dtype {kv_cache_dtype}; accepted: {', '.join(Backend.supported_kv_cache_dtypes)}")
        self.num_heads, self.head_size, self.scale = num_heads, head_size, float(scale)
        self.num_kv_heads, self.kv_cache_dtype = num_kv_heads or num_heads, kv_cache_dtype
        self.kv_sharing_target_layer_name, self.attn_type = kv_sharing_target_layer_name, attn_type
        self.sliding_window = None if sliding_window is None else (sliding_window - 1, 0)  # vLLM counts the token itself
        slopes = None if alibi_slopes is None else torch.tensor(alibi_slopes, dtype=torch.float32)
        given = {"softcap": logits_soft_cap or None, "alibi_slopes": slopes, "sinks": sinks}
        self._logits = {name: value for name, value in given.items() if value is not None}

    def do_kv_cache_update(self, layer, key, value, kv_cache, slot_mapping):
        """New keys and values [tokens, hk, d] go to their slots; those of -1 are padding."""
        keys, values = self._halves(kv_cache)
        slots = slot_mapping.flatten()
        count, page = slots.shape[0], keys.shape[1]
        real = slots >= 0
        slots = slots[real]
        if slots.device.type == "cpu" and slots.numel() and int(slots.max()) >= keys.shape[0] * page:
            raise ValueError(f"slot_mapping names slot {int(slots.max())}, but the cache has {keys.shape[0] * page}")
        for cache, rows in ((keys, key), (values, value)):
            cache[slots // page, slots % page] = rows[:count][real].to(cache.dtype)

    def forward(self, layer, query, key, value, kv_cache, attn_metadata, output, output_scale=None, output_block_scale=None):
        """query [tokens, hq, d] → output [tokens, hq · d] or [tokens, hq, d], which is returned. Keys and values are in the cache
        already. Rows behind num_actual_tokens are padding and keep what they have."""
        if output_scale is not None or output_block_scale is not None:
            raise NotImplementedError("dfa: a quantised output is not supported; accepted: output_scale=None")
        if attn_metadata is None:  # vLLM measures memory
            return output.fill_(0)
        batch, n = attn_metadata, attn_metadata.num_actual_tokens
        keys, values = self._halves(kv_cache)
        o = attention_varlen(query[:n].view(n, self.num_heads, self.head_size), keys, values, batch.query_start_loc,
                             seqused_k=batch.seq_lens, block_table=batch.block_table, causal=batch.causal, scale=self.scale,
                             window=self._window(batch.causal), **self._logits)
        output[:n].copy_(o.reshape(output[:n].shape))
        return output

    def _window(self, causal):
        if self.sliding_window is None or causal:
            return self.sliding_window
        return self.sliding_window[0], self.sliding_window[0]

    def _halves(self, kv_cache):
        """[pages, hk, page, 2 · d], keys and values of a row beside each other, as [pages, page, hk, d] twice."""
        if kv_cache.dim() != 4 or kv_cache.shape[1] != self.num_kv_heads or kv_cache.shape[3] != 2 * self.head_size:
            raise ValueError(f"kv_cache has shape {list(kv_cache.shape)}; accepted: [pages, {self.num_kv_heads}, page, "
                             f"{2 * self.head_size}], as of vLLM 0.33")
        return kv_cache.transpose(1, 2).split(self.head_size, dim=-1)

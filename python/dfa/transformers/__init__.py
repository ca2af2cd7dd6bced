"""For models of the transformers library.

    model = AutoModel.from_pretrained(name, attn_implementation=dfa.transformers.register())
    print(dfa.transformers.enable(model))        # or: a model that is there already; says which layers it serves

What a model asks of its masks is served exactly where each query sees keys that lie together: causal, full, windows,
padding, packed sequences (by position_ids or cu_seq_lens), static caches, chunks, prefixes, blocks of images. Everything else raises
ValueError, with what would work. The table of models: docs/guide/transformers-models.md.

position_ids that begin anew tell packed sequences to causal layers of as many queries as keys, as to transformers' flash
attention: also beside a cache, and of models that do not tell their masks, where 'eager' and 'sdpa' let sequences see each
other. They are read once a forward, for which a GPU is waited for. A compiled model without a mask asserts that there are none.
Llama 4 does not hand them to its layers: its packed sequences are told by its mask alone, which it makes so where there is no cache
(use_cache=False).
"""

from transformers import AttentionInterface, AttentionMaskInterface

from dfa.transformers._attention import attention_forward
from dfa.transformers._enable import Served, enable
from dfa.transformers._mask import Mask, attention_mask
from dfa.transformers._words import NAME

__all__ = ["NAME", "Mask", "Served", "attention_forward", "attention_mask", "enable", "register"]


def register():
    """Make attn_implementation="dfa" known to transformers; returns that name.

    Registers both the attention and the function that makes its masks. Models of some types take any name and never call
    it: enable(model) tells.
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, attention_mask)
    return NAME

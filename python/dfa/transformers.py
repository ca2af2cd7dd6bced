"""For models of the transformers library.

    import dfa.transformers
    model = AutoModel.from_pretrained(name, attn_implementation=dfa.transformers.register())
"""

from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS

from dfa._attention import attention

NAME = "dfa"


def register():
    """Make attn_implementation="dfa" known to transformers; returns that name.

    Both the attention and its mask function: without the second, padding would be dropped in silence.
    """
    AttentionInterface.register(NAME, attention_forward)
    AttentionMaskInterface.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["flash_attention_2"])
    return NAME


def attention_forward(module, query, key, value, attention_mask, *, scaling=None, dropout=0.0,
                      is_causal=None, sliding_window=None, **options):
    """query [b, hq, sq, d], key and value [b, hk, sk, d], attention_mask None or [b, sk], true where a
    token is no padding → (output [b, sq, hq, d], None).

    Padding may stand before or after a sequence, not inside. Its output rows are zero. Raises ValueError
    on dropout, softcap, packed sequences, position biases and masks of other shapes.
    """
    if dropout:
        raise ValueError(f"dropout={dropout} is not supported; accepted: 0 (model.eval())")
    for name in ("softcap", "cu_seq_lens_q", "position_bias", "s_aux"):
        if options.get(name) is not None:
            raise ValueError(f"{name} is not supported by attn_implementation='{NAME}'")
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    window = None
    if sliding_window is not None:
        window = (sliding_window - 1, sliding_window - 1)
    options = {"causal": bool(causal), "window": window, "scale": scaling}
    if attention_mask is None:
        return attention(query, key, value, **options).transpose(1, 2), None
    output = query.new_zeros(query.shape[0], query.shape[2], query.shape[1], value.shape[3])
    for row, (begin, end) in enumerate(_spans(attention_mask)):
        late = attention_mask.shape[1] - query.shape[2]  # queries are the last positions of the mask
        rows, keys = slice(max(begin - late, 0), end - late), slice(begin, end)
        if rows.start >= rows.stop:
            continue
        part = attention(query[row:row + 1, :, rows], key[row:row + 1, :, keys],
                         value[row:row + 1, :, keys], **options)
        output[row, rows] = part[0].transpose(0, 1)
    return output, None


def _spans(mask):
    """[begin, end) of each sequence in a padding mask."""
    if mask.dim() != 2:
        raise ValueError(f"an attention mask of shape {tuple(mask.shape)} is not supported; accepted: "
                         "a padding mask [batch, keys]")
    mask = mask.bool()
    begins = mask.int().argmax(dim=1)
    lengths = mask.sum(dim=1)
    spans = [(begin, begin + length) for begin, length in zip(begins.tolist(), lengths.tolist())]
    for row, (begin, end) in enumerate(spans):
        if not mask[row, begin:end].all():
            raise ValueError(f"padding inside sequence {row} is not supported; accepted: before or after")
    return spans

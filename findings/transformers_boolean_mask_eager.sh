#!/usr/bin/env bash
# transformers 5.24.0 (masking_utils.py: a 4-D mask is returned as it is, to every implementation): a boolean 4-D attention_mask,
# True where a token is seen, which is also what the library itself builds for sdpa, is right with sdpa; eager attention adds it to the
# scores, where True counts as 1 and hides nothing. Causality is gone too, since the caller's mask takes its place. A mask of 0 and 1 in
# integers does the same. Nothing is said.
# Seen: a causal boolean mask, logits against those without a mask: sdpa off by 0.0, eager by 6.9; eager's first token sees the last
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 transformers==5.24.0 numpy
"$a/v/bin/python" - <<'P'
import torch, transformers

config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                  vocab_size=50, initializer_range=0.3)
tokens = torch.randint(50, (1, 6), generator=torch.Generator().manual_seed(1))
other = tokens.clone()
other[0, -1] = (other[0, -1] + 1) % 50
mask = torch.ones(1, 1, 6, 6, dtype=torch.bool).tril()
off, moved = {}, {}
for name in ("sdpa", "eager"):
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=name).eval()
    with torch.no_grad():
        masked = model(tokens, attention_mask=mask).logits
        off[name] = (masked - model(tokens).logits).abs().max().item()
        moved[name] = (masked - model(other, attention_mask=mask).logits)[0, 0].abs().max().item()
print("off", off, "first token's logits move with the last token by", moved)
raise SystemExit(not (off["sdpa"] < 1e-4 and moved["sdpa"] == 0 and off["eager"] > 0.1 and moved["eager"] > 0.01))
P

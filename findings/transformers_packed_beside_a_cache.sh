#!/usr/bin/env bash
# transformers 5.24.0 (masking_utils.py, which looks for packed sequences only where there is no cache): position_ids that begin anew tell a
# model that its row holds several sequences, but with a cache, which every model makes by default, in train() too, they are not looked at.
# Eager attention and sdpa then let tokens see the sequence before their own; use_cache=False is right. Nothing is said.
# Seen: logits of a second sequence in a row off by 10.1 by default, by 6e-06 with use_cache=False
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 transformers==5.24.0 numpy
"$a/v/bin/python" - <<'P'
import torch, transformers

config = transformers.LlamaConfig(hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
                                  vocab_size=50, initializer_range=0.3)
tokens, places = torch.randint(50, (1, 15), generator=torch.Generator().manual_seed(1)), torch.cat([torch.arange(8), torch.arange(7)])[None]

def off(name, **options):
    """How far the second sequence's logits in a packed row are from its own."""
    torch.manual_seed(1)
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation=name).train()
    with torch.no_grad():
        packed = model(tokens, position_ids=places, **options).logits[:, 8:]
        alone = model(tokens[:, 8:]).logits
    return (packed - alone).abs().max().item()

for name in ("eager", "sdpa"):
    by_default, without = off(name), off(name, use_cache=False)
    print(name, "off by", by_default, "by default,", without, "with use_cache=False")
    if not (by_default > 0.01 and without < 1e-4):
        raise SystemExit(1)
P

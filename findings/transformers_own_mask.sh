#!/usr/bin/env bash
# transformers 5.24.0 (models/bloom/modeling_bloom.py): BloomForCausalLM takes any registered attention name and never calls
# it. Registered with the mask function of flash_attention_2, as for other models, it gets no mask at all, and its own attention then
# sees later tokens: a causal model's first logits change with the last token. XGLM, MVP and TrOCR do likewise.
# Seen: the attention was called 0 times; the first token's logits move by more than 0.01 with the last token (eager: 0.0)
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 transformers==5.24.0 numpy
"$a/v/bin/python" - <<'P'
import torch, transformers
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS as masks
calls = []
transformers.AttentionInterface.register("mine", lambda *args, **options: calls.append(1))
transformers.AttentionMaskInterface.register("mine", masks["flash_attention_2"])
config = transformers.BloomConfig(hidden_size=64, n_layer=2, n_head=4, vocab_size=50, initializer_range=0.3)

def moved(name):
    torch.manual_seed(1)
    model = transformers.BloomForCausalLM._from_config(config, attn_implementation=name).eval()
    one, other = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[3, 4, 5, 7]])
    with torch.no_grad():
        return (model(one).logits[0, 0] - model(other).logits[0, 0]).abs().max().item()

eager, mine = moved("eager"), moved("mine")
print("called", len(calls), "times; first token's logits move by", mine, "eager:", eager)
raise SystemExit(not (not calls and eager == 0 and mine > 0.01))
P

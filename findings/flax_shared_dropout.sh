#!/usr/bin/env bash
# Flax 0.12.8 (flax/nnx/nn/attention.py and flax/linen/attention.py, broadcast_dropout=True by default): dropout of the attention's
# probabilities draws one mask for all sequences of a batch and all heads, since the draw has the shape (1, 1, queries, keys). Two equal
# rows of a batch come out equal in training, heads drop the same keys together. PyTorch and FlashAttention draw each for itself.
# Seen: nnx and linen: the masks of 3 sequences and 4 heads are all the same; with broadcast_dropout=False none is
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q flax==0.12.8 jax==0.10.2 numpy==2.4.6
JAX_PLATFORMS=cpu "$a/v/bin/python" -W ignore - <<'P'
import jax, numpy as np
from flax import linen
from flax.nnx.nn import attention as nnx

q, k = jax.random.normal(jax.random.key(0), (2, 3, 16, 4, 8))

def shared(library, **options):
    weights = library.dot_product_attention_weights(q, k, dropout_rate=0.5, dropout_rng=jax.random.key(1), deterministic=False, **options)
    dropped = (np.asarray(weights) == 0).reshape(12, -1)
    return sum(bool((row == dropped[0]).all()) for row in dropped[1:])

seen = {}
for library in (nnx, linen):
    seen[library.__name__] = shared(library), shared(library, broadcast_dropout=False)
print("of 11 further masks, the same as the first: by default, with broadcast_dropout=False", seen)
raise SystemExit(set(seen.values()) != {(11, 0)})
P

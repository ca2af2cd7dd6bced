#!/usr/bin/env bash
# NumPy 2.4.6 with ml_dtypes 0.6.0, which is what np.asarray of a JAX array in bfloat16 gives: sum and mean add in bfloat16 from left to right
# and stand still at 256, at 16 in float8_e4m3fn, while float16 is added in pairs and its mean in float32. dot, @ and norm of the same
# arrays are right, so a check by norms passes and one by means does not. dtype=np.float32 is right (numpy/_core/_methods.py, _mean, widens
# float16 alone; jax-ml/ml_dtypes#63).
# Seen: mean of 5000 ones: float16 1.0, bfloat16 0.0512695, float8_e4m3fn 0.00390625; bfloat16 @: 5000.0, mean with dtype=float32: 1.0
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q numpy==2.4.6 ml_dtypes==0.6.0
"$a/v/bin/python" - <<'P'
import ml_dtypes, numpy as np

means, products, widened = {}, {}, {}
for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
    ones = np.ones(5000, dtype)
    means[dtype.__name__], products[dtype.__name__] = float(ones.mean()), float(ones @ ones)
    widened[dtype.__name__] = float(ones.mean(dtype=np.float32))
print("mean", means, "@", products, "mean with dtype=float32", widened)
wrong = means["float16"] == 1 and means["bfloat16"] < 0.06 and means["float8_e4m3fn"] < 0.01
raise SystemExit(not (wrong and abs(products["bfloat16"] - 5000) < 20 and set(widened.values()) == {1.0}))
P

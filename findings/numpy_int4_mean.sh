#!/usr/bin/env bash
# NumPy 2.4.6 with ml_dtypes 0.6.0: NumPy's documentation has sum of a short integer type add in the platform's integer, mean of integers in
# float64, and an integer array times a Python float be float64; int8 does so. int4 and uint4 are no integers to NumPy
# (np.issubdtype(int4, np.integer) is False): sum and mean add in 4 bits and wrap in silence, the mean is cut to 4 bits as well, and
# a float makes them float16, so a quantized weight times its scale has 11 bits, and is 0 at a small scale.
# Seen, int8 and int4: sum of [1, 2, 3, 4] 10 and -6, mean 2.5 and -1; mean of 64 times 3 3.0 and 0; 7 * 1e-9 7e-09 and 0.0,
# 7 * 0.0123 0.0861 and 0.08606. uint4: sum of [15, 1] 0
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q numpy==2.4.6 ml_dtypes==0.6.0
"$a/v/bin/python" -W ignore - <<'P'
import ml_dtypes, numpy as np

def seen(dtype):
    few, many, seven = np.array([1, 2, 3, 4]).astype(dtype), np.full(64, 3).astype(dtype), np.array([7]).astype(dtype)
    return float(few.sum()), float(few.mean()), float(many.mean()), (seven * 1e-9).item(), (seven * 0.0123).item()

eight, four = seen(np.int8), seen(ml_dtypes.int4)
carry = int(np.array([15, 1]).astype(ml_dtypes.uint4).sum())
print("int8", *eight, "int4", *four, "uint4, 15 + 1:", carry)
right = np.allclose(eight, (10, 2.5, 3, 7e-9, 0.0861), rtol=1e-12)
raise SystemExit(not (right and four[:4] == (-6, -1, 0, 0) and four[4] == float(np.float16(7) * np.float16(0.0123)) and carry == 0))
P

#!/usr/bin/env bash
# NumPy 2.4.6 with ml_dtypes 0.6.0: to NumPy bfloat16 and float8 are no floating-point types (np.issubdtype(bfloat16, np.inexact) is
# False), and functions that look for NaN only in those do nothing in silence: nan_to_num gives the NaN back, nansum and nanmean are NaN
# (numpy/lib/_nanfunctions_impl.py, _replace_nan), np.sort leaves an array with a NaN unsorted, and np.unique of one gives numbers
# twice. np.isnan is right.
# Seen, of [3, nan, 1, 2]: nan_to_num float16 [3, 0, 1, 2], bfloat16 as it was; nansum 6.0 and nan; sort [1, 2, 3, nan] and as it was
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q numpy==2.4.6 ml_dtypes==0.6.0
"$a/v/bin/python" -W ignore - <<'P'
import ml_dtypes, numpy as np

def seen(dtype):
    x = np.array([3, np.nan, 1, 2], np.float32).astype(dtype)
    assert np.isnan(x).tolist() == [False, True, False, False]
    found = [np.nan_to_num(x), np.nansum(x), np.sort(x), np.unique(np.concatenate([x, x]))]
    return [np.asarray(y, np.float32).tolist() for y in found]

half, brain, eight = (seen(dtype) for dtype in (np.float16, ml_dtypes.bfloat16, ml_dtypes.float8_e5m2))
for name, found in (("float16", half), ("bfloat16", brain), ("float8_e5m2", eight)):
    print(name, "nan_to_num, nansum, sort, unique twice:", *found)
right = half[0] == [3, 0, 1, 2] and half[1] == 6 and half[2][:3] == [1, 2, 3] and len(half[3]) == 4
wrong = all(np.isnan(found[0][1]) and np.isnan(found[1]) and found[2][0] == 3 and found[3].count(3) == 2 for found in (brain, eight))
raise SystemExit(not (right and wrong))
P

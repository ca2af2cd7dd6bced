#!/usr/bin/env bash
# PyTorch 2.15.0 on the CPU: float64 to float16 goes through float32 and rounds twice; NumPy 2.4.6 rounds once. A number just
# above the middle between two halves falls to the lower one, and one below 65520, the first that is infinity, becomes infinity. NumPy with
# ml_dtypes 0.6.0 rounds float64 to bfloat16 and float8 twice too. A float64 reference that is rounded for an exact comparison
# is thus off by one in the last place now and then, and by which library it was rounded matters.
# Seen: 1 + 2^-11 + 2^-40: NumPy 1.0009765625, PyTorch 1.0; 65519.999999999: NumPy 65504.0, PyTorch inf
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy==2.4.6 ml_dtypes==0.6.0
"$a/v/bin/python" -W ignore - <<'P'
import ml_dtypes, numpy as np, torch

x = np.array([1 + 2.0**-11 + 2.0**-40, 65519.999999999, 2.0**-25 + 2.0**-60])
numpy_half, torch_half = x.astype(np.float16).tolist(), torch.from_numpy(x).to(torch.float16).tolist()
print("float16: NumPy", numpy_half, "PyTorch", torch_half)
above = np.array([1 + 2.0**-8 + 2.0**-40])
brain = float(above.astype(ml_dtypes.bfloat16)[0]), torch.from_numpy(above).to(torch.bfloat16).item()
print("bfloat16 of 1 + 2^-8 + 2^-40, nearest 1.0078125: ml_dtypes, PyTorch", brain)
raise SystemExit(not (numpy_half == [1.0009765625, 65504, 2.0**-24] and torch_half == [1, float("inf"), 0] and brain == (1, 1)))
P

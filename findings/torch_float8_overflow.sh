#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/headeronly/util/Float8_e4m3fn.h) and ml_dtypes 0.6.0 (by which JAX and NumPy cast): what a float8 has no
# number for. PyTorch saturates one of its four formats, infinity included, so a -inf becomes a finite -448; the others give NaN or infinity.
# ml_dtypes saturates none: 464 is the last that becomes 448. float8_e4m3fn from one library is thus no oracle for the other, and an
# isfinite check after the cast finds overflow in one alone.
# Seen: of 465 and -inf: PyTorch e4m3fn 448, -448; ml_dtypes e4m3fn nan, nan; both: e4m3fnuz nan, nan; of 1e6: e5m2 inf, e5m2fnuz nan
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy==2.4.6 ml_dtypes==0.6.0
"$a/v/bin/python" -W ignore - <<'P'
import ml_dtypes, numpy as np, torch

x = np.array([464, 465, 1e6, -np.inf, np.nan], np.float32)
seen = {}
for name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"):
    ours = torch.from_numpy(x).to(getattr(torch, name)).float().tolist()
    theirs = x.astype(getattr(ml_dtypes, name)).astype(np.float32).tolist()
    seen[name] = repr(ours), repr(theirs)
    print(name, "PyTorch", ours, "ml_dtypes", theirs)
expected = {"float8_e4m3fn": ("[448.0, 448.0, 448.0, -448.0, nan]", "[448.0, nan, nan, nan, nan]"),
            "float8_e4m3fnuz": ("[nan, nan, nan, nan, nan]",) * 2,
            "float8_e5m2": ("[448.0, 448.0, inf, -inf, nan]",) * 2, "float8_e5m2fnuz": ("[448.0, 448.0, nan, nan, nan]",) * 2}
raise SystemExit(seen != expected)
P

#!/usr/bin/env bash
# MLX 0.32.4 (mlx.core.to_fp8, which is e4m3): a NaN becomes 448, the largest number, and a -inf -448, though the format has a NaN, which from_fp8
# reads as one. An activation that was NaN is finite after a round trip. The docstring says "convert"; PyTorch keeps the NaN.
# Seen: nan, inf, -inf, 1e4: bytes 126, 126, 254, 126, read back 448.0, 448.0, -448.0, 448.0; bytes 127 and 255 are read as nan
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q "mlx[cpu]==0.32.4"
"$a/v/bin/python" - <<'P'
import mlx.core as mx

eight = mx.to_fp8(mx.array([float("nan"), float("inf"), -float("inf"), 1e4]))
back = mx.from_fp8(eight, dtype=mx.float32).tolist()
nans = mx.from_fp8(mx.array([127, 255], dtype=mx.uint8), dtype=mx.float32).tolist()
print("bytes", eight.tolist(), "read back", back, "bytes 127 and 255", nans)
raise SystemExit(not (back == [448, 448, -448, 448] and all(x != x for x in nans)))
P

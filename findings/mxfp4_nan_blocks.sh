#!/usr/bin/env bash
# MLX 0.32.4 on the CPU (mlx.core.quantize) and gguf 0.19.0 (gguf.quants): one NaN or infinity among 32 numbers that become mxfp4. The format can
# say it: its scale has a NaN, byte 255, which makes the block NaN (OCP Microscaling Formats 1.0; ml_dtypes reads it so). Both write
# a finite scale instead, and the 31 healthy neighbours are 0 with the one that was not: no NaN is left to find and a block
# of weights is gone. MLX's mxfp8 makes the whole block 896. The older Q8_0 and F16 of gguf keep the NaN.
# Seen: of 32 ones with a NaN, or an infinity, in place 3: mxfp4 32 zeros in both libraries; MLX mxfp8 896 times 32; gguf Q8_0 nan
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q "mlx[cpu]==0.32.4" gguf==0.19.0 numpy==2.4.6 ml_dtypes==0.6.0
"$a/v/bin/python" -W ignore - <<'P'
import gguf, ml_dtypes, mlx.core as mx, numpy as np

def through_mlx(block, mode):
    return np.array(mx.dequantize(*mx.quantize(mx.array(block), mode=mode), mode=mode, dtype=mx.float32))[0]

def through_gguf(block, kind):
    return gguf.quants.dequantize(gguf.quants.quantize(block, kind), kind)[0]

kinds = gguf.GGMLQuantizationType
ways = {"MLX mxfp4": (through_mlx, "mxfp4"), "gguf MXFP4": (through_gguf, kinds.MXFP4), "MLX mxfp8": (through_mlx, "mxfp8"),
        "gguf Q8_0": (through_gguf, kinds.Q8_0)}
fine = np.isnan(np.array([255], np.uint8).view(ml_dtypes.float8_e8m0fnu).astype(np.float32)[0])
for odd in (1.0, np.nan, np.inf):
    block = np.ones((1, 32), np.float32)
    block[0, 3] = odd
    for name, (way, kind) in ways.items():
        kept = way(block, kind)
        print("31 ones and", odd, name, "numbers", np.unique(kept).tolist())
        if odd == 1.0:
            fine &= np.allclose(kept, 1, rtol=0.01)
        elif name.endswith(("mxfp4", "MXFP4")):
            fine &= not kept.any()
        else:
            fine &= np.isnan(kept).all() if name == "gguf Q8_0" else np.isfinite(kept).all() and (kept != 1).all()
raise SystemExit(not fine)
P

#!/usr/bin/env bash
# MLX 0.32.4 on the CPU (mlx.core.quantize, mlx.nn.QuantizedLinear.from_linear) and torchao 0.18.0 (NVFP4Tensor.to_nvfp4): nvfp4 without a scale
# for the whole tensor, which is an optional argument of theirs (global_scale, per_tensor_scale) and which from_linear has no
# way to be given. The scale of 16 numbers is an e4m3: where the largest of the 16 is below about 0.006 MLX rounds it to 0,
# torchao stops at 2^-6, and either way the weights are 0. NVIDIA's format has the second scale for this, as torchao's settings for
# whole models do; mxfp4, whose scales reach far lower, keeps the same weights. Whether a layer works hangs on its weights' size.
# Seen, relative error at a deviation of 0.02, 0.002, 0.001: MLX nvfp4 0.10, 0.96, 1.00, with its scale 0.09 in all, mxfp4 0.12
# in all; torchao nvfp4 0.13, 0.92, 1.00, with its scale 0.09 in all; the quantized layer's output at 0.001: all zeros
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q "mlx[cpu]==0.32.4" torch==2.15.0 torchao==0.18.0 numpy==2.4.6
"$a/v/bin/python" -W ignore - <<'P'
import mlx.core as mx, mlx.nn as nn, numpy as np, torch
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, per_tensor_amax_to_scale

def off(given, kept):
    return round(float(np.linalg.norm(np.asarray(kept) - given) / np.linalg.norm(given)), 3)

def through_mlx(weights, **how):
    packed = mx.quantize(mx.array(weights), **how)
    return mx.dequantize(*packed, dtype=mx.float32, **how)

numbers = np.random.default_rng(0).standard_normal((64, 512)).astype(np.float32)
right = wrong = True
for deviation in (0.02, 0.002, 0.001):
    weights = numbers * np.float32(deviation)
    tensor, largest = torch.from_numpy(weights), mx.array(np.abs(weights).max())
    scale = per_tensor_amax_to_scale(tensor.abs().max())
    alone = off(weights, through_mlx(weights, mode="nvfp4")), off(weights, NVFP4Tensor.to_nvfp4(tensor).dequantize(torch.float32))
    scaled = (off(weights, through_mlx(weights, mode="nvfp4", global_scale=largest)),
              off(weights, NVFP4Tensor.to_nvfp4(tensor, per_tensor_scale=scale).dequantize(torch.float32)))
    micro = off(weights, through_mlx(weights, mode="mxfp4"))
    print("deviation", deviation, "nvfp4 (MLX, torchao)", alone, "with the tensor's scale", scaled, "mxfp4 (MLX)", micro)
    right &= max(*scaled, micro) < 0.15
    wrong &= max(alone) < 0.15 if deviation == 0.02 else min(alone) > 0.7
layer = nn.Linear(512, 64, bias=False)
layer.weight = mx.array(weights)
said = nn.QuantizedLinear.from_linear(layer, mode="nvfp4")(mx.ones((1, 512)))
print("layer at 0.001: largest output", mx.abs(layer(mx.ones((1, 512)))).max().item(), "quantized", mx.abs(said).max().item())
raise SystemExit(not (right and wrong and mx.abs(said).max().item() == 0))
P

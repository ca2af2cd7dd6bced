#!/usr/bin/env bash
# PyTorch 2.15.0, ml_dtypes 0.6.0 (by which JAX and NumPy cast), ONNX Runtime 1.32.0 and onnx 1.23.2's reference: float32 to float8_e8m0fnu, the
# power of two that scales a block in mxfp4 and mxfp8. No two agree. 0, which is what an empty block's largest number is,
# becomes NaN in ml_dtypes, and so does the block. 1.2 goes to the nearest in PyTorch and ml_dtypes and up in ONNX
# (round_mode="up"); none cuts 1.5 down, as the recipe of OCP Microscaling Formats 1.0 for a scale would. Infinity is E8M0_MAX
# by Cast's documentation (opset 24, "saturate + up"); ONNX Runtime does so, ONNX's reference gives NaN.
# Seen, of 0, 1.2, 1.5, inf: PyTorch 5.9e-39, 1, 2, nan; ml_dtypes nan, 1, 2, nan; ONNX Runtime 5.9e-39, 2, 2, 1.7e38; reference 5.9e-39,
# 2, 2, nan (5.9e-39 is 2^-127, the least there is); a block of zeros over its scale: 0 in PyTorch, nan in ml_dtypes
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6 ml_dtypes==0.6.0
"$a/v/bin/python" -W ignore - <<'P'
import ml_dtypes, numpy as np, onnxruntime, torch
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

x = np.array([0, 1.2, 1.5, np.inf], np.float32)
there = helper.make_node("Cast", ["x"], ["scale"], to=TensorProto.FLOAT8E8M0)
back = helper.make_node("Cast", ["scale"], ["y"], to=TensorProto.FLOAT)
ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, [x.size]) for end in ("x", "y")]
model = helper.make_model(helper.make_graph([there, back], "scales", ends[:1], ends[1:]), ir_version=12,
                          opset_imports=[helper.make_opsetid("", 24)])
options = onnxruntime.SessionOptions()
options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
least, most = 2.0**-127, 2.0**127
seen = {"PyTorch": (torch.from_numpy(x).to(torch.float8_e8m0fnu).float().numpy(), [least, 1, 2, np.nan]),
        "ml_dtypes": (x.astype(ml_dtypes.float8_e8m0fnu).astype(np.float32), [np.nan, 1, 2, np.nan]),
        "ONNX Runtime": (session.run(None, {"x": x})[0], [least, 2, 2, most]),
        "ONNX's reference": (ReferenceEvaluator(model).run(None, {"x": x})[0], [least, 2, 2, np.nan])}
for name, (found, _) in seen.items():
    print(name, "of", x.tolist(), found.tolist())
zeros = np.zeros(32, np.float32)
blocks = [zeros / seen[name][0][0] for name in ("PyTorch", "ml_dtypes")]
print("a block of zeros over its scale", *(block[0] for block in blocks))
same = all(np.array_equal(found, np.array(want, np.float32), equal_nan=True) for found, want in seen.values())
raise SystemExit(not (same and not blocks[0].any() and np.isnan(blocks[1]).all()))
P

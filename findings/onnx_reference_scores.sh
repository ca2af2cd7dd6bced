#!/usr/bin/env bash
# onnx 1.23.2 (onnx/reference/ops/op_attention.py) and ONNX Runtime 1.32.0: of Attention's fourth output qk_matmul_output_mode 0 is "the output of
# qk matmul" and 1 "the output after the softcap" (operator's documentation, opset 23 and 24). ONNX's own reference, by which
# implementations are judged, gives the softcapped scores for both; ONNX Runtime does as documented. Without a softcap they agree.
# Seen: scale·q·k = 4, softcap 1: mode 0: reference 0.9993, ONNX Runtime 4.0; mode 1: 0.9993 both
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
"$a/v/bin/python" -W ignore - <<'P'
import numpy as np, onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

q = k = v = np.full((1, 1, 1, 4), 1, np.float32)

def scores(mode, opset):
    node = helper.make_node("Attention", ["q", "k", "v"], ["y", "", "", "scores"], scale=1.0, softcap=1.0, qk_matmul_output_mode=mode)
    ins = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 1, 1, 4]) for name in "qkv"]
    outs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("y", "scores")]
    model = helper.make_model(helper.make_graph([node], "attention", ins, outs), ir_version=10,
                              opset_imports=[helper.make_opsetid("", opset)])
    feed = {"q": q, "k": k, "v": v}
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return round(ReferenceEvaluator(model).run(None, feed)[1].item(), 4), round(session.run(None, feed)[1].item(), 4)

seen = {(opset, mode): scores(mode, opset) for opset in (23, 24) for mode in (0, 1)}
for (opset, mode), (reference, runtime) in seen.items():
    print("opset", opset, "mode", mode, "reference", reference, "ONNX Runtime", runtime)
raise SystemExit(any(seen[opset, 0] != (0.9993, 4.0) or seen[opset, 1] != (0.9993, 0.9993) for opset in (23, 24)))
P

"""A stand-in for the program that runs PyTorch: attention in plain Python, forward and fp32 only.

FAKE_TORCH says how it misbehaves: wrong, dies, nonsense, absent.
"""
import array
import json
import math
import os
import sys

MODE = os.environ.get("FAKE_TORCH", "")
ways = {}  # id: how it is launched


def attend(folder, p):
    tensors = {n: array.array("f", open(os.path.join(folder, n), "rb").read()) for n in "qkv"}
    q, k, v = (tensors[n] for n in "qkv")
    out = array.array("f", bytes(4 * p["b"] * p["hq"] * p["sq"] * p["dv"]))
    for head in range(p["b"] * p["hq"]):
        for i in range(p["sq"]):
            row = (head * p["sq"] + i) * p["d"]
            scores = [p["scale"] * sum(q[row + x] * k[(head * p["sk"] + j) * p["d"] + x]
                                       for x in range(p["d"])) for j in range(p["sk"])]
            weights = [math.exp(s - max(scores)) for s in scores]
            for x in range(p["dv"]):
                total = sum(w * v[(head * p["sk"] + j) * p["dv"] + x] for j, w in enumerate(weights))
                out[(head * p["sq"] + i) * p["dv"] + x] = total / sum(weights)
    if MODE == "wrong":
        out[3] += 0.5
    open(os.path.join(folder, "o"), "wb").write(out.tobytes())


def answer(request):
    global folder, problem
    op = request["op"]
    if op == "hello":
        if MODE == "absent":
            return {"ok": False, "status": "unsupported", "reason": "no PyTorch here"}
        return {"ok": True, "version": "Fake 1.0"}
    if op == "load":
        folder, problem = request["folder"], request["problem"]
        made = open(os.path.join(folder, "q"), "rb").read()
        assert len(made) == 4 * problem["b"] * problem["hq"] * problem["sq"] * problem["d"]
    if op == "make" and MODE == "cannot compile" and request["launch"] == "compile-max-autotune":
        return {"ok": False, "status": "failed", "reason": "BackendCompilerFailed: no compiler"}
    if op == "make":
        ways[request["id"]] = request["launch"]
    if op == "make" and request["kind"] == "cudnn":
        return {"ok": False, "status": "unsupported", "reason": "No available kernel"}
    if op == "make" and request["kind"] == "math":
        return {"ok": False, "status": "out_of_memory", "reason": "tried to allocate 99 GiB"}
    if op == "run" and MODE == "dies":
        print("a last word", file=sys.stderr)
        sys.exit(1)
    if op == "outputs":
        attend(folder, problem)
    if MODE == "nonsense" and op == "time":
        return "what?"
    if op == "time" and ways[request["id"]].startswith("compile"):
        return {"ok": True, "seconds": 5e-4}
    return {"ok": True, "seconds": 1e-3, "bytes": 4096}


for line in sys.stdin:
    print(json.dumps(answer(json.loads(line))), flush=True)

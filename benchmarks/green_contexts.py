#!/usr/bin/env python3
"""What a part of a GPU gives: calls in green contexts of 64 and 16 multiprocessors beside the whole card's and cuDNN's.

Usage: python3 benchmarks/green_contexts.py     needs the package dfa, PyTorch with torch.cuda.green_contexts and a GPU

A line a problem, a column a part: milliseconds, the share of the whole card's rate that its multiprocessors have
(1: as many times slower as they are fewer; above, as the card's power limit does not hold a part back), and the speed
beside cuDNN's of the same part. Backwards are called directly, as autograd's thread has no part, and have no peer.
Every part first holds one call against PyTorch in fp32.
"""
import torch
from torch.cuda.green_contexts import GreenContext
from torch.nn.attention import SDPBackend, sdpa_kernel

import dfa
from cuda_bursts import seconds
from dfa._torch import _call, _threads

PROBLEMS = [("fwd", False, 4, 16, 4096, 128), ("fwd", True, 4, 16, 4096, 128), ("fwd", True, 16, 16, 1024, 128),
            ("fwd", False, 4, 32, 4096, 64), ("fwd", False, 4, 8, 4096, 256),
            ("bwd", False, 4, 16, 4096, 128), ("bwd", True, 4, 16, 4096, 128), ("bwd", True, 4, 32, 4096, 64)]
PARTS, SECONDS = (64, 16), 0.15


def milliseconds(call):
    seconds(call, 2)
    return 1e3 * seconds(call, max(2, int(SECONDS / seconds(call, 1))))


def calls_of(kind, causal, b, h, s, d):
    q, k, v, d_o = (torch.randn(b, h, s, d, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    if kind == "bwd":
        o, lse = dfa.attention(q, k, v, causal=causal, return_lse=True)
        call, _ = _call(causal, None, None, False, "auto", _threads())
        return {"dfa": lambda: call.backward(d_o, q, k, v, o, lse)}

    def cudnn():
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
    return {"dfa": lambda: dfa.attention(q, k, v, causal=causal), "cudnn": cudnn}


def check():
    q, k, v = (torch.randn(2, 4, 300, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    right = torch.nn.functional.scaled_dot_product_attention(q.float(), k.float(), v.float())
    error = float((dfa.attention(q, k, v).float() - right).abs().max())
    if not error < 0.03:
        raise SystemExit(f"differs from PyTorch in fp32 by {error}")


def main():
    card = torch.cuda.get_device_properties(0)
    whole, times = card.multi_processor_count, {}
    for part in (whole, *PARTS):
        context = None if part == whole else GreenContext.create(part, 0)
        if context:
            context.set_context()
        check()
        for problem in PROBLEMS:
            times[problem, part] = {name: milliseconds(call) for name, call in calls_of(*problem).items()}
        if context:
            context.pop_context()
    print(f"{card.name}, PyTorch {torch.__version__}; bf16; of {whole}, 64 and 16 multiprocessors: ms, share, beside cuDNN")
    for problem in PROBLEMS:
        kind, causal, b, h, s, d = problem
        cells = []
        for part in (whole, *PARTS):
            here, all_ = times[problem, part], times[problem, whole]
            share = all_["dfa"] / here["dfa"] * whole / part
            peer = f"{here['cudnn'] / here['dfa']:.2f}" if "cudnn" in here else "-"
            cells.append(f"{here['dfa']:8.3f} {share:5.2f} {peer:>5}")
        print(f"{kind} {'causal ' if causal else ''}b{b} h{h} s{s} d{d}".ljust(32) + "   ".join(cells))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Added biases with their gradient: dfa.attention beside PyTorch's efficient kernel, in turns on one card, forward and backward.

Usage: python3 benchmarks/biases.py [--only TEXT]    needs the package dfa, PyTorch and a GPU

bf16, tensors [b, h, s, d], a bias [1 or b, h, s, s] in bf16 that is learned. A line a problem and pass: medians of bursts taken in
turns, in microseconds, of dfa, of torch.nn.functional.scaled_dot_product_attention with SDPBackend.EFFICIENT_ATTENTION, which takes a
bias of all batches and leaves their sum to PyTorch, and their ratio. o and all four gradients are first held against each other.
"""
import argparse

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

import dfa
from cuda_bursts import medians

DEVICE = "cuda"
# T5, AlphaFold's rows of pairs, a bias of each batch, wider heads.
ROWS = [(8, 16, 1024, 64, 1), (64, 4, 256, 32, 1), (2, 8, 2048, 64, 2), (4, 16, 2048, 128, 1)]


def efficient(q, k, v, bias):
    with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(q.shape[0], -1, -1, -1))


CALLS = {"dfa": lambda q, k, v, bias: dfa.attention(q, k, v, bias=bias), "efficient": efficient}


def tensors_of(b, h, s, d, batches):
    shapes = [(b, h, s, d)] * 3 + [(batches, h, s, s)]
    return [torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for shape in shapes]


def held(inputs, d_o):
    """{which: o} of calls that agree with each other."""
    outputs = {which: call(*inputs) for which, call in CALLS.items()}
    results = [(o, *torch.autograd.grad(o, inputs, d_o, retain_graph=True)) for o in outputs.values()]
    for name, ours, theirs in zip(("o", "dq", "dk", "dv", "dbias"), *results):
        if not (ours.float() - theirs.float()).norm() < 0.02 * theirs.float().norm():
            raise SystemExit(f"{name} differs")
    return outputs


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="")
    only = parser.parse_args().only
    torch.manual_seed(1)
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}; us: dfa, efficient, efficient / dfa")
    for row in ROWS:
        b, h, s, d, batches = row
        name = f"b{b} h{h} s{s} d{d} bias({'b' if batches > 1 else 1},h)"
        if only not in name:
            continue
        inputs = tensors_of(*row)
        d_o = torch.randn_like(inputs[0])
        outputs = held(inputs, d_o)
        backward = {which: lambda o=o: torch.autograd.grad(o, inputs, d_o, retain_graph=True) for which, o in outputs.items()}
        with torch.no_grad():
            forward = medians({which: lambda call=call: call(*inputs) for which, call in CALLS.items()})
        for kind, us in (("fwd", forward), ("bwd", medians(backward))):
            print(f"{kind} bf16 {name:28} {us['dfa']:8.0f} {us['efficient']:8.0f}  {us['efficient'] / us['dfa']:.2f}", flush=True)


if __name__ == "__main__":
    main()

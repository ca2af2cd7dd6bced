#!/usr/bin/env python3
"""Texts of users: dfa.attention beside compiled flex_attention, in turns on one card, forward and backward.

Usage: python3 benchmarks/texts.py [--n N] [--b N] [--only TEXT]    needs the package dfa, PyTorch and a GPU

Causal attention of tensors [b, h, s, d] in bf16. A line a problem: medians of bursts taken in turns, in microseconds, of dfa with
the text, of compiled flex_attention with the same function, and their ratio; where the text hides pairs, flex_attention has its block
mask, and so has a second column of dfa (dfa.torch.block_mask), which passes over tiles that are hidden. Both are first held
against softmax in fp32 of one head, gradients against each other.
"""
import argparse

import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import dfa
import dfa.torch
from cuda_bursts import medians

SCORES = {"score - 0.05f * abs(q_idx - kv_idx)": lambda s, b, h, q, k: s - 0.05 * (q - k).abs(),
          "30.0f * tanh(score / 30.0f)": lambda s, b, h, q, k: 30 * torch.tanh(s / 30)}
MASKS = {"q_idx / 1024 == kv_idx / 1024": lambda b, h, q, k: q // 1024 == k // 1024}
SHAPES = [(32, 64), (16, 128)]


def calls_of(text, q, k, v):
    """{column: a forward}, and what the fp32 scores of head 0 become."""
    b, h, n, _ = q.shape
    flex = torch.compile(flex_attention)
    causal = lambda _b, _h, i, j: i >= j
    if text in SCORES:
        function = SCORES[text]
        mask = create_block_mask(causal, None, None, n, n, device="cuda")
        return {"dfa": lambda: dfa.attention(q, k, v, causal=True, score_mod=text),
                "flex": lambda: flex(q, k, v, score_mod=function, block_mask=mask)}, lambda s, i, j: function(s, 0, 0, i, j)
    function = MASKS[text]
    mask = create_block_mask(lambda b, h, i, j: causal(b, h, i, j) & function(b, h, i, j), None, None, n, n, device="cuda")
    ours = dfa.torch.block_lists(dfa.torch.block_mask(f"q_idx >= kv_idx && {text}", 1, 1, n, n, device="cuda"))
    hidden = lambda s, i, j: torch.where(function(0, 0, i, j), s, -torch.inf)
    return {"dfa": lambda: dfa.attention(q, k, v, causal=True, mask_mod=text),
            "flex": lambda: flex(q, k, v, block_mask=mask),
            "dfa, blocks": lambda: dfa.attention(q, k, v, block_mask=ours)}, hidden


def check(name, o, q, k, v, changed):
    at = torch.arange(q.shape[2], device="cuda")
    scores = changed(q[-1, 0].float() @ k[-1, 0].float().T * q.shape[3] ** -0.5, at[:, None], at[None])
    wanted = scores.masked_fill(at[:, None] < at[None], -torch.inf).softmax(1) @ v[-1, 0].float()
    error = float((o[-1, 0].float() - wanted).abs().max() / wanted.abs().max())
    if not error < 0.02:
        raise SystemExit(f"{name} differs from softmax by {error:.3g} of the largest")


def gradients(o, d_o, inputs):
    return torch.autograd.grad(o, inputs, d_o, retain_graph=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=4096)
    parser.add_argument("--b", type=int, default=4)
    parser.add_argument("--only", default="")
    a = parser.parse_args()
    torch.manual_seed(1)
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}; us: dfa, flex, flex / dfa")
    for heads, d in SHAPES:
        inputs = [torch.randn(a.b, heads, a.n, d, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
        d_o = torch.randn_like(inputs[0])
        for text in [*SCORES, *MASKS]:
            if a.only not in f"d{d} {text}":
                continue
            torch.compiler.reset()  # or it gives up compiling after eight
            calls, changed = calls_of(text, *inputs)
            outputs = {which: call() for which, call in calls.items()}
            theirs = gradients(outputs["flex"], d_o, inputs)
            for which, o in outputs.items():
                check(which, o.detach(), *(x.detach() for x in inputs), changed)
                for mine, other in zip(gradients(o, d_o, inputs), theirs):
                    if not (mine - other).norm() < 0.02 * other.norm():
                        raise SystemExit(f"{which}: gradients differ from flex's")
            for kind, of in (("fwd", calls), ("bwd", {w: lambda o=o: gradients(o, d_o, inputs) for w, o in outputs.items()})):
                if kind == "fwd":
                    with torch.no_grad():
                        us = medians(of)
                else:
                    us = medians(of)
                cells = "  ".join(f"{which} {us[which]:7.0f}" for which in us)
                print(f"{kind} b{a.b} h{heads} s{a.n} d{d} {text:36} {cells}   "
                      + "  ".join(f"{us['flex'] / us[w]:.2f}" for w in us if w != "flex"), flush=True)


if __name__ == "__main__":
    main()

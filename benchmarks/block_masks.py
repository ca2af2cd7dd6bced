#!/usr/bin/env python3
"""Lists of blocks: our kernels beside compiled flex_attention, in turns on one card.

Usage: python3 benchmarks/block_masks.py [--n N] [--b N] [--heads N] [--d N] [--config TEXT]
       needs the package dfa, PyTorch and a GPU

Forwards in bf16 by one BlockMask for all heads: all blocks of 128 by 128, random ones by density, documents of 512, causal ones. A
line a mask: the share of blocks that is listed, then medians of bursts taken in turns, in microseconds, of the portable kernel (sm80),
of what a plan takes (plan), of the configuration that --config names (named; default: Hopper's own), and of compiled flex_attention
(flex); what `named` takes of its time with all blocks, over the share; flex's time over that of `named`. Each is first held against
softmax in fp32 of one head.
"""
import argparse

import torch
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

import dfa
import dfa.torch
from cuda_bursts import medians

SIDE, BURSTS, RUNS = 128, 9, 20


def documents(n, causal, size=512):
    def seen(_b, _h, q, k):
        same = q // size == k // size
        return same & (q >= k) if causal else same
    return create_block_mask(seen, None, None, n, n, device="cuda", BLOCK_SIZE=SIDE)


def random_blocks(n, density):
    blocks = -(-n // SIDE)
    listed = torch.rand(blocks, blocks, generator=torch.Generator().manual_seed(1)).cuda() < density
    counts = listed.sum(1, dtype=torch.int32)[None, None]
    indices = listed.int().argsort(dim=1, descending=True, stable=True).int()[None, None]
    return BlockMask.from_kv_blocks(torch.zeros_like(counts), torch.zeros_like(indices), counts, indices, BLOCK_SIZE=SIDE,
                                    seq_lengths=(n, n), mask_mod=lambda _b, _h, q, k: listed[q // SIDE, k // SIDE])


def ours(q, k, v, lists, config):
    b, heads, n, d = q.shape
    partial = ",partial" if lists.bits is not None else ""
    plan = dfa.plan(f"fwd bf16 b{b} h{heads} s{n} d{d} blocks({SIDE}x{SIDE}{partial})", backend="cuda", config=config)
    workspace = torch.empty(plan.workspace_bytes, device="cuda", dtype=torch.uint8)
    o, lse = torch.empty_like(q), torch.empty(b, heads, n, device="cuda")
    lists_at = [0 if x is None else x.data_ptr() for x in lists.tensors], 0 if lists.bits is None else lists.bits.shape[0]

    def call():
        plan._forward(*(x.data_ptr() for x in (q, k, v, o, lse, workspace)), torch.cuda.current_stream().cuda_stream,
                      blocks=lists_at)
        return o
    call.kept = plan, workspace, lse, lists
    return call


def check(name, o, q, k, v, mask):
    n, head = q.shape[2], q.shape[1] - 1
    at = torch.arange(n, device="cuda")
    seen = mask.mask_mod(0, 0, at[:, None], at[None])
    scores = (q[-1, head].float() @ k[-1, head].float().T * q.shape[3] ** -0.5).masked_fill(~seen, -torch.inf)
    wanted = scores.softmax(1).nan_to_num(0) @ v[-1, head].float()
    error = float((o[-1, head].float() - wanted).abs().max() / wanted.abs().max())
    if not error < 0.02:
        raise SystemExit(f"{name} differs from softmax by {error:.3g} of the largest")


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("n", 4096), ("b", 4), ("heads", 16), ("d", 128)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--config", default="ForwardConfig{target=cuda_sm90}")
    a = parser.parse_args()
    torch.manual_seed(1)
    q, k, v = (torch.randn(a.b, a.heads, a.n, a.d, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    flex = torch.compile(flex_attention)
    masks = {"all": random_blocks(a.n, 1), **{f"random {p}": random_blocks(a.n, p) for p in (0.5, 0.2, 0.1, 0.05)},
             "documents": documents(a.n, False), "causal documents": documents(a.n, True)}
    print(f"b{a.b} h{a.heads} s{a.n} d{a.d}, {torch.cuda.get_device_name()}, PyTorch {torch.__version__}")
    print("| mask | share | sm80 | plan | named | flex | named / all, over share | flex / named |\n|---|---|---|---|---|---|---|---|")
    all_blocks = None
    for name, mask in masks.items():
        lists = dfa.torch.block_lists(mask)
        share = float(lists.kv_counts.sum()) / (-(-a.n // SIDE)) ** 2
        calls = {"sm80": ours(q, k, v, lists, "ForwardConfig{target=cuda_sm80}"), "plan": ours(q, k, v, lists, ""),
                 "named": ours(q, k, v, lists, a.config), "flex": lambda mask=mask: flex(q, k, v, block_mask=mask)}
        for which, call in calls.items():
            check(f"{which} of {name}", call(), q, k, v, mask)
        us = medians(calls, BURSTS, RUNS)
        all_blocks = all_blocks or us["named"]
        print(f"| {name} | {share:.3f} | " + " | ".join(f"{us[which]:.1f}" for which in calls) +
              f" | {us['named'] / all_blocks / share:.2f} | {us['flex'] / us['named']:.2f} |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Perplexity of the GPT of examples/train_gpt.py with attention in bf16 and in float8_e4m3fn beside each other.

    python3 benchmarks/e4m3_perplexity.py [--steps 1000] [--seeds 3] [--windows 400]     needs dfa and PyTorch; runs on processors

A model a seed is trained in bf16 on the first nine tenths of the text, the Python source of the standard library. Then the last
tenth is read in windows of the model's context, by the same weights, with another forward of attention alone:

    bf16         as trained
    e4m3 tensor  q, k, v quantised with one factor for a tensor (dfa.quantize)
    e4m3 head    with one for each batch and head
    e4m3 head p8 that with probabilities in e4m3 too, as tensor cores take them: 2^8 exp(s - max), rounded, over the sum of what was not

Columns: perplexity a byte; what it is more than that of bf16, and the standard error of that, in per cent, of the same windows; how
many bytes have another first guess than with bf16, in per cent.
"""
import argparse
import importlib.util
import math
import pathlib
import platform
import sys
import time

import torch
from torch import nn

import dfa

EXAMPLE = pathlib.Path(__file__).resolve().parents[1] / "examples/train_gpt.py"
SHAPE = {"layers": 4, "width": 128, "heads": 2, "context": 256, "batch": 8}
LARGEST_P = 256


def example():
    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def in_bf16(q, k, v):
    return dfa.attention(q, k, v, causal=True)


def in_e4m3(scale):
    def attention(q, k, v):
        (q8, of_q), (k8, of_k), (v8, of_v) = (dfa.quantize(x, scale) for x in (q, k, v))
        return dfa.attention(q8, k8, v8, causal=True, q_descale=of_q, k_descale=of_k, v_descale=of_v)
    return attention


def in_e4m3_p8(q, k, v):
    def wide(x):
        codes, factors = dfa.quantize(x)
        return codes.float() * factors[..., None, None]
    scores = wide(q) @ wide(k).mT * q.shape[3] ** -0.5
    scores = scores + torch.full(scores.shape[2:], -math.inf).triu(1)
    p = (scores - scores.amax(3, keepdim=True)).exp()
    rounded = (p * LARGEST_P).to(torch.float8_e4m3fn).float() / LARGEST_P
    return (rounded @ wide(v) / p.sum(3, keepdim=True)).to(v.dtype)


FORWARDS = {"bf16": in_bf16, "e4m3 tensor": in_e4m3("tensor"), "e4m3 head": in_e4m3("head"), "e4m3 head p8": in_e4m3_p8}


def trained(gpt, text, seed, steps):
    torch.manual_seed(seed)
    model = gpt.Gpt(**SHAPE, attention=in_bf16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = max(1, steps // 20)
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / warm_up, 0.1 + 0.45 * (1 + math.cos(math.pi * step / steps))))
    for tokens, targets in gpt.batches(text, steps, SHAPE, seed, "cpu"):
        loss = gpt.loss_of(model, tokens, targets, "cpu")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    return model.eval()


@torch.no_grad()
def read(model, attention, windows):
    """(mean loss in nats of each window, the first guess of each byte) with that forward of attention."""
    for block in model.blocks:
        block.attention = attention
    losses, guesses = [], []
    for rows in windows.split(SHAPE["batch"]):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            logits = model(rows[:, :-1]).float()
        losses.append(nn.functional.cross_entropy(logits.mT, rows[:, 1:], reduction="none").double().mean(1))
        guesses.append(logits.argmax(2))
    return torch.cat(losses), torch.cat(guesses)


def table_of(model, windows):
    """Name, perplexity, difference and its standard error in per cent, other guesses in per cent."""
    found = {name: read(model, attention, windows) for name, attention in FORWARDS.items()}
    base, base_guesses = found["bf16"]
    for name, (losses, guesses) in found.items():
        more = losses - base
        yield (name, losses.mean().exp().item(), 100 * math.expm1(more.mean().item()),
               100 * (more.std() / len(more) ** 0.5).item(), 100 * (guesses != base_guesses).double().mean().item())


def windows_of(text, count):
    """count windows of context + 1 bytes, evenly over the text."""
    length = SHAPE["context"] + 1
    most = len(text) // length
    if not 2 <= count <= most:
        raise SystemExit(f"--windows {count}; accepted: 2 to {most}")
    starts = torch.linspace(0, len(text) - length, count).long()
    return torch.stack([text[s:s + length] for s in starts.tolist()]).long()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--windows", type=int, default=400)
    arguments = parser.parse_args()
    if arguments.steps < 1 or arguments.seeds < 1:
        raise SystemExit("--steps and --seeds; accepted: 1 and more")
    gpt = example()
    text = gpt.read_text()
    held_out = len(text) // 10
    windows = windows_of(text[-held_out:], arguments.windows)
    print(f"GPT of bytes, {SHAPE['layers']} layers, width {SHAPE['width']}, {SHAPE['heads']} heads, context {SHAPE['context']}; "
          f"{arguments.steps} steps of {SHAPE['batch']} windows; text of Python {platform.python_version()}, {len(text):,} bytes, "
          f"{held_out:,} held out, {windows.numel() - len(windows):,} read")
    print(f"{time.strftime('%Y-%m-%d', time.gmtime())}, torch {torch.__version__}, dfa {dfa.__version__}, "
          f"python3 benchmarks/e4m3_perplexity.py {' '.join(sys.argv[1:])}".rstrip())
    print("\n| seed | attention | perplexity | % above bf16 | ± | % other first guesses |\n|---|---|---|---|---|---|")
    for seed in range(arguments.seeds):
        for name, *numbers in table_of(trained(gpt, text[:-held_out], seed, arguments.steps), windows):
            print(f"| {seed} | {name} | {numbers[0]:.4f} | {numbers[1]:+.3f} | {numbers[2]:.3f} | {numbers[3]:.2f} |", flush=True)


if __name__ == "__main__":
    main()

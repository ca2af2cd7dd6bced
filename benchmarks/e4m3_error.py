#!/usr/bin/env python3
"""What float8_e4m3fn costs of attention's output: q, k, v of a trained model and made-up ones, against float64 of what they were.

    python3 benchmarks/e4m3_error.py [--data examples/data/minilm_layer0_qkv.safetensors]

Needs dfa, PyTorch and safetensors; runs on the CPU. Columns are the error's norm in per cent of the output's, all rows of all heads:
bf16 inputs; e4m3 with one factor for a tensor, with one for each head, with one for each block of 64 rows of a head, and one for
each head with q and k rotated before (dfa.quantize's rotate, which leaves q·k as it is). `p8` are the same with probabilities in e4m3 too, as tensor cores take them:
2^8 · exp(s - max), rounded, over the sum of what was not rounded. The CPU's engine keeps probabilities in fp32.
"""

import argparse
import pathlib

import torch

import dfa

DATA = pathlib.Path(__file__).resolve().parents[1] / "examples/data/minilm_layer0_qkv.safetensors"
ROWS = 64  # that share a factor


def real(path):
    from safetensors.torch import load_file
    tensors = load_file(path)
    return tuple(tensors[name] for name in "qkv")


def made_up():
    """Names and q, k, v [1, 8, 1024, 128] of seeded numbers."""
    torch.manual_seed(1)
    shape = 1, 8, 1024, 128
    yield "normal", [torch.randn(shape) for _ in range(3)]
    yield "1 of 1000 + N(0, 10^2)", [torch.randn(shape) + 10 * torch.randn(shape) * (torch.rand(shape) < 0.001) for _ in range(3)]
    wide = [torch.randn(shape) for _ in range(3)]
    for x in wide[:2]:
        x[..., :2] *= 8  # columns that are large in every row, as keys of language models have them
    yield "2 columns of q, k x 8", wide
    heads = [torch.randn(shape) * torch.logspace(-2, 1, 8).reshape(1, 8, 1, 1) for _ in range(3)]
    heads[0], heads[1] = torch.randn(shape), torch.randn(shape)
    yield "heads of v 0.01 to 10", heads


def exact(q, k, v, p8=False):
    q, k, v = (x.double() for x in (q, k, v))
    s = q @ k.mT * q.shape[3] ** -0.5
    p = (s - s.amax(3, keepdim=True)).exp()
    total = p.sum(3, keepdim=True)
    if p8:
        p = (p * 256).float().to(torch.float8_e4m3fn).double() / 256
    return p @ v / total


def wider(x, descale):
    if descale.dim() == 3:
        return x.double() * descale.repeat_interleave(ROWS, 2)[:, :, :x.shape[2], None]
    return x.double() * (descale[..., None, None] if descale.dim() else descale)


def errors(q, k, v):
    truth = exact(q, k, v)
    def share(o):  # by heads, so that small ones count
        return 100 * ((o.double() - truth).flatten(2).norm(dim=2) / truth.flatten(2).norm(dim=2)).mean().item()
    row = [share(dfa.attention(*(x.bfloat16() for x in (q, k, v))))]
    for seed, scale, rows in ((None, "tensor", None), (None, "head", None), (None, "head", ROWS), (2, "head", None)):
        parts = [*(dfa.quantize(x, scale, rotate=seed, descale_rows=rows) for x in (q, k)), dfa.quantize(v, scale, descale_rows=rows)]
        codes, factors = zip(*parts)
        row.append(share(dfa.attention(*codes, **{f"{name}_descale": x for name, x in zip("qkv", factors)}, descale_rows=rows)))
        row.append(share(exact(*(wider(*part) for part in parts), p8=True)))
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=DATA, help="a .safetensors file with q, k, v [b, h, s, d]")
    args = parser.parse_args()
    columns = "bf16", "tensor", "tensor p8", "head", "head p8", f"{ROWS} rows", f"{ROWS} rows p8", "rotated", "rotated p8"
    print("| inputs | " + " | ".join(columns) + " |\n|---|" + "---|" * len(columns))
    for name, tensors in [("real, layer 0", real(args.data)), *made_up()]:
        print(f"| {name} | " + " | ".join(f"{x:.2f}" for x in errors(*tensors)) + " |")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Train a byte-level GPT with standard attention, PyTorch's and ours: same loss, other seconds and joules.

Usage: python3 examples/train_gpt.py [--steps N] [--seeds N] [--out DIR]    needs torch and the package dfa

The text is the Python source of the standard library on this machine. Every run of a seed starts from the same
weights and sees the same batches in the same order. Writes training.json and training.png; without a GPU a
small model trains for a few steps.
"""
import argparse
import json
import math
import pathlib
import random
import statistics
import sysconfig
import time

import torch
from torch import nn

import dfa

MODEL = {"cuda": {"layers": 6, "width": 384, "heads": 6, "context": 2048, "batch": 16},
         "cpu": {"layers": 2, "width": 64, "heads": 2, "context": 128, "batch": 4}}


def standard(q, k, v):
    """Scores, softmax and output as three passes over matrices, as PyTorch users write it."""
    scores = q @ k.transpose(2, 3) * q.shape[3] ** -0.5
    hidden = torch.ones(scores.shape[2:], dtype=torch.bool, device=q.device).triu(1)
    return scores.masked_fill(hidden, -math.inf).softmax(dim=3, dtype=torch.float32).to(v.dtype) @ v


def torch_sdpa(q, k, v):
    return nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def ours(q, k, v):
    return dfa.attention(q, k, v, causal=True)


VARIANTS = {"standard": standard, "torch_sdpa": torch_sdpa, "dfa": ours}


class Block(nn.Module):
    def __init__(self, width, heads, attention):
        super().__init__()
        self.heads, self.attention = heads, attention
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        qkv = self.qkv(self.before(x)).unflatten(2, (3, self.heads, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        x = x + self.out(self.attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.between(x))


class Gpt(nn.Module):
    def __init__(self, layers, width, heads, context, batch, attention):
        super().__init__()
        self.token, self.place = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, attention) for _ in range(layers)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256)

    def forward(self, tokens, places=None):
        if places is None:
            places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))


def read_text():
    files = sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    text = b"\n".join(file.read_bytes() for file in files if "site-packages" not in file.parts)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def batches(text, steps, shape, seed, device):
    """(tokens, next tokens) of each step, drawn anew from the same seed."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(text) - shape["context"] - 1, (shape["batch"],), generator=draw)
        rows = torch.stack([text[s:s + shape["context"] + 1] for s in starts]).long().to(device)
        yield rows[:, :-1], rows[:, 1:]


def loss_of(model, tokens, targets, device):
    with torch.autocast(device, dtype=torch.bfloat16):
        return nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())


def train(variant, seed, steps, text, device, shape):
    torch.manual_seed(seed)
    model = Gpt(**shape, attention=VARIANTS[variant]).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    warm_up = max(1, steps // 20)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / warm_up))
    losses = []

    def step(tokens, targets):
        loss = loss_of(model, tokens, targets, device)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
        losses.append(loss.detach())

    for tokens, targets in list(batches(text, 3, shape, -1, device)):  # compiles and allocates
        with torch.autocast(device, dtype=torch.bfloat16):
            model(tokens).float().sum().backward()
    optimizer.zero_grad(set_to_none=True)
    ready = list(batches(text, steps, shape, seed, device))
    with dfa.EnergyMeter(device) as meter:
        begin = time.perf_counter()
        for tokens, targets in ready:
            step(tokens, targets)
        losses = torch.stack(losses).tolist()
        seconds = time.perf_counter() - begin
    tokens = steps * shape["batch"] * shape["context"]
    peak = torch.cuda.max_memory_allocated() if device == "cuda" else None
    return {"variant": variant, "seed": seed, "tokens_per_s": tokens / seconds, "seconds": seconds,
            "energy_j": meter.energy_j, "energy_uncertainty_j": meter.uncertainty_j,
            "energy_reason": meter.reason, "j_per_token": meter.energy_j and meter.energy_j / tokens,
            "memory_peak_bytes": peak, "losses": losses,
            "parameters": sum(p.numel() for p in model.parameters())}


def last_loss(run):
    return statistics.mean(run["losses"][-max(1, len(run["losses"]) // 10):])


def agreement(runs):
    """Last losses: the spread between seeds, and between variants of one seed."""
    seeds = sorted({run["seed"] for run in runs})
    by = {(run["variant"], run["seed"]): last_loss(run) for run in runs}
    variants = sorted({run["variant"] for run in runs})
    of_seed = [max(by[v, s] for v in variants) - min(by[v, s] for v in variants) for s in seeds]
    of_variant = [max(by[v, s] for s in seeds) - min(by[v, s] for s in seeds) for v in variants]
    return {"largest_difference_between_variants_of_one_seed": max(of_seed),
            "least_difference_between_seeds_of_one_variant": min(of_variant)}


def draw(result, path):
    import matplotlib
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    colors = {"standard": "#8a8f98", "torch_sdpa": "#d98e04", "dfa": "#0b7a75"}
    figure, (curve, speed, joules) = plt.subplots(1, 3, figsize=(12, 3.8), layout="constrained")
    for run in result["runs"]:
        window = max(1, len(run["losses"]) // 50)
        smooth = [statistics.mean(run["losses"][max(0, i - window):i + 1])
                  for i in range(len(run["losses"]))]
        first = run["seed"] == result["runs"][0]["seed"]
        curve.plot(smooth, color=colors[run["variant"]], lw=1, label=run["variant"] if first else None)
    curve.set(xlabel="step", ylabel="training loss, nats a byte", title="the same curve")
    curve.legend(frameon=False)
    for axis, key, title in ((speed, "tokens_per_s", "tokens/s"), (joules, "j_per_token", "mJ/token")):
        values = {name: [run[key] for run in result["runs"] if run["variant"] == name]
                  for name in VARIANTS}
        if any(None in list_ for list_ in values.values()):
            axis.text(0.5, 0.5, "not measured", ha="center", transform=axis.transAxes)
            axis.set_title(title)
            continue
        scale = 1e3 if key == "j_per_token" else 1
        means = [scale * statistics.mean(values[name]) for name in VARIANTS]
        bars = axis.bar(list(VARIANTS), means, color=[colors[name] for name in VARIANTS])
        axis.bar_label(bars, labels=[f"{mean:,.3g}" for mean in means])
        axis.set_title(title)
    for axis in (curve, speed, joules):
        axis.spines[["top", "right"]].set_visible(False)
    shape = result["model"]
    figure.suptitle(f"GPT, {result['runs'][0]['parameters'] / 1e6:.1f} M parameters, context "
                    f"{shape['context']}, bf16, {result['machine']}")
    figure.savefig(path, dpi=150)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--steps", type=int, default=400 if device == "cuda" else 20)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
    arguments = parser.parse_args()
    shape, text = MODEL[device], read_text()
    arguments.out.mkdir(parents=True, exist_ok=True)
    plan = [(variant, seed) for seed in range(arguments.seeds) for variant in VARIANTS]
    random.Random(0).shuffle(plan)  # so that a warming card favours none
    train(next(iter(VARIANTS)), 0, 2, text, device, shape)  # the optimizer's first steps are slow
    runs = []
    for variant, seed in plan:
        if device == "cuda":  # what ran before had a peak of its own
            torch.cuda.reset_peak_memory_stats()
        runs.append(train(variant, seed, arguments.steps, text, device, shape))
        joules = runs[-1]["j_per_token"]
        print(f"{len(runs)}/{len(plan)} {variant:10s} seed {seed}: {runs[-1]['tokens_per_s']:9,.0f} tokens/s, "
              f"{'not measured' if joules is None else f'{joules * 1e3:.3f} mJ/token'}, last loss "
              f"{last_loss(runs[-1]):.4f}", flush=True)
    runs.sort(key=lambda run: (run["seed"], list(VARIANTS).index(run["variant"])))
    result = {"machine": torch.cuda.get_device_name() if device == "cuda" else "CPU",
              "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
              "torch": torch.__version__, "model": shape, "steps": arguments.steps,
              "agreement": agreement(runs), "runs": runs}
    (arguments.out / "training.json").write_text(json.dumps(result) + "\n")
    draw(result, arguments.out / "training.png")
    print(json.dumps(result["agreement"]))


if __name__ == "__main__":
    main()

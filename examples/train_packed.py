#!/usr/bin/env python3
"""Train a byte-level GPT on documents of many lengths: one by one, padded, and packed into one row by dfa.attention_varlen.

Usage: python3 examples/train_packed.py [--steps N] [--seeds N] [--fa3 LIBRARY] [--out DIR]    needs torch and the package dfa

The documents are the Python files of the standard library on this machine, cut where they are longer than the context. All ways
start from the same weights and see the same documents in the same order, so that their losses differ by rounding alone. --fa3: one
more way, packed by FlashAttention-3, from a library with its operators. Writes packed_training.json; without a GPU a small model
trains for a few steps in float32.
"""
import argparse
import json
import pathlib
import random
import shlex
import statistics
import sys
import sysconfig
import time

import torch
from torch import nn

import dfa
from train_gpt import Gpt

MODEL = {"cuda": {"layers": 6, "width": 768, "heads": 6, "context": 4096, "rows": 32768},
         "cpu": {"layers": 2, "width": 64, "heads": 2, "context": 96, "rows": 384}}


def documents(context):
    """Pieces of files, at least two bytes, at most context + 1: a byte predicts the next."""
    pieces = []
    for file in sorted(pathlib.Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        if "site-packages" not in file.parts:
            data = file.read_bytes()
            pieces += [data[i:i + context + 1] for i in range(0, len(data) - 1, context)]
    return [torch.frombuffer(bytearray(piece), dtype=torch.uint8).long() for piece in pieces if len(piece) > 1]


def draw_steps(pieces, steps, rows, seed, device):
    """Of each step a list of documents with as many tokens as fit into `rows`, drawn anew from the same seed."""
    draw = random.Random(seed)
    for _ in range(steps):
        chosen, left = [], rows
        while left > 1:
            piece = draw.choice(pieces)[:left + 1]
            chosen.append(piece.to(device))
            left -= len(piece) - 1
        yield chosen


class OneByOne:
    """A forward and a backward a document."""

    def __init__(self, device):
        self.attention = lambda q, k, v: dfa.attention(q, k, v, causal=True)

    def losses(self, model, texts, total):
        for text in texts:
            logits = model(text[None, :-1])[0]
            yield nn.functional.cross_entropy(logits.float(), text[1:], reduction="sum") / total


class Padded(OneByOne):
    """Rows as long as the longest document; a causal mask hides what is behind a document's end from it."""

    def losses(self, model, texts, total):
        tokens = nn.utils.rnn.pad_sequence([text[:-1] for text in texts], batch_first=True)
        targets = nn.utils.rnn.pad_sequence([text[1:] for text in texts], batch_first=True, padding_value=-100)
        logits = model(tokens).flatten(0, 1)
        yield nn.functional.cross_entropy(logits.float(), targets.flatten(), reduction="sum") / total


class Packed:
    """One row of all documents, one after the other; cu_seqlens says where each begins."""

    def __init__(self, device, call=None):
        self.call = call or self.varlen
        self.device, self.cu, self.longest = device, None, None

    @staticmethod
    def varlen(q, k, v, cu, longest):
        return dfa.attention_varlen(q, k, v, cu, max_seqlen_q=longest, max_seqlen_k=longest, causal=True)

    def attention(self, q, k, v):
        rows = (x[0].transpose(0, 1) for x in (q, k, v))
        return self.call(*rows, self.cu, self.longest).transpose(0, 1)[None]

    def losses(self, model, texts, total):
        lengths = [len(text) - 1 for text in texts]
        self.longest = max(lengths)
        self.cu = torch.tensor([0, *lengths], device=self.device).cumsum(0).to(torch.int32)
        places = torch.cat([torch.arange(n, device=self.device) for n in lengths])
        logits = model(torch.cat([text[:-1] for text in texts])[None], places)[0]
        yield nn.functional.cross_entropy(logits.float(), torch.cat([text[1:] for text in texts]), reduction="sum") / total


def train(name, way, seed, steps, pieces, device, shape):
    torch.manual_seed(seed)
    sizes = {key: shape[key] for key in ("layers", "width", "heads", "context")}
    model = Gpt(**sizes, batch=1, attention=way.attention).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
    rate = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1, (step + 1) / max(1, steps // 20)))

    def step(texts, learn=True):
        total, loss = sum(len(text) - 1 for text in texts), 0
        with torch.autocast(device, dtype=torch.bfloat16, enabled=device == "cuda"):
            for part in way.losses(model, texts, total):
                part.backward()
                loss = loss + part.detach()
        if learn:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
        optimizer.zero_grad(set_to_none=True)
        return loss

    ready = list(draw_steps(pieces, steps, shape["rows"], seed, device))
    step(ready[0], learn=False)  # compiles and allocates
    with dfa.EnergyMeter(device) as meter:
        begin = time.perf_counter()
        losses = torch.stack([step(texts) for texts in ready]).tolist()
        seconds = time.perf_counter() - begin
    tokens = sum(len(text) - 1 for texts in ready for text in texts)
    return {"way": name, "seed": seed, "tokens": tokens, "documents": sum(map(len, ready)), "seconds": seconds,
            "tokens_per_s": tokens / seconds, "energy_j": meter.energy_j, "energy_uncertainty_j": meter.uncertainty_j,
            "energy_reason": meter.reason, "j_per_token": meter.energy_j and meter.energy_j / tokens, "losses": losses}


def agreement(runs):
    """How far each way's losses are from those of the documents one by one, of the same seed."""
    alone = {run["seed"]: run["losses"] for run in runs if run["way"] == "one by one"}
    found = {}
    for run in runs:
        off = [abs(a - b) for a, b in zip(run["losses"], alone[run["seed"]], strict=True)]
        last = off[-max(1, len(off) // 10):]
        entry = found.setdefault(run["way"], {"first_step": 0, "last_tenth_mean": 0})
        entry["first_step"] = max(entry["first_step"], off[0])
        entry["last_tenth_mean"] = max(entry["last_tenth_mean"], statistics.mean(last))
    return found


def flash_attention_3(library):
    sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "benchmarks"))
    import flash_attention_3 as peer
    call = peer.varlen(library)
    return lambda q, k, v, cu, longest: call(q, k, v, cu, cu, longest, longest)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    device = "cuda" if torch.cuda.is_available() else "cpu"
    parser.add_argument("--steps", type=int, default=100 if device == "cuda" else 10)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--fa3", metavar="LIBRARY")
    parser.add_argument("--out", type=pathlib.Path, default=pathlib.Path("out"))
    arguments = parser.parse_args()
    for name in ("steps", "seeds"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)}; accepted: 1 or more")
    shape, ways = MODEL[device], {"one by one": OneByOne(device), "padded": Padded(device), "packed": Packed(device)}
    if arguments.fa3:
        try:
            ways["packed, FlashAttention-3"] = Packed(device, flash_attention_3(arguments.fa3))
        except OSError as error:
            parser.error(f"--fa3 {arguments.fa3}: {error.__cause__ or error}")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        parser.error(f"--out {arguments.out}: {error.strerror}")
    pieces, runs = documents(shape["context"]), []
    for name, way in ways.items():  # the first steps of a process are slow
        train(name, way, 0, 2, pieces, device, shape)
    plan = [(name, seed) for seed in range(arguments.seeds) for name in ways]
    random.Random(0).shuffle(plan)  # so that a warming card favours none
    for name, seed in plan:
        runs.append(train(name, ways[name], seed, arguments.steps, pieces, device, shape))
        joules = runs[-1]["j_per_token"]
        print(f"{len(runs)}/{len(plan)} {name:24s} seed {seed}: {runs[-1]['tokens_per_s']:9,.0f} tokens/s, "
              f"{'not measured' if joules is None else f'{joules * 1e3:.3f} mJ/token'}, last loss "
              f"{runs[-1]['losses'][-1]:.4f}", flush=True)
    runs.sort(key=lambda run: (run["seed"], list(ways).index(run["way"])))
    result = {"command": shlex.join(["python3", *sys.argv]),
              "schema": "dfa-packed-training/1", "machine": torch.cuda.get_device_name() if device == "cuda" else "CPU",
              "torch": torch.__version__, "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "model": shape,
              "loss_differences_from_one_by_one": agreement(runs), "runs": runs}
    path = arguments.out / "packed_training.json"
    path.write_text(json.dumps(result, indent=1) + "\n")
    for name, off in result["loss_differences_from_one_by_one"].items():
        print(f"{name:24s} from one by one: first step {off['first_step']:.2e}, last tenth {off['last_tenth_mean']:.2e}")
    print(f"wrote {path}")


if __name__ == "__main__":
    main()

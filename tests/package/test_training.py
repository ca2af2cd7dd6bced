"""A small byte-level GPT learns the same with standard attention and with ours."""

import importlib.util
import json
import pathlib
import subprocess
import sys
import sysconfig

import numpy as np
import pytest

import dfa
from dfa import _core

EXAMPLE = pathlib.Path(__file__).parents[2] / "examples" / "train_gpt.py"
LAYERS, WIDTH, HEADS, CONTEXT, BATCH, STEPS = 2, 64, 2, 96, 4, 24


def batches(seed):
    """(tokens, next tokens) from Python's own library."""
    folder = pathlib.Path(sysconfig.get_paths()["stdlib"])
    text = np.frombuffer(b"".join(file.read_bytes() for file in sorted(folder.glob("a*.py"))), np.uint8)
    draw = np.random.default_rng(seed)
    for _ in range(STEPS):
        rows = [text[s:s + CONTEXT + 1] for s in draw.integers(len(text) - CONTEXT - 1, size=BATCH)]
        rows = np.stack(rows).astype(np.int32)
        yield rows[:, :-1], rows[:, 1:]


def losses_of(attention, seed):
    import jax
    import jax.numpy as jnp
    keys = iter(jax.random.split(jax.random.key(seed), 100))

    def weight(*shape):
        return jax.random.normal(next(keys), shape) * shape[-2] ** -0.5

    model = {"token": weight(256, WIDTH) * 4, "place": weight(CONTEXT, WIDTH), "head": weight(WIDTH, 256),
             "blocks": [{"qkv": weight(WIDTH, 3 * WIDTH), "out": weight(WIDTH, WIDTH),
                         "up": weight(WIDTH, 4 * WIDTH), "down": weight(4 * WIDTH, WIDTH)}
                        for _ in range(LAYERS)]}

    def norm(x):
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)

    def loss(model, tokens, targets):
        x = model["token"][tokens] + model["place"]
        for block in model["blocks"]:
            qkv = (norm(x) @ block["qkv"]).reshape(BATCH, CONTEXT, 3, HEADS, -1)
            o = attention(*jnp.moveaxis(qkv.swapaxes(1, 3), 2, 0))
            x = x + o.swapaxes(1, 2).reshape(x.shape) @ block["out"]
            x = x + jax.nn.gelu(norm(x) @ block["up"]) @ block["down"]
        logits = jax.nn.log_softmax(norm(x) @ model["head"])
        return -jnp.take_along_axis(logits, targets[..., None], 2).mean()

    @jax.jit
    def step(model, tokens, targets):
        value, gradient = jax.value_and_grad(loss)(model, tokens, targets)
        return jax.tree.map(lambda w, g: w - 0.3 * g, model, gradient), value

    losses = []
    for tokens, targets in batches(seed):
        model, value = step(model, tokens, targets)
        losses.append(float(value))
    return np.array(losses)


@pytest.mark.skipif(not hasattr(_core, "jax_targets"), reason="dfa was built without JAX")
def test_losses_in_jax_differ_less_than_those_of_two_seeds():
    jnp = pytest.importorskip("jax.numpy")
    import jax

    def standard(q, k, v):
        scores = q @ k.swapaxes(2, 3) * q.shape[3] ** -0.5
        return jax.nn.softmax(jnp.where(jnp.tri(q.shape[2], dtype=bool), scores, -jnp.inf)) @ v

    def ours(q, k, v):
        return dfa.attention(q, k, v, causal=True)

    wanted, got, other = losses_of(standard, 0), losses_of(ours, 0), losses_of(ours, 1)
    assert got[-4:].mean() < 0.8 * got[0]  # it learns
    assert np.abs(got - wanted).max() < 0.02 * np.abs(got - other).mean()
    assert not np.array_equal(got, wanted)  # two attentions did run


@pytest.mark.skipif(not all(map(importlib.util.find_spec, ("torch", "matplotlib"))),
                    reason="needs torch and matplotlib")
def test_the_example_trains_and_draws(tmp_path):
    command = [sys.executable, str(EXAMPLE), "--steps", "6", "--seeds", "2", "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    result = json.loads((tmp_path / "training.json").read_text())
    assert {run["variant"] for run in result["runs"]} == {"standard", "torch_sdpa", "dfa"}
    agreement = result["agreement"]
    assert agreement["largest_difference_between_variants_of_one_seed"] < \
        agreement["least_difference_between_seeds_of_one_variant"]
    assert (tmp_path / "training.png").stat().st_size > 10_000


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_packed_documents_train_as_they_do_one_by_one(tmp_path):
    command = [sys.executable, str(EXAMPLE.with_name("train_packed.py")), "--steps", "8", "--seeds", "2", "--out", str(tmp_path)]
    subprocess.run(command, check=True, timeout=300)
    result = json.loads((tmp_path / "packed_training.json").read_text())
    runs = {(run["way"], run["seed"]): np.array(run["losses"]) for run in result["runs"]}
    assert {way for way, _ in runs} == {"one by one", "padded", "packed"}
    of_seeds = np.abs(runs["packed", 0] - runs["packed", 1]).max()
    for seed in range(2):
        alone = runs["one by one", seed]
        assert alone[-1] < 0.95 * alone[0]  # it learns
        for way in ("padded", "packed"):
            off = np.abs(runs[way, seed] - alone)
            assert off[0] < 8 * np.spacing(np.float32(alone[0]))  # sums of as many losses, added in another order
            assert off.max() < 0.01 * of_seeds

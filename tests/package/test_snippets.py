"""The Python of the README, of the guide and of the first page: all of it compiles, and what needs no model runs as it stands there."""

import pathlib
import re
import time

import numpy as np
import pytest

import dfa
import dfa._core

ROOT = pathlib.Path(__file__).parents[2]
PAGES = ("README.md", "docs/guide/python.md", "docs/start.md")


def snippets(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


class MadeUpGovernor:
    """The governor of the pages has a card; how it works is tried in test_howto.py."""

    def __init__(self, policy):
        assert dfa.Policy(policy).goal == "power_cap"

    def __enter__(self):
        self.steps = 0
        return self

    def __exit__(self, *exception):
        pass

    def pace(self):
        self.steps += 1


@pytest.mark.parametrize("page", PAGES)
def test_every_snippet_compiles(page):
    assert snippets(page)
    for snippet in snippets(page):
        compile(snippet, page, "exec")


@pytest.mark.parametrize("page", PAGES)
def test_snippets_run_as_they_stand_there(page, monkeypatch, capsys):
    monkeypatch.setattr(dfa, "Governor", MadeUpGovernor, raising=False)
    policy = dfa.Policy  # of rows that no test machine has: the library's own choice in their place
    monkeypatch.setattr(dfa, "Policy", lambda text, profile=None: policy(
        text if profile is None else "max_performance"), raising=False)
    draw = np.random.default_rng(1)
    q, k, v = (draw.standard_normal((1, 2, 1500, 64), dtype=np.float32) for _ in range(3))
    slopes, sinks = draw.random((2, 2), dtype=np.float32)
    bias = draw.random((1, 2, 1500, 1), dtype=np.float32)
    names = {"q": q, "k": k, "v": v, "slopes": slopes, "bias": bias, "sinks": sinks, "batches": range(3),
             "train_step": lambda batch: time.sleep(0.001), "dfa": dfa}
    ran = 0
    for snippet in snippets(page):
        if any(word in snippet for word in ("torch", "transformers", "dfa.jax")):
            continue  # with a model, or arrays of their own: below, where these are
        exec(snippet, names)
        ran += 1
    assert ran >= 1 and names["o"].shape == names["q"].shape
    assert names.get("governor") is None or names["governor"].steps == 3
    capsys.readouterr()


def test_snippets_with_a_model_run_where_pytorch_is():
    torch = pytest.importorskip("torch")

    class Model(torch.nn.Module):
        def forward(self, x):
            o = torch.nn.functional.scaled_dot_product_attention(x, x, x)
            return type("Output", (), {"loss": o.sum()})

    names = {"dfa": dfa, "model": Model(), "x": torch.randn(1, 2, 16, 64)}
    switch, name, layer = [s for s in snippets("docs/guide/python.md") if "dfa.torch" in s and "block_mask" not in s]
    exec(switch, names)
    assert torch.isfinite(names["loss"])
    if hasattr(torch.nn.attention, "activate_flash_attention_impl"):
        exec(name, names | {"torch": torch})
        assert torch.nn.attention.current_flash_attention_impl() == "dfa"
        torch.nn.attention.restore_flash_attention_impl()
    exec(layer, names)
    assert names["layer"](*[torch.randn(2, 16, 512)] * 3)[0].shape == (2, 16, 512)


def test_snippets_of_masks_and_dropout_run_where_pytorch_is():
    torch = pytest.importorskip("torch")
    q, k, v = torch.randn(3, 1, 2, 40, 64)
    names = {"q": q, "k": k, "v": v, "b": 1, "hq": 2, "sq": 40, "sk": 40, "mask_mod": lambda b, h, i, j: i >= j, "dfa": dfa, "torch": torch}
    of_text, dropout, blocks = [s for s in snippets("docs/guide/python.md") if ("block_mask" in s or "dropout_p" in s) and "dfa.jax" not in s]
    exec(of_text, names)
    assert torch.allclose(names["o"], dfa.attention(q, k, v, causal=True, score_mod="score - 0.1f * (q_idx - kv_idx)"), atol=1e-5)
    exec(blocks, names)
    assert torch.equal(names["o"], dfa.attention(q, k, v, block_mask=names["lists"]))
    exec(dropout, names)
    assert names["o"].shape == q.shape and not torch.equal(names["o"], dfa.attention(q, k, v, causal=True))


def test_snippets_of_jax_run_where_it_is():
    jax = pytest.importorskip("jax")
    if not hasattr(dfa._core, "jax_targets"):
        pytest.skip("dfa was built without JAX")
    x = jax.numpy.ones((2, 16, 4, 64))
    names = {"dfa": dfa, "q": x, "k": x, "v": x, "x": x, "lengths": jax.numpy.array([16, 5]), "sinks": jax.numpy.ones(4),
             "ids": jax.numpy.array([[0] * 9 + [1] * 7] * 2), "key": jax.random.key(1)}
    plain, logits = [s for s in snippets("docs/guide/python.md") if "dfa.jax" in s]
    for snippet in (plain, logits):
        exec(snippet, names)
        assert names.pop("o").shape == x.shape

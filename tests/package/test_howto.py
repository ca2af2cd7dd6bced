"""The Python snippets of the how-to pages, with a made-up card and a loop that only sleeps."""

import os
import pathlib
import re
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

import dfa

ROOT = pathlib.Path(__file__).parents[2]


def fences(page, language):
    text = (ROOT / "docs/howto" / page).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def test_a_training_job_under_a_cap(fake_nvml, capsys):
    fake_nvml("clock real\ncard H200 GPU-aa 00000000:3B:00.0\npower sine 600 20 0.7\nlimit 700\n")
    capped, served, metered = fences("cap-a-training-job.md", "python")
    here = 'Governor("power_cap:500W", device="GPU-aa", idle_w=100, calibrate_s=0.5)'
    assert 'Governor("power_cap:500W")' in capped
    names = {"batches": range(200), "train_step": lambda batch: time.sleep(0.005)}
    exec(capped.replace('Governor("power_cap:500W")', here), names)
    assert names["governor"].waited_s > 0.1
    steps = [SimpleNamespace(prompts=i % 4 == 0, run=lambda: time.sleep(0.005)) for i in range(400)]
    exec(served.replace('Governor("power_cap:500W")', here), served_names := {"dfa": dfa, "steps": steps})
    assert 0.1 < served_names["governor"].waited_s < 100 * 0.03 and served_names["governor"].steps == 400
    exec(metered.replace("EnergyMeter()", 'EnergyMeter("cpu")'), names)
    assert "200 steps" in capsys.readouterr().out


def test_a_configuration_from_a_profile(program, tmp_path):
    tune = fences("cheapest-config.md", "sh")[0]
    environment = os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}",
                                "DFA_CUDA_DRIVER": "none-in-tests"}
    (tmp_path / "dfa").symlink_to(program)
    subprocess.run(["bash", "-euc", tune], cwd=tmp_path, env=environment, check=True,
                   capture_output=True, timeout=120)
    # A process of its own: one that has found a GPU keeps it.
    script = f"""import ml_dtypes, numpy as np
draw = np.random.default_rng(1)
q, k, v = (draw.standard_normal((1, 4, 256, 64)).astype(ml_dtypes.bfloat16) for _ in range(3))
{fences("cheapest-config.md", "python")[0]}
assert o.shape == q.shape"""
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, env=environment, check=True,
                         capture_output=True, text=True, timeout=120)
    assert "by policy max_performance" in run.stdout


def test_joules_of_a_token(fake_nvml, capsys):
    fake_nvml("clock real\ncard H200 GPU-aa 00000000:3B:00.0\npower constant 500\ntick 0.002\nlimit 700\n")
    source, = fences("joules-a-token.md", "python")
    assert "dfa.TokenMeter()" in source
    names = {"prompts": [[1] * 100, [2] * 50], "read": lambda prompt: time.sleep(0.01), "answer": lambda: time.sleep(0.003)}
    exec(source.replace("dfa.TokenMeter()", 'dfa.TokenMeter("GPU-aa")'), names)
    said = capsys.readouterr().out
    assert "prefill" in said and "all of it measured" in said
    record = names["record"]
    assert record["input_token_count"] == 150 and record["output_token_count"] == 2 * 32
    assert record["average_power_watts"] == pytest.approx(500, rel=0.1)


def test_a_model_of_transformers():
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(1)
    config = transformers.LlamaConfig(hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                                      num_key_value_heads=2, vocab_size=99, pad_token_id=0)
    mask = torch.tensor([[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]])
    names = {"torch": torch, "model": transformers.LlamaForCausalLM(config),
             "inputs": {"input_ids": torch.randint(1, 99, (2, 5)) * mask, "attention_mask": mask}}
    for source in fences("transformers.md", "python"):
        exec(source, names)
    assert (names["ours"] - names["theirs"])[mask.bool()].abs().max() < 1e-4
    assert names["tokens"].shape == (2, 13) and "dfa" in names["model"].config._attn_implementation


def test_a_compiled_block():
    torch = pytest.importorskip("torch")
    source, = fences("torch-compile.md", "python")
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward
    torch._dynamo.reset()
    names = {"backend": backend}
    exec(source, names)
    assert len(graphs) == 1 and names["x"].grad.isfinite().all()


def test_a_refusal(capsys):
    source, = fences("debug-a-refusal.md", "python")
    exec(source, {})
    assert "cpu FlashAttention on" in (said := capsys.readouterr().out) and "tf32 is a GPU tensor-core format" in said


def torchrun(source, tmp_path, ranks=2):
    # A rank that ends early may cut others off; what libraries do while a process ends is not looked at here.
    last = "\ndist.barrier()\ndist.destroy_process_group()\nimport os, sys\nsys.stdout.flush()\nos._exit(0)\n"
    (tmp_path / "snippet.py").write_text(source + last)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}", str(tmp_path / "snippet.py")]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, env=os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""})
    assert run.returncode == 0, run.stderr[-6000:]
    return run.stdout


def of_many_gpus():
    torch = pytest.importorskip("torch")
    if not torch.distributed.is_available() or not torch.distributed.is_gloo_available():
        pytest.skip("PyTorch without gloo")
    return fences("many-gpus.md", "python")


def test_a_sequence_over_several_ranks(tmp_path):
    sequence, _, model, tensors, _ = of_many_gpus()
    end = """
right = dfa.attention(q, k, v, causal=True)
assert (whole - right).abs().max() < 1e-5
print("as the whole")"""
    assert torchrun(f"import dfa\n{sequence}{end}", tmp_path).count("as the whole") == 2
    end = """
mine = [weight.grad.clone() for weight in (*embed.parameters(), *mix.parameters())]
embed.zero_grad(), mix.zero_grad()
x = embed(tokens).unflatten(2, (4, 16)).transpose(1, 2)
o = torch.nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)
logits = mix(o.transpose(1, 2).flatten(2)) @ embed.weight.T
torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum").backward()
for a, weight in zip(mine, (*embed.parameters(), *mix.parameters())):
    assert (a - weight.grad).abs().max() < 1e-3 * weight.grad.abs().max()
print("gradients of the whole")"""
    assert torchrun(model + end, tmp_path).count("gradients of the whole") == 2
    assert torchrun(tensors + 'print("sharded")', tmp_path).count("sharded") == 2


def test_a_sequence_over_devices_of_jax():
    pytest.importorskip("jax")
    from dfa import _core
    if not hasattr(_core, "jax_targets"):
        pytest.skip("dfa was built without JAX")
    names = {}
    exec(fences("many-gpus.md", "python")[1], names)
    q, k, v = (names[name].swapaxes(1, 2) for name in "qkv")
    assert abs(names["o"].swapaxes(1, 2) - names["dfa"].attention(q, k, v, causal=True)).max() < 1e-5


def test_one_budget_over_a_group(fake_nvml, tmp_path, capsys):
    *_, budget = of_many_gpus()
    import torch.distributed as dist
    fake_nvml("clock real\ncard H200 GPU-aa 00000000:3B:00.0\npower sine 600 20 0.7\nlimit 700\n")
    here = 'Governor("power_cap:500W", device="GPU-aa", idle_w=100, calibrate_s=0.4, group=dist.group.WORLD)'
    there = 'Governor("power_cap:1100W", group=dist.group.WORLD)'
    assert there in budget
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/init", rank=0, world_size=1)
    try:
        names = {"batches": range(200), "train_step": lambda batch: time.sleep(0.005)}
        exec(budget.replace(there, here), names)
    finally:
        dist.destroy_process_group()
    assert names["governor"].waited_s > 0.1
    assert "this card may draw" in capsys.readouterr().out

"""dfa.hub: a folder that the package kernels loads, and transformers' own front end for such kernels over it."""

import inspect
import json
import runpy
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("dfa")

import dfa.hub  # noqa: E402
from dfa import flash_attn  # noqa: E402

FUNCTIONS = ["flash_attn_func", "flash_attn_kvpacked_func", "flash_attn_qkvpacked_func", "flash_attn_varlen_func",
             "flash_attn_varlen_kvpacked_func", "flash_attn_varlen_qkvpacked_func"]
NAME = "dfa-tests/dfa-flash-attn"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    return dfa.hub.write(tmp_path_factory.mktemp("hub") / "repository")


def test_what_somebody_wrote_on_the_card_stays(tmp_path):
    card = tmp_path / "README.md"
    card.write_text("of mine")
    dfa.hub.write(tmp_path)
    assert card.read_text() == "of mine"
    assert (dfa.hub.write(tmp_path / "new") / "README.md").read_text().startswith("---")


def test_no_name_is_no_folder(tmp_path):
    done = subprocess.run([sys.executable, "-m", "dfa.hub", ""], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 1 and done.stderr == "dfa.hub: folder is ''; accepted: a path, . for the current folder\n"
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("name", ["flash_attn_func", "flash_attn_varlen_func"])
def test_arguments_are_flash_attns_and_sinks(name):
    theirs, ours = (inspect.signature(getattr(module, name)).parameters for module in (flash_attn, dfa.hub))
    assert [*ours] == [*theirs, "s_aux"] and all(ours[key].default == theirs[key].default for key in theirs)


@pytest.mark.parametrize("options", [{}, {"causal": True, "window_size": (3, 0)}, {"softcap": 5.0, "softmax_scale": 0.3}])
def test_results_are_flash_attns(options):
    q, k, v = (torch.randn(2, 9, heads, 16) for heads in (4, 2, 2))
    flat, cu = [x.flatten(0, 1) for x in (q, k, v)], torch.tensor([0, 4, 18], dtype=torch.int32)
    for name, tensors in (("flash_attn_func", (q, k, v)), ("flash_attn_varlen_func", (*flat, cu, cu, 14, 14))):
        got, wanted = (getattr(module, name)(*tensors, **options, return_attn_probs=True) for module in (dfa.hub, flash_attn))
        assert torch.equal(got[0], wanted[0]) and torch.equal(got[1], wanted[1]) and got[2] is None


def test_sinks():
    q, sinks = torch.randn(2, 9, 4, 16), torch.randn(4)
    cu = torch.tensor([0, 9, 18], dtype=torch.int32)
    x = q.transpose(1, 2)
    wanted = dfa.attention(x, x, x, causal=True, sinks=sinks).transpose(1, 2)
    torch.testing.assert_close(dfa.hub.flash_attn_func(q, q, q, causal=True, s_aux=sinks), wanted)
    flat = q.flatten(0, 1)
    torch.testing.assert_close(dfa.hub.flash_attn_varlen_func(flat, flat, flat, cu, cu, causal=True, s_aux=sinks).view_as(q), wanted)


def test_what_is_not_supported_is_refused_by_its_name():
    q, cu = torch.zeros(1, 8, 2, 64), torch.tensor([0, 3, 8], dtype=torch.int32)
    with pytest.raises(ValueError, match="dropout_p 1.5; accepted"):
        dfa.hub.flash_attn_func(q, q, q, dropout_p=1.5)
    with pytest.raises(ValueError, match="block_table is not supported"):
        dfa.hub.flash_attn_varlen_func(q[0], q[0], q[0], cu, cu, block_table=cu)


@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_module_of_each_build(folder, backend):
    build = folder / "build" / f"torch-{backend}"
    assert json.loads((build / "metadata.json").read_text())["backend"] == {"type": backend}
    module = runpy.run_path(str(build / "__init__.py"))
    assert all(module[name] is getattr(dfa.hub, name) for name in FUNCTIONS)


def test_it_says_what_to_install_where_the_package_is_missing(folder):
    code = ("import sys, runpy\nsys.modules['dfa'] = None\n"
            f"try: runpy.run_path({str(folder / 'build/torch-cpu/__init__.py')!r})\nexcept ImportError as error: print(error)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'dfa-attention[cuda]'" in done.stdout


def test_a_folder_is_written_anew_but_not_somebody_elses(tmp_path):
    dfa.hub.write(tmp_path)
    (tmp_path / "build/torch-cpu/__init__.py").write_text("")
    dfa.hub.write(tmp_path)
    assert (tmp_path / "build/torch-cpu/__init__.py").read_text()
    theirs = tmp_path / "build/torch-cuda/metadata.json"
    theirs.write_text('{"name": "another"}')
    (tmp_path / "build/torch-cpu/__init__.py").write_text("")
    with pytest.raises(FileExistsError, match="torch-cuda is there and not of dfa.hub; accepted: another folder"):
        dfa.hub.write(tmp_path)
    assert theirs.read_text() == '{"name": "another"}' and not (tmp_path / "build/torch-cpu/__init__.py").read_text()


def test_the_command(tmp_path):
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "dfa.hub", *arguments], capture_output=True, text=True)
    done = run(str(tmp_path / "new"))
    assert done.returncode == 0 and done.stdout.split() == [str(tmp_path / "new")]
    assert (tmp_path / "new/build/torch-cuda/__init__.py").exists()
    assert "usage" in run().stderr and run("--help").returncode == 1
    (tmp_path / "file").write_text("")
    failed = run(str(tmp_path / "file"))
    assert failed.returncode == 1 and failed.stderr.startswith("dfa.hub: ") and "Traceback" not in failed.stderr


@pytest.fixture
def named(folder, monkeypatch):
    """The folder under a name of the hub, for kernels; nothing is asked of the network."""
    kernels = pytest.importorskip("kernels")
    monkeypatch.setenv("LOCAL_KERNELS", f"{NAME}={folder}")
    return kernels


def test_kernels_loads_the_folder(folder, named):
    for module in (named.get_local_kernel(folder), named.get_kernel(NAME, version=1)):
        assert all(getattr(module, name) is getattr(dfa.hub, name) for name in FUNCTIONS)


@pytest.fixture
def front_end(named, monkeypatch):
    """transformers, also where it waits for a version of kernels that is not out yet."""
    transformers = pytest.importorskip("transformers")
    from transformers.integrations import hub_kernels
    if not hub_kernels.is_kernels_available():
        monkeypatch.setattr(hub_kernels, "is_kernels_available", lambda: True)
        monkeypatch.setattr(hub_kernels, "get_kernel_hub", named.get_kernel, raising=False)
    return transformers


def models(transformers, kind="Llama", **options):
    """The model with eager attention and by transformers' front end over our functions, the same weights."""
    made = []
    for implementation in ("eager", NAME):
        torch.manual_seed(1)
        config = getattr(transformers, f"{kind}Config")(
            hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, vocab_size=50,
            attn_implementation=implementation, **options)
        made.append(getattr(transformers, f"{kind}ForCausalLM")(config).eval())
    return made


@pytest.mark.parametrize("kind, options", [("Llama", {}), ("Mistral", {"sliding_window": 5})])
@pytest.mark.parametrize("side", ["none", "left", "right"])
def test_padded_batches_of_transformers(front_end, kind, options, side):
    eager, ours = models(front_end, kind, **options)
    assert ours.config._attn_implementation == NAME
    tokens = torch.randint(50, (3, 17))
    mask = torch.ones_like(tokens)
    if side != "none":
        columns = torch.arange(17) if side == "left" else torch.arange(16, -1, -1)
        mask[columns.expand(3, -1) < torch.tensor([4, 0, 9])[:, None]] = 0
    got, wanted = (model(tokens, attention_mask=mask).logits for model in (ours, eager))
    assert (got - wanted)[mask.bool()].abs().max() < 1e-4
    for model, logits in ((ours, got), (eager, wanted)):
        logits[mask.bool()].square().mean().backward()
    for one, other in zip(ours.parameters(), eager.parameters()):
        assert (one.grad - other.grad).abs().max() < 1e-4 * (1 + other.grad.abs().max())


def test_packed_rows_of_transformers(front_end, monkeypatch):
    eager, ours = models(front_end)
    calls = []
    real = dfa.hub.attention_varlen
    monkeypatch.setattr(dfa.hub, "attention_varlen", lambda *x, **named: calls.append(x[3].tolist()) or real(*x, **named))
    tokens = torch.randint(50, (1, 17))
    positions = torch.cat([torch.arange(5), torch.arange(9), torch.arange(3)])[None]
    with torch.no_grad():
        got = ours(tokens, position_ids=positions).logits[0]
        wanted = torch.cat([eager(part).logits[0] for part in tokens.split([5, 9, 3], 1)])
    assert calls == [[0, 5, 14, 17]] * 2 and (got - wanted).abs().max() < 1e-4


def test_generation_of_transformers(front_end):
    eager, ours = models(front_end)
    tokens = torch.randint(50, (2, 7))
    mask = torch.ones_like(tokens)
    mask[0, :3] = 0
    options = {"attention_mask": mask, "max_new_tokens": 5, "do_sample": False, "pad_token_id": 0}
    assert torch.equal(ours.generate(tokens, **options), eager.generate(tokens, **options))


def test_sinks_of_transformers_arrive(front_end):
    config = front_end.GptOssConfig(hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, head_dim=16,
                                    num_key_value_heads=2, vocab_size=50, num_local_experts=2, num_experts_per_tok=1,
                                    sliding_window=4, attn_implementation="eager")
    torch.manual_seed(1)
    model = front_end.GptOssForCausalLM(config).eval()
    for layer in model.model.layers:
        torch.nn.init.normal_(layer.self_attn.sinks, std=2.0)
    tokens = torch.randint(50, (2, 11))
    with torch.no_grad():
        wanted = model(tokens).logits
        front_end.integrations.hub_kernels.load_and_register_attn_kernel(NAME)
        model.config._attn_implementation_internal = NAME  # whose own list of kernels set_attn_implementation would go by
        assert (model(tokens).logits - wanted).abs().max() < 1e-4

"""The program that runs PyTorch for `dfa bench`: its rules, with a stand-in for torch."""
import importlib.util
import pathlib
import types

import pytest

PATH = pathlib.Path(__file__).parents[2] / "src/bench/torch_peer.py"


@pytest.fixture()
def module():
    spec = importlib.util.spec_from_file_location("torch_peer", PATH)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture()
def peer(module):
    made = module.Peer()
    made.resets = []
    made.torch = types.SimpleNamespace(compiler=types.SimpleNamespace(reset=lambda: made.resets.append(1)))
    made.device = types.SimpleNamespace(type="cpu")
    made.problem = {"forward": False, "backward": True}
    return made


def test_modes_that_replay_graphs_take_no_backward_alone(module, peer):
    for launch in module.GRAPH_MODES:
        with pytest.raises(LookupError, match="accepted: fwdbwd") as error:
            peer.make({"id": 1, "kind": "flash", "launch": launch, "calls": 1})
        assert module.status_of(error.value) == "unsupported"
    assert set(module.GRAPH_MODES) < set(module.COMPILE_MODES)


class Rows:
    """A tensor as far as the peer looks at it: which two axes were swapped how often, and of what."""

    def __init__(self, name, swapped=False):
        self.name, self.swapped = name, swapped

    def detach(self):
        return self

    def transpose(self, *axes):
        assert axes == (1, 2)
        return Rows(self.name, not self.swapped)

    def __eq__(self, other):
        return (self.name, self.swapped) == (other.name, other.swapped)


@pytest.mark.parametrize(("causal", "window"), [(True, [-1, 0]), (False, [100, 0])])
def test_flash_attention_3_gets_rows_of_all_heads_and_gives_ours(module, peer, monkeypatch, causal, window):
    asked = {}

    def fwd(q, k, v, **options):
        asked["fwd"] = [q, k, v], options
        return Rows("o", True), "lse", None, None

    def bwd(*tensors, **options):
        asked["bwd"] = list(tensors), options

    monkeypatch.setattr(module, "flash3", lambda torch: types.SimpleNamespace(fwd=fwd, bwd=bwd))
    peer.torch.empty_like = lambda t: Rows("d" + t.name, t.swapped)
    peer.device = types.SimpleNamespace(type="cuda")
    peer.problem.update(dtype="bf16", scale=0.5, causal=causal, full=False, window=window, deterministic=True)
    options_of_both = {"softmax_scale": 0.5, "is_causal": causal}
    if not causal:
        options_of_both |= {"window_size_left": 100, "window_size_right": 0}
    peer.q, peer.k, peer.v, peer.grad = (Rows(name) for name in ("q", "k", "v", "do"))
    attend, differentiate = peer.of_flash3("eager")
    made = attend()
    assert made == (Rows("o"), "lse")
    inputs = [Rows(name, True) for name in "qkv"]
    assert asked["fwd"] == (inputs, options_of_both)
    assert differentiate(made) == [Rows("dq"), Rows("dk"), Rows("dv")]
    tensors, options = asked["bwd"]
    assert tensors == [Rows("do", True), *inputs, Rows("o", True), "lse"]
    assert options.pop("deterministic") is True
    assert [options.pop(n) for n in ("dq", "dk", "dv")] == [Rows(n, True) for n in ("dq", "dk", "dv")]
    assert options == options_of_both


def test_windows_are_flash_attention_3s_alone(module, peer):
    peer.problem.update(full=False, causal=False, window=[100, 0])
    with pytest.raises(LookupError, match="accepted: torch-flash3") as error:
        peer.of_sdpa("eager", 1)
    assert module.status_of(error.value) == "unsupported"


def test_flash_attention_3_says_what_it_takes(module, peer):
    peer.problem.update(dtype="fp32")
    with pytest.raises(LookupError, match="compiled already"):
        peer.of_flash3("compile")
    with pytest.raises(LookupError, match="takes fp16 and bf16 on a GPU"):
        peer.of_flash3("eager")
    with pytest.raises(LookupError, match="no FlashAttention-3: No module") as error:
        module.flash3(peer.torch)
    assert module.status_of(error.value) == "unsupported"


def test_what_was_compiled_for_a_problem_is_forgotten_once(peer):
    peer.drop({})
    assert peer.resets == []
    peer.compiled = True
    peer.drop({})
    peer.drop({})
    assert peer.resets == [1]


def test_an_error_without_words_says_where_it_was_raised(module):
    def fails():
        assert [] == [0], ""

    with pytest.raises(AssertionError) as error:
        fails()
    error.value.args = ()
    reason = module.reason_of(error.value)
    assert reason.startswith("AssertionError at test_torch_peer.py:") and "fails" in reason
    assert module.reason_of(ValueError("first\nsecond")) == "first"

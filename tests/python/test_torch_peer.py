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
            peer.make({"id": 1, "sdpa": "flash", "launch": launch, "calls": 1})
        assert module.status_of(error.value) == "unsupported"
    assert set(module.GRAPH_MODES) < set(module.COMPILE_MODES)


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

"""examples/serve.py: its pages balance, its batches give the tokens of generate(), and its record is what was served."""

import importlib.util
import json
import pathlib
import random
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

import dfa  # noqa: E402

ROOT = pathlib.Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


@pytest.fixture(scope="module")
def example():
    sys.path.insert(0, str(EXAMPLES))
    try:
        spec = importlib.util.spec_from_file_location("serve_example", EXAMPLES / "serve.py")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(EXAMPLES))


@pytest.fixture(scope="module")
def pages_of(example):
    return sys.modules["serving.pages"]


def tiny(example):
    return example.small_model(vocab_size=128, hidden_size=64, intermediate_size=64)


def served(example, model, requests, pages=64, size=8, **options):
    """All answers; the books are checked after every step."""
    paged = example.PagedModel(model, pages, size)
    engine = example.Engine(paged, example.Pages(pages, size), **options)
    for request in requests:
        engine.submit(request)
    for _ in range(10000):
        if not engine.busy:
            break
        engine.step()
        engine.pages.check([r.pages for r in engine.running])
        for request in engine.running:
            assert len(request.pages) >= -(-request.cached // size) and request.cached < len(request.tokens)
    assert not engine.busy and engine.pages.free == pages
    return engine


def drawn(example, n, longest=40, shared=19, most=9, seed=1):
    draw = random.Random(seed)
    system = [draw.randrange(1, 128) for _ in range(shared)]
    return [example.Request(i, (system if i % 2 else []) + [draw.randrange(1, 128) for _ in range(draw.randint(1, longest))],
                            draw.randint(1, most)) for i in range(n)]


def same_as_generate(example, model, engine, requests):
    assert sorted(r.name for r in engine.finished) == [r.name for r in requests]
    assert all(len(r.answer) == len(r.times_s) == r.most for r in requests)
    assert example.check(model, engine.finished) == []


@pytest.mark.parametrize("mixed", [True, False])
@pytest.mark.parametrize("size", [1, 8, 16])
def test_tokens_are_those_of_generate(example, mixed, size):
    model, requests = tiny(example), drawn(example, 9)
    engine = served(example, model, requests, 800 // size, size, budget=24, sequences=5, mixed=mixed)
    same_as_generate(example, model, engine, requests)
    assert (engine.steps["mixed"] > 0) == mixed and engine.steps["decode"] > 0
    assert sum(r.shared for r in requests) > 0  # prompts that begin alike


def test_a_cache_too_small_for_all_sends_requests_back(example):
    model, requests = tiny(example), drawn(example, 8, longest=30, shared=8, most=16, seed=3)
    engine = served(example, model, requests, 9, 8, budget=32, sequences=8)
    assert sum(r.preempted for r in requests) > 0
    same_as_generate(example, model, engine, requests)


def test_a_model_with_windows(example):
    from transformers import AutoConfig, AutoModelForCausalLM
    torch.manual_seed(2)
    config = AutoConfig.for_model("mistral", vocab_size=128, hidden_size=64, intermediate_size=64, num_hidden_layers=2,
                                  num_attention_heads=4, num_key_value_heads=2, sliding_window=11, initializer_range=0.1)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    requests = drawn(example, 5)
    same_as_generate(example, model, served(example, model, requests, 64, 8, budget=16, sequences=4), requests)


def test_what_cannot_be_served_is_refused(example):
    engine = example.Engine(None, example.Pages(2, 8))
    for prompt, most, words in (([], 1, "accepted: 1 or more"), ([1], 0, "accepted: 1 or more"), ([1] * 16, 2, "needs 17 rows")):
        with pytest.raises(ValueError, match=words):
            engine.submit(example.Request(0, prompt, most))
    with pytest.raises(ValueError, match="budget"):
        example.Engine(None, example.Pages(2, 8), budget=4, sequences=5)
    assert not engine.busy


def test_pages_are_shared_kept_and_given_up(pages_of):
    pages = pages_of.Pages(4, 2)
    held = [pages.allocate(), pages.allocate()]
    pages.learn(held, [1, 2, 3, 4, 5])
    assert pages.shared([1, 2, 3, 4]) == held and pages.shared([1, 2, 7, 7]) == held[:1]
    assert pages.shared([9, 9, 3, 4]) == pages.shared([3, 4]) == pages.shared([1]) == []  # the same tokens behind others
    pages.check([held, held, held[:1]])
    for holder in (held, held, held[:1]):
        pages.release(holder)
    assert pages.free == 4 and pages.shared([1, 2, 3, 4]) == held  # known still
    pages.release(held)
    four = [pages.allocate() for _ in range(4)]
    assert sorted(four) == [0, 1, 2, 3] and pages.shared([1, 2, 3, 4]) == []
    with pytest.raises(pages_of.NoPages, match="all 4"):
        pages.allocate()
    pages.check([four])
    pages.release(four)
    with pytest.raises(ValueError, match="held by nobody"):
        pages.release(four[:1])


def test_two_that_computed_the_same_beginning_share_one_from_then_on(pages_of):
    pages = pages_of.Pages(6, 1)
    one, other = [pages.allocate() for _ in range(2)], [pages.allocate() for _ in range(3)]
    pages.learn(one, [1, 2])
    pages.learn(other, [1, 2, 3])
    assert pages.shared([1, 2, 3]) == [*one, other[2]]
    long = pages_of.Pages(3000, 1)
    many = [long.allocate() for _ in range(3000)]
    long.learn(many, [5] * 3000)
    assert long.shared([5] * 3000) == many


def test_the_program_writes_what_it_served(example, tmp_path, capsys):
    example.main(["--requests", "6", "--rate", "50", "--prompt", "24", "--answer", "6", "--pages", "64", "--page", "8",
                  "--check", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "serve.json").read_text())
    said = capsys.readouterr().out
    assert "6 requests" in said and "generate() gives too: 6 of 6" in said
    serving, phases = record["serving"], record["phases"]
    assert record["output_token_count"] == serving["time_between_tokens"]["count"] + 6
    assert sum(phases[p]["prefill_token_count"] for p in phases if p != "idle") + serving["prompt_tokens_shared"] >= (
        serving["prompt_tokens"])
    assert sum(phases[p]["decode_token_count"] for p in phases if p != "idle") == serving["time_between_tokens"]["count"]
    assert record["total_energy_joules"] is not None or record["not_measured"] in said
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(record, json.loads((ROOT / "docs/schema/dfa-tokens-1.schema.json").read_text()))


def test_joules_of_a_card(example, tmp_path, fake_nvml, capsys):
    fake_nvml("clock real\ncard H200 GPU-aa 00000000:3B:00.0\npower constant 500\ntick 0.005\nlimit 700\n")
    example.main(["--requests", "6", "--rate", "50", "--meter", "GPU-aa", "--apart", "--out", str(tmp_path)])
    record = json.loads((tmp_path / "serve.json").read_text())
    assert record["device"]["power_limit_watts"] == 700 and "mJ an output token" in capsys.readouterr().out
    assert record["average_power_watts"] == pytest.approx(500, rel=0.1)
    assert record["phases"]["decode"]["energy_per_token_joules"] > 0 and record["phases"]["mixed"]["steps"] == 0
    example.main(["--requests", "6", "--rate", "50", "--meter", "GPU-aa", "--policy", "power_cap:900W", "--out", str(tmp_path)])
    serving = json.loads((tmp_path / "serve.json").read_text())["serving"]
    assert serving["policy"] == "power_cap:900W" and serving["seconds_of_gaps"] < 0.1
    assert "all behind prompts" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="serve: policy 'power_cup"):
        example.main(["--meter", "GPU-aa", "--policy", "power_cup:900W", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="serve: device 'GPU-bb'"):
        example.main(["--meter", "GPU-bb", "--out", str(tmp_path)])


def test_options_are_checked(example, capsys):
    with pytest.raises(SystemExit):
        example.main(["--model", "/no/such/folder"])
    assert "no such folder" in capsys.readouterr().err
    for wrong in (["--policy", "power_cap:400W"], ["--rate", "0"], ["--requests", "-1"], ["--budget", "4"], ["--rate", "nan"]):
        with pytest.raises(SystemExit) as ended:
            example.main(wrong)
        assert ended.value.code == 2 and "accepted" in capsys.readouterr().err


def test_what_attention_refuses_is_one_line(example, tmp_path, monkeypatch):
    def refuse(*_):
        raise RuntimeError("page_table on cuda:0 is refused")
    monkeypatch.setattr(sys.modules["serving.model"], "flash_attn_with_kvcache", lambda *_, **__: refuse())
    with pytest.raises(SystemExit, match="^serve: page_table on cuda:0"):
        example.main(["--out", str(tmp_path)])
    assert not list(tmp_path.iterdir())


def test_a_request_too_long_for_the_cache_is_one_line(example, tmp_path):
    with pytest.raises(SystemExit, match="needs .* rows, the cache has 32"):
        example.main(["--pages", "4", "--page", "8", "--requests", "3", "--out", str(tmp_path)])

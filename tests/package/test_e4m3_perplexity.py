"""benchmarks/e4m3_perplexity.py: its forwards are what their names say, and its table holds them beside each other."""
import importlib.util
import pathlib

import pytest

torch = pytest.importorskip("torch")

SCRIPT = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/e4m3_perplexity.py"


@pytest.fixture(scope="module")
def script():
    spec = importlib.util.spec_from_file_location("e4m3_perplexity", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_forwards_are_causal_attention_as_exact_as_their_names(script):
    torch.manual_seed(1)
    q, k, v = (torch.randn(2, 2, 70, 64).bfloat16() for _ in range(3))
    truth = torch.nn.functional.scaled_dot_product_attention(*(x.double() for x in (q, k, v)), is_causal=True)
    shares = {}
    for name, forward in script.FORWARDS.items():
        o = forward(q, k, v)
        assert o.dtype == torch.bfloat16
        shares[name] = ((o.double() - truth).norm() / truth.norm()).item()
    assert shares["bf16"] < 0.005
    for name in ("e4m3 tensor", "e4m3 head", "e4m3 head p8"):  # 3 bits of mantissa: up to 2^-4 of a number
        assert 0.02 < shares[name] < 0.08, shares
    assert shares["e4m3 head p8"] > shares["e4m3 head"]


@pytest.mark.all
def test_a_table_holds_each_forward_against_bf16_on_the_same_windows(script):
    gpt = script.example()
    text = torch.frombuffer(bytearray(b"def attention(q, k, v): return softmax(q @ k.T) @ v\n" * 200), dtype=torch.uint8)
    windows = script.windows_of(text, 4)
    assert windows.shape == (4, script.SHAPE["context"] + 1)
    rows = {name: numbers for name, *numbers in script.table_of(script.trained(gpt, text, 0, 12), windows)}
    assert list(rows) == list(script.FORWARDS)
    assert rows["bf16"][1:] == [0, 0, 0]
    assert 1 < rows["bf16"][0] < 257
    for name in ("e4m3 tensor", "e4m3 head", "e4m3 head p8"):
        perplexity, more, error, others = rows[name]
        assert 0 < abs(more) < 5 and error > 0 and 0 <= others < 20
        assert perplexity == pytest.approx(rows["bf16"][0] * (1 + more / 100), rel=1e-9)


def test_what_cannot_be_read_is_refused(script):
    text = torch.zeros(3000, dtype=torch.uint8)
    for count in (0, 1, 12):
        with pytest.raises(SystemExit, match="accepted: 2 to 11"):
            script.windows_of(text, count)

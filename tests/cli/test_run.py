"""dfa run: against attention in NumPy, through files of every kind."""
import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file


def attention(q, k, v, causal=False):
    """fp64; q (b,hq,sq,d), k and v (b,hk,sk,d). Returns o and lse."""
    q, k, v = (x.astype(np.float64) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    if causal:
        sq, sk = s.shape[-2:]
        s = np.where(np.arange(sk) <= np.arange(sq)[:, None] + sk - sq, s, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - top)
    total = p.sum(-1, keepdims=True)
    return (p / total) @ v, (top + np.log(total))[..., 0]


def tensors(b=2, hq=4, hk=2, sq=33, sk=47, d=16):
    random = np.random.default_rng(1)
    return [random.standard_normal(shape).astype(np.float32)
            for shape in [(b, hq, sq, d), (b, hk, sk, d), (b, hk, sk, d)]]


def save(folder, q, k, v):
    options = []
    for name, value in zip("qkv", [q, k, v]):
        np.save(folder / f"{name}.npy", value)
        options += [f"--{name}", f"{name}.npy"]
    return options


def ran(done):
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout


def test_shapes_come_from_the_files(dfa, tmp_path):
    q, k, v = tensors()
    text = ran(dfa("run", "--problem", "fwd fp32 causal", *save(tmp_path, q, k, v), "--out", "new/o"))
    assert "fwd fp32 causal b2 hq4 hk2 sq33 sk47 d16" in text
    assert "exact in fp32" in text
    o, lse = attention(q, k, v, causal=True)
    np.testing.assert_allclose(np.load(tmp_path / "new/o/o.npy"), o, atol=2e-6)
    np.testing.assert_allclose(np.load(tmp_path / "new/o/lse.npy"), lse, atol=2e-6)


def test_three_dimensions_in_three_dimensions_out(dfa, tmp_path):
    q, k, v = (x[0] for x in tensors(b=1))
    ran(dfa("run", "--problem", "fwd fp32", *save(tmp_path, q, k, v), "--out", "."))
    assert np.load(tmp_path / "o.npy").shape == q.shape
    assert np.load(tmp_path / "lse.npy").shape == q.shape[:2]


def test_the_other_layout_and_strides_give_the_same(dfa, tmp_path):
    q, k, v = tensors()
    o, _ = attention(q, k, v)
    swapped = [x.swapaxes(1, 2).copy() for x in (q, k, v)]
    files = save(tmp_path, *swapped)
    ran(dfa("run", "--problem", "fwd fp32 layout(bshd)", *files, "--out", "."))
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), o.swapaxes(1, 2), atol=2e-6)
    files = save(tmp_path, q, k, v)
    line = "fwd fp32 strides_q(8000,1600,40) strides_o(9000,2000,24)"
    ran(dfa("run", "--problem", line, *files, "--out", "."))
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), o, atol=2e-6)


@pytest.mark.parametrize("stored", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("dtype, tolerance", [("fp32", 3e-3), ("fp16", 4e-3), ("bf16", 3e-2)])
def test_every_stored_type_serves_every_problem_type(dfa, tmp_path, stored, dtype, tolerance):
    q, k, v = tensors()
    files = save(tmp_path, *(x.astype(stored) for x in (q, k, v)))
    text = ran(dfa("run", "--problem", f"fwd {dtype}", *files, "--out", "."))
    exact = dtype == "fp32" or (dtype == "fp16" and stored == np.float16)
    assert ("exact in" if exact else "rounded to") in text
    result = np.load(tmp_path / "o.npy")
    assert result.dtype == (np.float16 if dtype == "fp16" else np.float32)
    np.testing.assert_allclose(result, attention(q, k, v)[0], atol=tolerance)


def test_safetensors_by_name_and_by_role(dfa, tmp_path):
    q, k, v = tensors()
    save_file({"q": q, "keys": k, "v": v}, tmp_path / "t.safetensors")
    ran(dfa("run", "--problem", "fwd fp32", "--q", "t.safetensors", "--k", "t.safetensors:keys",
            "--v", "t.safetensors", "--out", "."))
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), attention(q, k, v)[0], atol=2e-6)


def test_eight_bits_are_taken_as_they_are_and_made_of_wider_ones(dfa, tmp_path):
    q, k, v = tensors()
    v[:, 1] *= 100
    save_file({"q": q, "k": k, "v": v}, tmp_path / "wide.safetensors")
    codes = [x.astype(ml_dtypes.float8_e4m3fn) for x in (q, k, v)]
    save_file(dict(zip("qkv", codes)), tmp_path / "codes.safetensors")
    options = ["run", "--problem", "fwd e4m3 causal", "--backend", "cpu", "--check", "--out", "."]
    text = ran(dfa(*options, *(part for name in "qkv" for part in (f"--{name}", "codes.safetensors"))))
    assert "check     ok" in text and "exact in e4m3" in text
    wanted = attention(*codes, causal=True)[0]
    assert (np.abs(np.load(tmp_path / "o.npy") - wanted) <= 2.0 ** -8 * np.abs(wanted) + 1e-5).all()
    text = ran(dfa(*options, *(part for name in "qkv" for part in (f"--{name}", "wide.safetensors"))))
    assert "check     ok" in text and "a factor for each batch and key head" in text
    wanted = attention(q, k, v, causal=True)[0]
    for head in range(4):  # the large head has a factor of its own: each is off by its own size
        error = np.abs(np.load(tmp_path / "o.npy") - wanted)[:, head]
        assert 0 < error.max() < 0.2 * np.abs(wanted[:, head]).max()


def test_gradients_agree_with_finite_differences(dfa, tmp_path):
    q, k, v = tensors(b=1, hq=2, hk=1, sq=9, sk=11, d=8)
    do = np.random.default_rng(5).standard_normal(q.shape).astype(np.float32)
    np.save(tmp_path / "do.npy", do)
    files = save(tmp_path, q, k, v) + ["--do", "do.npy"]
    ran(dfa("run", "--problem", "fwdbwd fp32", *files, "--out", ".", "--check"))
    inputs = {"dq": q, "dk": k, "dv": v}
    for name, tensor in inputs.items():
        direction = np.random.default_rng(7).standard_normal(tensor.shape)
        step = 1e-5
        sides = []
        for sign in (1, -1):
            moved = {**inputs, name: tensor.astype(np.float64) + sign * step * direction}
            sides.append((attention(*moved.values())[0] * do).sum())
        slope = (sides[0] - sides[1]) / (2 * step)
        gradient = np.load(tmp_path / f"{name}.npy")
        assert gradient.shape == tensor.shape
        assert (gradient * direction).sum() == pytest.approx(slope, rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("line", [
    "fwdbwd bf16 causal b2 hq8 hk2 s200 d64",
    "bwd fp16 b1 h2 sq65 sk31 d40",
    "fwd fp32 h1 sq1 sk100 d128 window(20,0)",
    "fwd bf16 causal h2 sq70 sk30 d64 dv32",
])
def test_seeded_runs_pass_the_check(dfa, line):
    text = ran(dfa("run", "--problem", line, "--check"))
    assert "check     ok" in text
    assert "GFLOP/s" in text and "seed 1" in text


@pytest.mark.parametrize("choice", [["--algorithm", "standard"], ["--backend", "reference"]])
def test_other_ways_pass_the_check_too(dfa, choice):
    assert "check     ok" in ran(dfa("run", "--problem", "fwdbwd fp32 h2 s70 d32", *choice, "--check"))


def test_the_same_seed_gives_the_same_bits_and_another_does_not(dfa, tmp_path):
    for seed, folder in [(1, "a"), (1, "b"), (2, "c")]:
        ran(dfa("run", "--problem", "fwd bf16 h2 s50 d32", "--seed", seed, "--out", folder))
    a, b, c = ((tmp_path / folder / "o.npy").read_bytes() for folder in "abc")
    assert a == b != c


def test_the_json_is_a_result_file_of_one_case(dfa, tmp_path):
    ran(dfa("run", "--problem", "fwd fp32 h2 s50 d32", "--check", "--json", "r.json"))
    result = json.loads((tmp_path / "r.json").read_text())
    case, = result["cases"]
    assert result["schema"] == "dfa-result/1"
    assert (case["suite"], case["status"], case["check"]["ok"]) == ("run", "ok", True)
    assert case["time_ms"]["median"] > 0
    assert dfa("compare", "r.json", "r.json").returncode == 0


def test_a_forced_configuration_is_what_runs(dfa):
    text = ran(dfa("run", "--problem", "fwd fp32 h1 s50 d32", "--config", "block_q=16,block_k=16"))
    assert ".block_q=16" in text and "(forced)" in text


def test_a_budget_of_multiprocessors_is_refused_by_a_processor(fails):
    fails(3, ["sm_budget 4", "accepted: 0"], "run", "--problem", "fwd fp32 b1 h1 s8 d8", "--backend", "cpu",
          "--sm-budget", "4")

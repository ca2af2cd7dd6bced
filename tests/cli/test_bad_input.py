"""Bad input: one line that names the value and what would be accepted, exit code 2 or 3."""
import os
import resource

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file


def save(path, *shape, dtype=np.float32, seed=0):
    values = np.random.default_rng(seed).standard_normal(shape).astype(dtype)
    np.save(path, values)
    return values


@pytest.fixture
def qkv(tmp_path):
    """q (4,16,8), k and v (2,24,8) as .npy files; the options that name them."""
    save(tmp_path / "q.npy", 4, 16, 8, seed=1)
    save(tmp_path / "k.npy", 2, 24, 8, seed=2)
    save(tmp_path / "v.npy", 2, 24, 8, seed=3)
    return ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]


@pytest.mark.parametrize("line", ["fwd fp32 lens(4,12)", "fwd fp32 lens(4,12) lens_k(12,12)", "fwd fp32 lens_k(12,12)"])
def test_packed_sequences_are_not_read_from_files(dfa, qkv, line):
    done = dfa("run", "--problem", line, *qkv)
    assert (done.returncode, done.stdout) == (3, "") and done.stderr.count("\n") == 1
    assert "tensors from files: takes no packed sequences; leave lens(…) out" in done.stderr


@pytest.mark.parametrize("line, words", [
    (" ", "pass is missing"),
    ("forward bf16 h1 s8 d8", ["forward", "fwd"]),
    ("fwd bf17 h1 s8 d8", "bf17"),
    ("fwd h1 s8 d8", ["dtype", "bf16"]),
    ("fwdbwd e4m3 h1 s8 d8", "e4m3 has a forward alone"),
    ("bwd e4m3 h1 s8 d8", "e4m3 has a forward alone"),
    ("fwd fp8 h1 s8 d8", ["fp8", "e4m3"]),
    ("fwd bf16 s8 d8", "hqN"),
    ("fwd bf16 h1 s8", "dN"),
    ("fwd bf16 b0 h1 s8 d8", ["b=0", "from 1"]),
    ("fwd bf16 h0 s8 d8", ["hq=0", "from 1"]),
    ("fwd bf16 h1 s0 d8", ["sq=0", "from 1"]),
    ("fwd bf16 h1 sq8 sk0 d8", ["sk=0", "from 1"]),
    ("fwd bf16 h1 s8 d0", ["d=0", "multiples of 8"]),
    ("fwd bf16 h1 s-8 d8", "sq=-8"),
    ("fwd bf16 h1 s8 d584", ["d=584", "512"]),
    ("fwd bf16 h1 s8 d12", ["d=12", "multiples of 8"]),
    ("fwd bf16 h1 s8 d8 dv600", ["dv=600", "512"]),
    ("fwd bf16 hq6 hk4 s8 d8", ["hq=6", "not a multiple of hk=4"]),
    ("fwd bf16 h1 s8 d8 s9", "s9"),
    ("fwd bf16 h1 s8 d8 window(1)", "window(L,R)"),
    ("fwd bf16 h1 s8 d8 scale(nan)", "scale"),
    ("fwd bf16 h1 s8 d8 strides_q(1,2)", "BATCH,HEAD,ROW"),
    ("fwd bf16 h1 s8 d8 strides_q(64,64,4)", "row stride"),
    ("fwd bf16 h1 s8 d8 strides_q(-64,64,8)", "negative"),
    ("fwd bf16 h2 s8 d8 strides_o(128,0,8)", "overlap"),
    ("fwdbwd bf16 h2 s8 d8 strides_k(128,0,8)", "overlap"),
    ("fwd bf16 h1 s99999999999999999999 d8", "s99999999999999999999"),
    ("fwd bf16 b1000000 h1000000 s1000000 d8", "2^48"),
])
def test_bad_problem_lines(fails, line, words):
    fails(2, words, "run", "--problem", line)


@pytest.mark.parametrize("options, words", [
    (["--backend", "tpu"], ["tpu", "auto, cuda, cpu, reference"]),
    (["--algorithm", "magic"], ["magic", "auto, standard, flash"]),
    (["--config", "block_q=7"], "block_q=7"),
    (["--config", "speed=11"], "speed"),
    (["--threads", "-1"], "threads"),
    (["--threads", "1000000"], "threads"),
])
def test_bad_choices(fails, options, words):
    fails(2, words, "run", "--problem", "fwd fp32 h1 s8 d8", *options)


@pytest.mark.parametrize("line", ["fwdbwd tf32 h1 s8 d8", "fwd tf32 h1 s8 d8"])
def test_what_this_machine_cannot_do_is_exit_code_three(fails, line):
    fails(3, "cpu", "run", "--problem", line, "--backend", "cpu")


def test_memory_that_is_not_there_is_exit_code_three(fails):
    fails(3, "GB", "run", "--problem", "fwd fp32 b1 h1000 s10000000 d256")


def test_sizes_in_the_line_are_held_against_the_files(fails, qkv):
    fails(2, ["--q", "(4,16,8)", "rows is 16", "needs 17"],
          "run", "--problem", "fwd fp32 sq17", *qkv)
    fails(2, ["--k", "(2,24,8)", "heads is 2", "needs 4"], "run", "--problem", "fwd fp32 hk4", *qkv)
    fails(2, ["--q", "b is 1", "needs 3"], "run", "--problem", "fwd fp32 b3", *qkv)


def test_files_that_do_not_fit_each_other(fails, qkv, tmp_path):
    save(tmp_path / "v.npy", 2, 23, 8)
    fails(2, ["--v", "rows is 23", "needs 24"], "run", "--problem", "fwd fp32", *qkv)
    save(tmp_path / "v.npy", 2, 24, 8)
    save(tmp_path / "k.npy", 3, 24, 8)
    fails(2, "not a multiple of hk=3", "run", "--problem", "fwd fp32", *qkv)
    save(tmp_path / "k.npy", 2, 24, 16)
    fails(2, ["--k", "head dim is 16", "needs 8"], "run", "--problem", "fwd fp32", *qkv)


@pytest.mark.parametrize("shape, words", [
    ((16, 8), "(16,8)"),
    ((1, 1, 4, 16, 8), "(1,1,4,16,8)"),
    ((4, 0, 8), "sq=0"),
    ((4, 16, 12), "d=12"),
    ((4, 16, 584), "d=584"),
])
def test_shapes_that_are_not_attention(fails, qkv, tmp_path, shape, words):
    save(tmp_path / "q.npy", *shape)
    fails(2, words, "run", "--problem", "fwd fp32", *qkv)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_values_that_are_not_finite_are_located(fails, qkv, tmp_path, name, value):
    path = tmp_path / f"{name}.npy"
    values = np.load(path)
    values[1, 7, 3] = values[1, 8, 0] = value
    np.save(path, values)
    fails(2, [f"--{name}", str(value), "(1,7,3)", "finite"], "run", "--problem", "fwd fp32", *qkv)


def test_values_beyond_the_type_are_located(fails, qkv, tmp_path):
    values = np.load(tmp_path / "q.npy")
    values[2, 0, 5] = 7e4
    np.save(tmp_path / "q.npy", values)
    fails(2, ["--q", "70000", "(2,0,5)", "fp16"], "run", "--problem", "fwd fp16", *qkv)


def test_some_files_but_not_all(fails, qkv):
    fails(2, "--q, --k and --v go together", "run", "--problem", "fwd fp32", *qkv[:4])


def test_do_is_refused_by_a_forward(fails, qkv):
    fails(2, "--do", "run", "--problem", "fwd fp32", *qkv, "--do", "q.npy")


def test_element_types_that_are_not_accepted(fails, qkv, tmp_path):
    for dtype in [">f4", "<i4", "<u2", "<c8", "|b1"]:
        np.save(tmp_path / "q.npy", np.zeros((4, 16, 8), dtype))
        fails(2, [f"dtype '{dtype}'", "<f4"], "run", "--problem", "fwd fp32", *qkv)
    np.save(tmp_path / "q.npy", np.asfortranarray(np.zeros((4, 16, 8), np.float32)))
    fails(2, "Fortran order", "run", "--problem", "fwd fp32", *qkv)


def test_unreadable_and_damaged_files(fails, qkv, tmp_path):
    whole = (tmp_path / "q.npy").read_bytes()
    path = tmp_path / "q.npy"
    for size in [0, 5, 9, 60, 128, len(whole) - 1]:
        path.write_bytes(whole[:size])
        fails(2, "q.npy", "run", "--problem", "fwd fp32", *qkv)
    path.write_bytes(whole + b"x")
    fails(2, "too long", "run", "--problem", "fwd fp32", *qkv)
    path.unlink()
    fails(2, ["cannot read", "q.npy"], "run", "--problem", "fwd fp32", *qkv)
    path.mkdir()
    fails(2, ["cannot read", "q.npy"], "run", "--problem", "fwd fp32", *qkv)
    fails(2, ["q.txt", ".npy"], "run", "--problem", "fwd fp32", "--q", "q.txt", *qkv[2:])


def test_eight_bits_of_npy_do_not_say_which(fails, qkv, tmp_path):
    np.save(tmp_path / "q.npy", np.zeros((1, 2, 8, 8), ml_dtypes.float8_e4m3fn))
    fails(2, ["'<V1'", "F8_E4M3"], "run", "--problem", "fwd e4m3", *qkv)


def test_damaged_safetensors(fails, qkv, tmp_path):
    path = tmp_path / "t.safetensors"
    save_file({"a": np.zeros((4, 16, 8), np.float32), "b": np.zeros(3, np.int64)}, path)
    options = ["run", "--problem", "fwd fp32", *qkv[2:], "--q"]
    fails(2, ["no tensor 'q'", "it has"], *options, "t.safetensors")
    fails(2, ["no tensor 'c'", "FILE:NAME"], *options, "t.safetensors:c")
    fails(2, "dtype 'I64'", *options, "t.safetensors:b")
    whole = path.read_bytes()
    for size in [0, 7, 20, len(whole) - 100]:
        path.write_bytes(whole[:size])
        fails(2, "t.safetensors", *options, "t.safetensors:a")


def test_places_that_cannot_be_written(fails, tmp_path):
    line = ["run", "--problem", "fwd fp32 h1 s8 d8"]
    fails(2, "/dev/null/x", *line, "--out", "/dev/null/x")
    fails(2, "/dev/null/x.json", *line, "--json", "/dev/null/x.json")
    fails(2, "/nowhere", *line, "--json", "/nowhere/x.json")
    fails(2, "/dev/null/x.json", "bench", "--problem", "fwd fp32 h1 s8 d8", "--out",
          "/dev/null/x.json")
    (tmp_path / "o.npy").mkdir()
    fails(2, "o.npy", *line, "--out", ".")


@pytest.fixture
def small_files(tmp_path_factory):
    """No file may grow beyond 64 bytes; coverage data, if any, goes where that does no harm."""
    return {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64)),
            "env": {"GCOV_PREFIX": str(tmp_path_factory.mktemp("coverage")),
                    "GCOV_ERROR_FILE": os.devnull}}


def test_a_full_disk_leaves_the_old_outputs(fails, tmp_path, small_files):
    (tmp_path / "o.npy").write_bytes(b"old")
    fails(2, ["cannot write", "o.npy"], "run", "--problem", "fwd fp32 h4 s64 d64", "--out", ".",
          **small_files)
    assert (tmp_path / "o.npy").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["o.npy"]


@pytest.mark.parametrize("command", ["run", "bench"])
def test_a_full_disk_leaves_the_old_result(dfa, tmp_path, small_files, command):
    (tmp_path / "r.json").write_text("old")
    extra = ["--json", "r.json"] if command == "run" else ["--out", "r.json", "--seconds", "0.01"]
    done = dfa(command, "--problem", "fwd fp32 h1 s8 d8", *extra, **small_files)
    assert done.returncode == 2
    error = done.stderr.splitlines()[-1]  # bench has shown its progress before it
    assert error.startswith("dfa: cannot write")
    assert (tmp_path / "r.json").read_text() == "old"
    assert os.listdir(tmp_path) == ["r.json"]


LINE = "fwd bf16 b1 h1 s64 d64"


@pytest.mark.parametrize("arguments, words", [
    (["bench", "--problem", LINE, "--seconds", "-1", "--out", "r.json"], "'-1' is no number above 0"),
    (["bench", "--problem", LINE, "--seconds", "inf", "--out", "r.json"], "'inf' is no number above 0"),
    (["run", "--problem", LINE, "--seed", "x"], ["'x' is no number of 0 or more", "2^64-1"]),
    (["monitor", "--seconds", "soon"], "'soon' is no number above 0"),
    (["tune"], ["nothing to do", "--problem", "--list"]),
    (["power", "--policy", "min_energy", "--profile", "none.db", "--problem", LINE],
     ["'none.db' is not there", "dfa tune", "shipped"]),
    (["power", "--policy", "max_performance", "--problem", LINE, "--trace", "nowhere/t.jsonl"],
     ["nowhere/t.jsonl", "is not a folder"]),
    (["power", "--policy", "max_performance", "--problem", LINE, "--chrome", "nowhere/t.json"],
     ["nowhere/t.json", "is not a folder"]),
    (["simulate", "--scenario", "bad.json"], ["'bad.json'", "not JSON"]),
    (["simulate", "--scenario", "other.json"], ["'other.json'", "dfa-scenario/1"]),
    (["tune", "--import", "bad.json"], ["--import 'bad.json'", "dfa-profile/1"]),
])
def test_bad_usage_is_told_before_anything_is_measured(fails, tmp_path, arguments, words):
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "other.json").write_text('{"schema": "x"}')
    fails(2, words, *arguments)
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("arguments", [
    *(["run", option] for option in ("--problem", "--q", "--k", "--v", "--do", "--out", "--json", "--config", "--backend")),
    *(["bench", "--out", "r.json", option] for option in ("--only", "--config", "--scale", "--algorithms", "--peers")),
    ["bench", "--out"], ["tune", "--profile", "p.db", "--import"], ["tune", "--profile", "p.db", "--export"],
    ["power", "--policy", "edp", "--trace"], ["power", "--policy", "edp", "--profile"],
    ["study", "--out"], ["study", "--out", "s", "--source"],
    ["cache", "list", "--problem"], ["compare", "r.json"], ["analyze", "--machine"]])
def test_a_value_that_is_there_and_empty_is_refused(fails, tmp_path, arguments):
    problem = ["--problem", "fwd fp32 h1 s8 d8"] if arguments[0] in ("run", "bench", "tune", "power", "analyze") else []
    fails(2, "'' is no value", *arguments[:1], *problem, *arguments[1:], "")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments, words", [
    *((["analyze", "--worked-example", *option], [f"no use for {option[0]}; accepted with --problem"])
      for option in (["--machine", "t4"], ["--sram", "4096"], ["--config", "block_q=32"])),
    *((command, ["config 'BackwardConfig{.block_q=32}' is of the other pass than"]) for command in (
        [*start, "--problem", LINE, "--config", "BackwardConfig{.block_q=32}"] for start in (["analyze"], ["run"], ["bench", "--out", "r.json"]))),
    *(([*start, "--problem", LINE, "--config", text], [f"config: '{text}' is of no type that is known", "ForwardConfig{…}"])
      for start in (["analyze"], ["run"], ["bench", "--out", "r.json"])
      for text in ("Forwardconfig{.block_q=32}", " ForwardConfig{.block_q=32}", "ForwardConfig {.block_q=32}")),
    (["run", "--problem", LINE.replace("fwd", "bwd"), "--config", "ForwardConfig{.block_q=32}"], ["is of the other pass than 'bwd"]),
    *((["cache", action, *option], [f"cache {action} has no use for {option[0]}; accepted with warm"])
      for action in ("list", "clear") for option in (["--problem", LINE], ["--jobs", "2"], ["--sms", "132"], ["--arch", "sm_90a"])),
    *((["tune", "--list", *option], [f"no use for {option[0]}; accepted with --problem"])
      for option in (["--budget", "5"], ["--points", "2"], ["--point-seconds", "1"], ["--less-exact"], ["--memory", "1MB"],
                     ["--backend", "cpu"])),
    (["bench", "--problem", LINE, "--out", "r.json", "--no-energy", "--energy-seconds", "1"], ["--no-energy has no use for --energy-seconds"]),
    (["bench", "--problem", LINE, "--out", "r.json", "--algorithms", "standard,stored", "--config", "block_q=32"],
     ["--algorithms standard,stored has no use for --config", "flash"]),
])
def test_an_option_that_changes_nothing_is_refused(fails, tmp_path, arguments, words):
    fails(2, words, *arguments)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("options, words", [
    (["--problem", "fwd bf16 causal s64 h1 d64", "--problem", "fwd bf16 causal b1 h1 s64 d64"], "problem 'fwd bf16 causal b1 hq1 hk1 sq64 sk64 d64'"),
    (["--problem", LINE, "--algorithms", "flash,standard,flash"], "--algorithms 'flash'"),
    (["--problem", LINE, "--launch", "eager,eager"], "--launch 'eager'"),
    (["--problem", LINE, "--peers", "torch,torch-math"], "--peers 'torch-math'")])
def test_what_a_result_could_not_tell_apart_is_refused(fails, tmp_path, options, words):
    fails(2, [words, "comes twice"], "bench", "--out", "r.json", *options)
    assert not list(tmp_path.iterdir())


def test_an_empty_address_is_told_what_addresses_are(fails):
    fails(2, "--listen: ''; accepted: HOST:PORT", "monitor", "--listen", "")


@pytest.mark.parametrize("text, words", [
    (b"fwd fp32 h1 s8 d8\0junk\n", [r"'d8\x00junk'", "expected PASS"]),
    (b"\xff\xfef\0w\0", [r"'\xff\xfef\x00w\x00'", "expected PASS"]),
    (b"fwd fp32 h1 s8 d8 \x1b[31mred\n", [r"'\x1b[31mred'"]),
    ("fwd fp32 h\uff11 s8 d8".encode(), r"'h\xef\xbc\x91'"), (b"x" * 100000, ["'" + "x" * 80 + "...'", "expected PASS"])])
def test_bytes_that_are_no_text_hide_no_message(fails, tmp_path, text, words):
    (tmp_path / "p.txt").write_bytes(text)
    fails(2, words, "bench", "--problems", "p.txt", "--out", "r.json")


def test_a_file_of_problems_has_an_end_and_may_have_a_mark(dfa, fails, tmp_path):
    (tmp_path / "p.txt").write_bytes(b"\xef\xbb\xbffwd fp32 h1 s8 d8\r\n")
    done = dfa("bench", "--problems", "p.txt", "--out", "r.json", "--backend", "cpu", "--seconds", "0.05", "--no-energy")
    assert done.returncode == 0, done.stderr
    fails(2, ["/dev/zero", "most that is accepted"], "bench", "--problems", "/dev/zero", "--out", "r.json")
    fails(2, ["/dev/zero", "most that is accepted"], "compare", "/dev/zero", "r.json")


OF_O = ["--q", "o.npy", "--k", "o.npy", "--v", "o.npy"]


@pytest.mark.parametrize("arguments,said", [
    (["tune", "--profile", "kept", "--export", "kept"], "--export 'kept' is the file of --profile"),
    (["tune", "--problems", "kept", "--export", "./kept"], "--export './kept' is the file of --problems"),
    (["bench", "--problems", "kept", "--out", "link"], "--out 'link' is the file of --problems"),
    (["power", "--problem", "fwd fp32 s64 d32", "--policy", "max_performance", "--trace", "new", "--chrome", "./new"], "--chrome './new' is the file of --trace"),
    (["run", "--problem", "fwd fp32", "--json", "o.npy", *OF_O], "--json 'o.npy' is the file of --q"),
    (["run", "--problem", "fwd fp32", "--out", ".", *OF_O], "--out './o.npy' is the file of --q"),
    (["run", "--problem", "fwd fp32 h1 s8 d8", "--out", "new", "--json", "new"], "--out 'new' is the file of --json"),
])
def test_a_file_that_is_read_is_not_replaced(dfa, tmp_path, arguments, said):
    (tmp_path / "kept").write_text("fwd fp32 h1 s64 d32\n")
    (tmp_path / "link").symlink_to("kept")
    save(tmp_path / "o.npy", 1, 8, 8)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    done = dfa(*arguments)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1) and said in done.stderr
    assert before == {path.name: path.read_bytes() for path in tmp_path.iterdir()}

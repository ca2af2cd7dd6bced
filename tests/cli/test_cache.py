"""The folder of compiled kernels: made without a GPU, listed, damaged, cleared; and the package of those compiled ahead."""
import json
import shutil

import pytest

LINE = "fwd bf16 causal b1 h2 s100 d64"


@pytest.fixture
def cache(dfa, tmp_path):
    """Runs `dfa cache …` on a folder of its own; skips in a build without CUDA."""
    def run(*arguments, env=None, **options):
        env = {"DFA_CACHE_DIR": str(tmp_path / "cache"), "DFA_KERNELS": "none", **(env or {})}
        done = dfa("cache", *arguments, env=env, **options)
        if "this build has no CUDA" in done.stderr:
            assert done.returncode == 3
            pytest.skip(done.stderr)
        return done
    return run


@pytest.fixture
def warm(cache):
    def run(*arguments):
        done = cache("warm", "--arch", "sm_80", "--problem", LINE, *arguments)
        if "no CUDA run-time compiler" in done.stderr:
            assert done.returncode == 3
            pytest.skip(done.stderr)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout
    return run


def kernels(done):
    assert (done.returncode, done.stderr) == (0, "")
    document = json.loads(done.stdout)
    assert document["schema"] == "dfa-cache/1"
    return document["kernels"]


def test_an_empty_folder_lists_nothing_and_is_not_made(cache, tmp_path):
    assert kernels(cache("list", "--json")) == []
    assert "0 kernels, 0 bytes" in cache("list").stdout
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("arguments", [["list"], ["list", "--json"], ["clear"]])
def test_what_is_no_folder_has_no_cache(cache, tmp_path, arguments):
    (tmp_path / "file").write_text("")
    for place in ("/dev/null", str(tmp_path / "file")):
        done = cache(*arguments, env={"DFA_CACHE_DIR": place})
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == f"dfa: the cache '{place}' is no folder; accepted: DFA_CACHE_DIR of a folder, or of one that is to be made\n"


def test_warm_fails_where_nothing_can_be_kept(dfa, warm):
    warm()  # skips where there is no compiler
    done = dfa("cache", "warm", "--arch", "sm_80", "--problem", LINE, env={"DFA_CACHE_DIR": "/proc/none", "DFA_KERNELS": "none"})
    assert done.returncode == 2 and done.stdout.startswith("compiled ")
    assert done.stderr.startswith("dfa: cache warm: not kept on disk: ") and done.stderr.count("\n") == 1


def test_warm_compiles_once_and_clear_removes_it(cache, warm):
    first = json.loads(warm("--json"))["kernels"]
    assert [kernel["origin"] for kernel in first] == ["compiled"]
    assert 0 < first[0]["registers"] <= 255 and first[0]["note"] == first[0]["warning"] == ""
    assert warm().startswith("disk ")
    listed = kernels(cache("list", "--json"))
    assert [(k["kernel"], k["arch"], k["intact"]) for k in listed] == [
        (first[0]["kernel"], "sm_80", True)]
    assert first[0]["kernel"] in cache("list").stdout
    assert cache("clear").stdout.startswith("1 kernels removed")
    assert kernels(cache("list", "--json")) == []


def test_warm_takes_the_algorithm(warm):
    made = json.loads(warm("--json", "--algorithm", "standard"))["kernels"]
    assert [kernel["name"] for kernel in made] == ["softmax"]


@pytest.mark.parametrize("line, why", [
    ("fwd bf16 h1 s64 d64 softcap(3)", "takes plain logits"), ("fwd bf16 h1 d64 lens(8,3)", "takes no packed sequences"),
    ("fwd bf16 h1 s64 d288", "takes d and dv up to 256"), ("fwd bf16 causal chunk(8) h1 s64 d64", "know windows")])
def test_warm_refuses_what_standard_attention_would(cache, line, why):
    done = cache("warm", "--arch", "sm_80", "--problem", line, "--algorithm", "standard")
    assert done.returncode == 3 and why in done.stderr, done.stderr


def test_a_damaged_file_is_named_and_made_anew(cache, warm, tmp_path):
    warm()
    [path] = (tmp_path / "cache/kernels").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    assert "damaged" in cache("list").stdout
    assert "not used" in warm() and warm().startswith("disk ")


def test_warm_needs_a_problem_an_architecture_and_a_compiler(cache, tmp_path):
    done = cache("warm")
    assert done.returncode == 2 and "--problem is required" in done.stderr
    done = cache("warm", "--arch", "hopper", "--problem", LINE)
    assert done.returncode == 2 and "'hopper'; accepted: sm_80" in done.stderr
    done = cache("warm", "--problem", LINE)
    assert done.returncode == 3 and "no NVIDIA driver" in done.stderr
    done = cache("warm", "--arch", "sm_80", "--problem", "fwd e4m3 h1 s8 d16")
    assert done.returncode == 3


def test_without_nvrtc_the_cache_serves_and_else_says_what_is_missing(dfa, warm, tmp_path):
    warm()
    env = {"DFA_CACHE_DIR": str(tmp_path / "cache"), "DFA_NVRTC": "/not/there", "DFA_KERNELS": "none"}
    arguments = ("cache", "warm", "--arch", "sm_80", "--problem")
    assert dfa(*arguments, LINE, env=env).stdout.startswith("disk ")
    done = dfa(*arguments, LINE.replace("bf16", "fp16"), env=env)
    assert done.returncode == 3 and "/not/there" in done.stderr and "DFA_NVRTC" in done.stderr


def test_info_names_the_compiler_and_where_it_is_from(dfa, warm):
    warm()  # skips where there is none
    nvrtc = json.loads(dfa("info", "--json").stdout)["devices"]["NVRTC"]
    version, path = nvrtc["text"].split(", ", 1)
    assert nvrtc["works"] and version.startswith("nvrtc ")
    assert path.startswith("/") and "libnvrtc" in path
    absent = json.loads(dfa("info", "--json", env={"DFA_NVRTC": "/none"}).stdout)["devices"]["NVRTC"]
    assert not absent["works"] and "/none" in absent["text"]


@pytest.fixture
def package(warm, tmp_path):
    """A package with the kernels of LINE; the cache is empty then."""
    warm()
    shutil.move(tmp_path / "cache", tmp_path / "package")
    return {"DFA_KERNELS": str(tmp_path / "package"), "DFA_NVRTC": "/not/there"}


def test_kernels_of_a_package_need_no_compiler(cache, package, tmp_path):
    done = cache("warm", "--arch", "sm_80", "--problem", LINE, env=package)
    assert (done.returncode, done.stderr) == (0, "") and done.stdout.startswith("packaged ")
    assert "1 kernels for sm_80" in done.stdout and "1 packaged" in done.stdout
    assert not (tmp_path / "cache").exists()
    assert cache("warm", "--arch", "sm_86", "--problem", LINE, env=package).returncode == 3


def test_info_and_list_tell_of_the_package(dfa, cache, package, tmp_path):
    told = json.loads(cache("list", "--json", env=package).stdout)["packaged"]
    assert (told["kernels"], told["usable"], told["works"]) == (1, 1, True)
    assert f"compiled ahead by nvrtc " in told["text"] and f" for sm_80 in '{tmp_path}/package'" in told["text"]
    assert told["text"] in cache("list", env=package).stdout
    item = json.loads(dfa("info", "--json", env=package).stdout)["devices"]["kernels"]
    assert item == {"works": True, "text": told["text"]}


def test_a_stale_package_is_not_used_and_info_says_so(dfa, cache, package, tmp_path):
    # As kernels of another version are: their digests are others.
    sources = tmp_path / "sources/kernels/forward"
    sources.mkdir(parents=True)
    (sources / "delta.cuh").write_text("")
    file = sources / "sm80_forward.cuh"
    file.write_text("#error another version\n")
    stale = {**package, "DFA_KERNEL_SOURCES": str(tmp_path / "sources")}
    done = cache("warm", "--arch", "sm_80", "--problem", LINE, env=stale)
    assert done.returncode == 3 and "/not/there" in done.stderr
    item = json.loads(dfa("info", "--json", env=stale).stdout)["devices"]["kernels"]
    assert not item["works"] and item["text"].startswith("1 in ") and "not used" in item["text"]


def test_warm_takes_a_file_of_problems_and_leaves_out_what_cannot_run(cache, warm, tmp_path):
    warm()
    lines = tmp_path / "lines.txt"
    lines.write_text(f"# usual\n{LINE}\n\nfwd e4m3 h1 s8 d16\n{LINE.replace('s100', 's99')}\n")
    done = cache("warm", "--arch", "80", "--problems", str(lines))
    assert (done.returncode, done.stderr) == (0, "")
    assert "1 problems cannot run there, such as fwd e4m3 " in done.stdout and "1 on disk" in done.stdout
    refused = json.loads(cache("warm", "--arch", "80", "--problems", str(lines), "--json").stdout)["refused"]
    assert len(refused) == 1 and "e4m3" in refused[0]["problem"]
    lines.write_text("nonsense\n")
    done = cache("warm", "--arch", "80", "--problems", str(lines))
    assert done.returncode == 2 and "nonsense" in done.stderr


def test_plans_go_by_the_multiprocessors_of_the_card(cache, warm, tmp_path):
    warm()
    line = "fwd bf16 b2 hq32 hk8 sq1 sk8192 d128"
    wanted = [cache("warm", "--arch", "sm_90a", "--sms", sms, "--problem", line, "--json") for sms in ("132", "16")]
    assert kernels(wanted[0]) != [] and [k["kernel"] for k in kernels(wanted[0])] != [k["kernel"] for k in kernels(wanted[1])]

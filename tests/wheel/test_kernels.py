"""The package of kernels compiled ahead, made of a few problems by the program that DFA_PROGRAM names, and used by it."""

import json
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
LINE = "fwd bf16 causal b1 h2 s100 d64"
MAKE = f"""
import sys
sys.path.insert(0, "{ROOT}/packaging/kernels")
import make, usual
usual.lines = lambda: ["{LINE}"]
make.main()
"""

sys.path.insert(0, str(ROOT / "tests/wheel"))
import contents  # noqa: E402


@pytest.fixture(scope="module")
def program():
    path = os.environ.get("DFA_PROGRAM")
    if not path:
        pytest.skip("DFA_PROGRAM names no program that is to use the kernels")
    nvrtc = json.loads(subprocess.run([path, "info", "--json"], capture_output=True, text=True, check=True).stdout)["devices"]["NVRTC"]
    if not nvrtc["works"]:
        pytest.skip(nvrtc["text"])
    return pathlib.Path(path).resolve()


def made(program, folder, out, **env):
    done = subprocess.run([sys.executable, "-c", MAKE, program, folder / "cache", folder / out], capture_output=True, text=True,
                          check=False, env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"} | env)
    assert done.returncode == 0, done.stderr
    wheel, = (folder / out).glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(program, tmp_path_factory):
    return made(program, tmp_path_factory.mktemp("kernels"), "first")


def test_it_is_a_wheel_for_every_machine_with_kernels_and_nothing_else(wheel):
    assert list(contents.check(wheel)) == []


def test_made_again_it_compiles_nothing_and_has_the_same_bytes(program, wheel):
    folder = wheel.parents[1]
    before = {path: path.stat().st_mtime_ns for path in (folder / "cache").rglob("*.kernel")}
    assert made(program, folder, "second").read_bytes() == wheel.read_bytes()
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "cache").rglob("*.kernel")}


def test_installed_it_serves_where_there_is_no_compiler(program, wheel, tmp_path):
    zipfile.ZipFile(wheel).extractall(tmp_path / "lib/python3.11/site-packages")
    env = {**os.environ, "VIRTUAL_ENV": str(tmp_path), "DFA_NVRTC": "none", "DFA_CACHE_DIR": str(tmp_path / "cache")}
    env.pop("DFA_KERNELS", None)
    for arch in contents.ARCHS:
        done = subprocess.run([program, "cache", "warm", "--arch", arch, "--problem", LINE], capture_output=True, text=True, env=env,
                              check=False)
        assert done.returncode == 0 and done.stdout.startswith("packaged "), done.stderr
    told = subprocess.run([program, "info"], capture_output=True, text=True, env=env, check=True).stdout
    assert "4 compiled ahead by nvrtc 13.0 for sm_80, sm_86, sm_89, sm_90a" in told
    assert not (tmp_path / "cache").exists()


def test_a_damaged_kernel_goes_into_no_wheel(program, wheel):
    folder = wheel.parents[1]
    kernel = next((folder / "cache").rglob("*.kernel"))
    whole = kernel.read_bytes()
    kernel.write_bytes(whole[:-1])  # is compiled again
    assert made(program, folder, "third").read_bytes() == wheel.read_bytes()
    assert kernel.read_bytes() == whole


@pytest.mark.parametrize("change, said", [
    ({"more.py": b""}, "more than kernels: dfa_attention_kernels/more.py"),
    ({"kernels/" + "0" * 32 + ".nvrtc-13.0.kernel": b'dfa-kernel/2 0\n{"arch": "sm_80", "log": "/build/wheels"}\n'},
     "a kernel has a path of the machine that it was built on"),
])
def test_a_wheel_that_is_not_so_is_told(wheel, tmp_path, change, said):
    other = tmp_path / wheel.name
    other.write_bytes(wheel.read_bytes())
    with zipfile.ZipFile(other, "a") as archive:
        for name, data in change.items():
            archive.writestr(f"dfa_attention_kernels/{name}", data)
    assert said in list(contents.check(other))

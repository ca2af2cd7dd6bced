"""What has to be said before JAX and PyTorch are imported."""

import collections
import importlib.util
import mmap
import os
import pathlib

import pytest

# JAX else takes three quarters of the card for itself, beside PyTorch and other processes.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

# Processors that JAX takes for several devices (test_jax_devices.py). What XLA makes around our calls is compiled in a
# hurry unless somebody asks for more: its tests spend their time on that. test_jax.py has one program as users
# compile it.
HURRY = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true", "--xla_cpu_use_fusion_emitters=false"]


def known(flags):
    """Those that the XLA of this JAX has: it ends the process of who names another."""
    jaxlib = importlib.util.find_spec("jaxlib")
    library = jaxlib and pathlib.Path(jaxlib.origin).with_name("libjax_common.so")
    if not library or not library.exists():
        return []
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as code:
        return [flag for flag in flags if code.find(flag[2:flag.index("=")].encode()) >= 0]


FLAGS = os.environ.get("XLA_FLAGS") or " ".join(known(HURRY))
if "device_count" not in FLAGS:  # the workers of pytest-xdist have those of the first process
    FLAGS += " --xla_force_host_platform_device_count=4"
os.environ["XLA_FLAGS"] = FLAGS


@pytest.hookimpl(tryfirst=True)  # before those that are not asked for are left out
def pytest_collection_modifyitems(items):
    """@pytest.mark.one_in(n): of a grid of cases the full tier runs one in n, a Latin square: each value of a parameter beside
    as many of another's as there are for it. The others are marked `all`."""
    seen = collections.Counter()
    for item in items:
        mark = item.get_closest_marker("one_in")
        if mark is None:
            continue
        number, places = seen[item.parent.nodeid, item.originalname], 0
        seen[item.parent.nodeid, item.originalname] += 1
        for grid in reversed([*item.iter_markers("parametrize")]):  # the one above all others varies first
            number, place = divmod(number, len(grid.args[1]))
            places += place
        if places % mark.args[0]:
            item.add_marker(pytest.mark.all)


@pytest.fixture(scope="session")
def program():
    """The command line that was built: DFA_PROGRAM, or the newest of this checkout's."""
    root = pathlib.Path(__file__).resolve().parents[2]
    found = [pathlib.Path(os.environ["DFA_PROGRAM"])] if "DFA_PROGRAM" in os.environ else sorted(
        root.glob("build/*/cli/dfa"), key=lambda path: path.stat().st_mtime)
    if not found:
        pytest.skip("no dfa program")
    return found[-1]


@pytest.fixture
def fake_nvml(program, tmp_path, monkeypatch):
    """fake_nvml(scenario): from there on NVML is a made-up one that says what the scenario says."""
    library = program.parents[1] / "tests/fake_nvml/libnvidia-ml.so.1"
    if not library.exists():
        pytest.skip("no made-up NVML")

    def say(scenario):
        path = tmp_path / "nvml_scenario"
        path.write_text(scenario)
        monkeypatch.setenv("DFA_NVML", str(library))
        monkeypatch.setenv("DFA_FAKE_NVML", str(path))
    return say


@pytest.fixture
def rapl(tmp_path, monkeypatch):
    """A made-up tree of RAPL with one package counter; returns the function that sets its microjoules."""
    domain = tmp_path / "class/powercap/intel-rapl:0"
    domain.mkdir(parents=True)
    (domain / "name").write_text("package-0\n")
    (domain / "max_energy_range_uj").write_text("262143328850\n")
    monkeypatch.setenv("DFA_SYSFS_ROOT", str(tmp_path))

    def count(microjoules):  # never half-written: a thread may read it meanwhile
        (domain / "energy_uj.new").write_text(f"{microjoules}\n")
        (domain / "energy_uj.new").rename(domain / "energy_uj")
    count(5_000_000)
    return count

"""packaging/hub: the folder that the package `kernels` loads, by that package."""

import pathlib
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")
kernels = pytest.importorskip("kernels")
ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    subprocess.run([sys.executable, ROOT / "packaging/hub/make", folder], check=True)
    return folder


def test_kernels_loads_it_from_a_folder(repository):
    module = kernels.get_local_kernel(repository, backend="cpu")
    import dfa.flash_attn

    assert module.flash_attn_func is dfa.flash_attn.flash_attn_func
    assert set(dfa.flash_attn.__all__) <= set(dir(module))
    q, k, v = (torch.randn(1, length, 2, 64) for length in (5, 9, 9))
    wanted = torch.nn.functional.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v))).transpose(1, 2)
    torch.testing.assert_close(module.flash_attn_func(q, k, v), wanted)


def test_every_backend_has_a_build_and_metadata_that_kernels_reads(repository):
    from kernels._rust import Metadata

    builds = sorted((repository / "build").iterdir())
    assert [build.name for build in builds] == ["torch-cpu", "torch-cuda"]
    told = [Metadata.read_from_file(build / "metadata.json") for build in builds]
    assert len({one.id for one in told}) == 2 and {one.name.python_name for one in told} == {"dfa"}
    assert {one.license for one in told} == {"Apache-2.0"} and {one.version for one in told} == {1}


def test_it_says_what_to_install_where_the_package_is_missing(repository):
    code = ("import sys, runpy\nsys.modules['dfa'] = None\n"
            f"try: runpy.run_path({str(repository / 'build/torch-cpu/__init__.py')!r})\nexcept ImportError as error: print(error)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip install 'dfa-attention[cuda]'" in done.stdout

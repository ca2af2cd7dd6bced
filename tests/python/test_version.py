"""The version is written once: include/dfa/version.h. The package of a checkout, the build and the program have it from there."""

import pathlib
import re
import subprocess

import dfa

ROOT = pathlib.Path(__file__).resolve().parents[2]
VERSION = re.search(r'kVersion = "([^"]+)"', (ROOT / "include" / "dfa" / "version.h").read_text())[1]


def test_the_package_has_the_version_of_the_header():
    assert dfa.__version__ == VERSION


def test_no_other_file_of_the_build_has_it():
    for name in ("pyproject.toml", "CMakeLists.txt", "python/dfa/__init__.py", "packaging/conda/recipe.yaml"):
        path = ROOT / name
        assert not path.exists() or f'"{VERSION}"' not in path.read_text(), name


def test_the_build_reads_it(tmp_path):
    lines = (ROOT / "CMakeLists.txt").read_text().split("project(dfa")[0].splitlines()
    script = tmp_path / "version.cmake"
    script.write_text("\n".join(line for line in lines if "version" in line and "minimum" not in line) +
                      '\nmessage("${version}")\n')
    done = subprocess.run(["cmake", "-P", script], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stderr.strip() == VERSION

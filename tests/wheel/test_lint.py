"""What other programs read, by those programs: the recipe of conda's builder, the workflow by GitHub's schema and an auditor of workflows."""

import pathlib
import subprocess
import sys

import pytest
import rattler_build

ROOT = pathlib.Path(__file__).resolve().parents[2]
RECIPE = ROOT / "packaging/conda/recipe.yaml"
WORKFLOW = ROOT / ".github/workflows/release.yml"
PINS = "c_stdlib: [sysroot]\nc_stdlib_version: ['2.28']\ncxx_compiler_version: ['14']\n"


def rendered(monkeypatch, text):
    monkeypatch.setenv("DFA_VERSION", "3.2.1")
    recipe = rattler_build.Stage0Recipe.from_yaml(text)
    return [one.recipe.to_dict() for one in recipe.render(rattler_build.VariantConfig.from_yaml(PINS))]


def test_rattler_build_reads_the_recipe(monkeypatch):
    recipe, = rendered(monkeypatch, RECIPE.read_text())
    assert (recipe["package"]["name"], str(recipe["package"]["version"])) == ("dfa-attention", "3.2.1")
    assert "fmt" in recipe["requirements"]["host"] and "sysroot_linux-64 2.28.*" in recipe["requirements"]["build"]


def test_rattler_build_refuses_a_recipe_with_a_slip(monkeypatch):
    with pytest.raises(Exception, match="hosts"):
        rendered(monkeypatch, RECIPE.read_text().replace("\n  host:", "\n  hosts:"))


def lint(tool, *arguments):
    return subprocess.run([pathlib.Path(sys.executable).with_name(tool), *arguments], capture_output=True, text=True, check=False)


def test_the_workflow_is_one(tmp_path):
    done = lint("check-jsonschema", "--builtin-schema", "vendor.github-workflows", WORKFLOW)
    assert done.returncode == 0, done.stdout
    slip = tmp_path / "release.yml"
    slip.write_text(WORKFLOW.read_text().replace("runs-on:", "run-on:"))
    assert lint("check-jsonschema", "--builtin-schema", "vendor.github-workflows", slip).returncode == 1


def test_the_workflow_gives_nothing_away():
    done = lint("zizmor", "--offline", "--no-progress", WORKFLOW)
    assert done.returncode == 0, done.stdout

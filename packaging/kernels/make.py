#!/usr/bin/env python3
"""make.py PROGRAM CACHE OUT: the wheel dfa-attention-kernels into OUT, by the program dfa that is to use it.

Kernels are compiled into the folder CACHE, and only those that are not there: a build that was stopped goes on. NVRTC is that which the program
finds (VIRTUAL_ENV, DFA_NVRTC). SOURCE_DATE_EPOCH: the second that the files of the wheel are of. Needs scikit-build-core.
"""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import usual

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]


def ask(program, *arguments, env):
    """What the program answers, as JSON; its error ends this one."""
    done = subprocess.run([program, *arguments, "--json"], capture_output=True, text=True, env=env, check=False)
    if done.returncode != 0:
        sys.exit(done.stderr.strip() or f"{program} ended with {done.returncode}")
    return json.loads(done.stdout)


def say_progress(process, folder, what):
    """A line every ten seconds until it ends."""
    while True:
        try:
            return process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            print(f"{what}: {len(list(folder.glob('*.kernel')))} kernels are there", flush=True)


def compiled(program, lines, card, env):
    """Digests of the kernels that plans choose on a card."""
    arch, multiprocessors = card
    folder = pathlib.Path(env["DFA_CACHE_DIR"]) / "kernels"
    with tempfile.TemporaryFile("w+") as answer, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen([program, "cache", "warm", "--json", "--problems", lines, "--arch", arch, "--sms", str(multiprocessors)],
                                   stdout=answer, stderr=errors, env=env)
        code = say_progress(process, folder, f"{arch} with {multiprocessors} multiprocessors")
        answer.seek(0)
        errors.seek(0)
        if code != 0:
            sys.exit(errors.read().strip())
        return {kernel["digest"] for kernel in json.load(answer)["kernels"]}


def stage(folder, kernels, version):
    """The source of the package: a project with the files inside."""
    shutil.copytree(HERE / "package", folder, dirs_exist_ok=True)
    shutil.copy(ROOT / "LICENSE", folder)
    package = folder / "dfa_attention_kernels"
    (package / "kernels").mkdir(parents=True)
    (package / "__init__.py").write_text(f'"""Files of dfa-attention, which finds them by itself."""\n\n__version__ = "{version}"\n')
    for path in kernels:
        shutil.copyfile(path, package / "kernels" / path.name)


def check(program, package, digests, env):
    """The program would use all of them, and every byte is as it was written."""
    told = ask(program, "cache", "list", env=env | {"DFA_KERNELS": str(package), "DFA_CACHE_DIR": str(package)})
    intact = {kernel["digest"] for kernel in told["kernels"] if kernel["intact"]}
    if intact != digests or told["packaged"]["usable"] != len(digests):
        sys.exit(f"{len(digests)} kernels were compiled; of those in the package {told['packaged']['usable']} are usable, {len(intact)} intact")


def build(source, out):
    here = pathlib.Path.cwd()
    os.chdir(source)
    try:
        from scikit_build_core.build import build_wheel

        return pathlib.Path(out) / build_wheel(str(out))
    finally:
        os.chdir(here)


def main():
    program, cache, out = (pathlib.Path(argument).resolve() for argument in sys.argv[1:])
    begin = time.monotonic()
    env = os.environ | {"DFA_KERNELS": "none", "DFA_CUDA_DRIVER": "none"}
    nvrtc = ask(program, "info", env=env)["devices"]["NVRTC"]
    if not nvrtc["works"]:
        sys.exit(nvrtc["text"])
    compiler = nvrtc["text"].split(",")[0].replace(" ", "-")
    env["DFA_CACHE_DIR"] = str(cache / compiler)
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    with tempfile.TemporaryDirectory() as folder:
        lines = pathlib.Path(folder, "problems.txt")
        lines.write_text("".join(" ".join(line.split()) + "\n" for line in usual.lines()))
        digests = set().union(*(compiled(program, lines, card, env) for card in usual.CARDS))
        kernels = sorted(path for path in (cache / compiler / "kernels").glob("*.kernel") if path.name.split(".")[0] in digests)
        source = pathlib.Path(folder, "source")
        stage(source, kernels, version)
        check(program, source / "dfa_attention_kernels", digests, env)
        out.mkdir(parents=True, exist_ok=True)
        wheel = build(source, out)
    size, inside = wheel.stat().st_size / 1e6, sum(path.stat().st_size for path in kernels) / 1e6
    print(f"{wheel}: {len(kernels)} kernels by {compiler}, {size:.1f} MB, {inside:.0f} MB installed, in {time.monotonic() - begin:.0f} s")


if __name__ == "__main__":
    main()

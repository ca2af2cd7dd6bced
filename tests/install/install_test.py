#!/usr/bin/env python3
"""Installs a build into a folder and uses it from there: by CMake package, by pkg-config, by name.

Usage: install_test.py BUILD_DIR COMPILER
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

CONSUMER = pathlib.Path(__file__).resolve().parent / "consumer"
README = pathlib.Path(__file__).resolve().parents[2] / "README.md"


def run(*command, **options):
    done = subprocess.run([str(part) for part in command], text=True, stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, **options)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}\n{done.stdout}\nexit code {done.returncode}")
    return done.stdout


def use_by_cmake(prefix, work, compiler):
    build = work / "by_cmake"
    run("cmake", "-S", CONSUMER, "-B", build, f"-DCMAKE_PREFIX_PATH={prefix}",
        f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", build)
    return run(build / "consumer")


def use_by_pkg_config(prefix, work, compiler):
    folder = next(prefix.rglob("dfa.pc")).parent
    environment = {**os.environ, "PKG_CONFIG_PATH": str(folder)}
    flags = run("pkg-config", "--cflags", "--libs", "dfa", env=environment).split()
    program = work / "by_pkg_config"
    run(compiler, "-std=c++20", CONSUMER / "main.cpp", "-o", program, *flags)
    library = next(prefix.rglob("libdfa.so")).parent
    return run(program, env={**os.environ, "LD_LIBRARY_PATH": str(library)})


def readme_compiles(prefix, work, compiler):
    """The C++ of the README, as a reader would paste it."""
    snippets = re.findall(r"^```cpp\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert snippets, "no C++ in the README"
    for index, snippet in enumerate(snippets):
        source = work / f"readme{index}.cpp"
        source.write_text(snippet)
        run(compiler, "-std=c++20", "-Wall", "-Werror", f"-I{prefix / 'include'}",
            "-fsyntax-only", source)


def check_exports(prefix):
    library = next(prefix.rglob("libdfa.so"))
    symbols = run("nm", "-D", "-C", "--defined-only", library).splitlines()
    names = [line.split(" ", 2)[2] for line in symbols]
    ours = [name for name in names if name.startswith("dfa::")]
    internal = [name for name in ours if name.startswith(("dfa::cpu::", "dfa::env", "dfa::read_"))]
    assert any(name.startswith("dfa::forward(") for name in ours), names
    assert not internal, f"internal functions are exported: {internal[:5]}"


def main():
    build, compiler = sys.argv[1:]
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        run("cmake", "--install", build, "--prefix", work / "first")
        shutil.move(work / "first", work / "moved")  # nothing may remember where it was installed
        prefix = work / "moved"
        assert use_by_cmake(prefix, work, compiler).startswith("0.")
        if shutil.which("pkg-config"):
            assert use_by_pkg_config(prefix, work, compiler).startswith("0.")
        else:
            print("pkg-config is not there: that way was not tried")
        readme_compiles(prefix, work, compiler)
        check_exports(prefix)
        assert run(prefix / "bin" / "dfa", "--version").startswith("dfa 0.")
    print("installed, moved, found and used")


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""contents.py WHEEL…: what a wheel for everybody must be, told by its files alone. One line a wheel; exit code 1 where one is not so."""
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

MOST_BYTES = 15_000_000
MOST_KERNEL_BYTES = 60_000_000
ARCHS = {"sm_80", "sm_86", "sm_89", "sm_90a"}
# The C library's own, which the policy manylinux_2_28 lets a wheel need; the C++ library is inside.
SYSTEM = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
NEWEST_GLIBC = (2, 28)


def readelf(option, path):
    return subprocess.run(["readelf", "--wide", option, path], check=True, capture_output=True, text=True).stdout


def needed(path):
    return set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("--dynamic", path)))


def newest_glibc(path):
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", readelf("--version-info", path))
    return max((int(major), int(minor)) for major, minor in versions)


def exported(path):
    rows = [line.split() for line in readelf("--dyn-syms", path).splitlines()]
    return {row[7] for row in rows if len(row) == 8 and row[4] in ("GLOBAL", "WEAK") and row[6] != "UND"}


def check_kernels(wheel, version):
    """The same of the package of kernels compiled ahead, which is files alone."""
    if wheel.stat().st_size > MOST_KERNEL_BYTES:
        yield f"{wheel.stat().st_size / 1e6:.1f} MB, at most {MOST_KERNEL_BYTES / 1e6:.0f}"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        info = f"dfa_attention_kernels-{version}.dist-info"
        metadata = archive.read(f"{info}/METADATA").decode().splitlines()
        for line in ("Name: dfa-attention-kernels", f"Version: {version}", "License-Expression: Apache-2.0"):
            if line not in metadata:
                yield f"METADATA has no line '{line}'"
        kernels = [name for name in names if re.fullmatch(r"dfa_attention_kernels/kernels/[0-9a-f]{32}\.nvrtc-[0-9.]+\.kernel", name)]
        others = {name for name in names if not name.startswith(info)} - {*kernels, "dfa_attention_kernels/__init__.py"}
        if others:
            yield f"more than kernels: {', '.join(sorted(others))}"
        heads = [archive.read(name).split(b"\n", 2)[:2] for name in kernels]
        if missing := ARCHS - {json.loads(described)["arch"] for _, described in heads}:
            yield f"no kernel for {', '.join(sorted(missing))}"
        if any(b"/.venv/" in described or b"/build/" in described for _, described in heads):
            yield "a kernel has a path of the machine that it was built on"


def check(wheel):
    """Yields a sentence for each thing that is wrong."""
    if kernels := re.fullmatch(r"dfa_attention_kernels-([0-9.]+)-py3-none-any\.whl", wheel.name):
        yield from check_kernels(wheel, kernels[1])
        return
    tag = re.fullmatch(r"dfa_attention-([0-9.]+)-(cp311-cp311|cp312-abi3)-manylinux_2_28_x86_64\.whl", wheel.name)
    if not tag:
        yield f"its name is not dfa_attention-VERSION-(cp311-cp311|cp312-abi3)-manylinux_2_28_x86_64.whl: {wheel.name}"
        return
    if wheel.stat().st_size > MOST_BYTES:
        yield f"{wheel.stat().st_size / 1e6:.1f} MB, at most {MOST_BYTES / 1e6:.0f}"
    with zipfile.ZipFile(wheel) as archive, tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        archive.extractall(folder)
        names = set(archive.namelist())
        info = f"dfa_attention-{tag[1]}.dist-info"
        metadata = (folder / info / "METADATA").read_text()
        for line in ("Name: dfa-attention", f"Version: {tag[1]}", "Requires-Python: >=3.11", "License-Expression: Apache-2.0",
                     "Requires-Dist: numpy", f'Requires-Dist: dfa-attention-kernels=={tag[1]}; extra == "cuda"'):
            if line not in metadata.splitlines():
                yield f"METADATA has no line '{line}'"
        if "dfa = dfa.__main__:main" not in (folder / info / "entry_points.txt").read_text():
            yield "no command dfa"
        module = "dfa/_core.abi3.so" if "abi3" in tag[2] else "dfa/_core.cpython-311-x86_64-linux-gnu.so"
        for name in (module, "dfa/bin/dfa", "dfa/_core.pyi", "dfa/py.typed", "dfa/selftest.py", f"{info}/licenses/LICENSE"):
            if name not in names:
                yield f"{name} is missing"
                return
        for library in ("onetbb", "sqlite3", "libevent", "fmtlib", "cli11", "nlohmann-json3", "xxhash", "nanobind"):
            if f"dfa/licenses/{library}.txt" not in names:
                yield f"the licence of {library}, which is inside, is missing"
        others = {name for name in names if re.search(r"\.so(\.|$)|\.a$", name)} - {module}
        if others:
            yield f"libraries beside the module: {', '.join(sorted(others))}"
        if not archive.getinfo("dfa/bin/dfa").external_attr >> 16 & os.X_OK:
            yield "dfa/bin/dfa is no executable file"
        for name in (module, "dfa/bin/dfa"):
            path = folder / name
            if surplus := needed(path) - SYSTEM:
                yield f"{name} needs {', '.join(sorted(surplus))}"
            if newest_glibc(path) > NEWEST_GLIBC:
                yield f"{name} needs glibc {newest_glibc(path)}"
            if b"/.venv/" in path.read_bytes() or b"/build/wheels/" in path.read_bytes():
                yield f"{name} has a path of the machine that it was built on"
        if surplus := exported(folder / module) - {"PyInit__core"}:
            yield f"{module} shows {len(surplus)} symbols of what is inside, such as {min(surplus)}"


def main():
    wrong = 0
    for wheel in map(pathlib.Path, sys.argv[1:]):
        faults = list(check(wheel))
        for fault in faults:
            print(f"{wheel.name}: {fault}")
        wrong += bool(faults)
        if not faults:
            print(f"{wheel.name}: {wheel.stat().st_size / 1e6:.2f} MB, as it must be")
    return 1 if wrong or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())

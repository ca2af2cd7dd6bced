"""build_one.py OUT BUILD LIBRARIES: the wheel of the source in this folder for the Python that runs this, by Zig's compiler."""

import os
import pathlib
import shutil
import sys

from scikit_build_core.build import build_wheel

HERE = pathlib.Path(__file__).resolve().parent


def show_python_headers(folder):
    """Debian's Python.h reads a part of itself from a folder of the architecture, which Zig's Clang does not look into: what lies beside
    it there is another glibc's."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    shown = folder / "x86_64-linux-gnu"
    shown.mkdir(parents=True)
    (shown / name).symlink_to(f"/usr/include/x86_64-linux-gnu/{name}")
    os.environ["CXXFLAGS"] += f" -isystem {folder}"


def main():
    out, build, libraries = sys.argv[1:]
    shutil.rmtree(build, ignore_errors=True)
    show_python_headers(pathlib.Path(build) / "python-headers")
    defined = {
        "CMAKE_TOOLCHAIN_FILE": HERE / "toolchain.cmake",
        "CMAKE_PREFIX_PATH": libraries,
        "CMAKE_CXX_COMPILER_LAUNCHER": "ccache",
        "DFA_CUDA": "ON",
        "DFA_LICENSES": f"{libraries}/licenses",
        "DFA_SOURCE_SHA": os.environ["DFA_SOURCE_SHA"],
    }
    settings = {"build-dir": build, "install.strip": "false", "logging.level": "INFO"}
    settings |= {f"cmake.define.{name}": str(value) for name, value in defined.items()}
    print(build_wheel(out, settings))


if __name__ == "__main__":
    main()

#!/usr/bin/env bash
# NVRTC 12.8.93 refuses an option list in which --std stands twice (NVRTC_ERROR_INVALID_OPTION, 5), also where both say the same;
# 12.9.86 and 13.0.88 take it. Options that a caller adds to defaults must not repeat it. No GPU is needed.
# Seen: 12.8.93: 5, 12.9.86: 0, 13.0.88: 0
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
for package in nvidia-cuda-nvrtc-cu12==12.8.93 nvidia-cuda-nvrtc-cu12==12.9.86 nvidia-cuda-nvrtc==13.0.88; do
  python3 -m pip install -q --disable-pip-version-check --no-deps --target "$a/${package##*==}" "$package"
done
python3 - "$a" <<'P'
import ctypes, pathlib, sys
codes = {}
for folder in sorted(pathlib.Path(sys.argv[1]).iterdir()):
    library = next(path for path in folder.rglob("libnvrtc.so.1*") if "builtins" not in path.name)
    nvrtc, program = ctypes.CDLL(str(library)), ctypes.c_void_p()
    nvrtc.nvrtcCreateProgram(ctypes.byref(program), b"__global__ void f() {}", b"f.cu", 0, None, None)
    options = (ctypes.c_char_p * 3)(b"--gpu-architecture=sm_90", b"--std=c++20", b"--std=c++20")
    codes[folder.name] = nvrtc.nvrtcCompileProgram(program, 3, options)
print(codes)
raise SystemExit(codes != {"12.8.93": 5, "12.9.86": 0, "13.0.88": 0})
P

#!/usr/bin/env python3
"""No library of CUDA may be needed to start: needed_test.py FILE…

Everything of NVIDIA's is opened at run time, where it is there. Nor may libevent, whose archives are linked.
"""
import re
import subprocess
import sys

FORBIDDEN = re.compile(r"cuda|nvrtc|nvidia|nvml|cublas|cudnn|nvJitLink|libevent", re.IGNORECASE)


def needed(path):
    text = subprocess.run(["readelf", "--dynamic", path], check=True, capture_output=True, text=True)
    return re.findall(r"\(NEEDED\).*\[(.*)\]", text.stdout)


def main():
    wrong = 0
    for path in sys.argv[1:]:
        libraries = needed(path)
        bad = [name for name in libraries if FORBIDDEN.search(name)]
        print(f"{path}: {', '.join(libraries)}")
        if bad or "libc.so.6" not in libraries:
            print(f"{path}: needs {bad}" if bad else f"{path}: readelf shows no libc")
            wrong += 1
    return 1 if wrong or len(sys.argv) < 2 else 0


if __name__ == "__main__":
    sys.exit(main())

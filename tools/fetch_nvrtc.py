"""Fetches releases of NVRTC from PyPI into a folder each: fetch_nvrtc.py PYTHON.

Into ${DFA_NVRTC_RELEASES}, else ${XDG_CACHE_HOME:-~/.cache}/dfa/nvrtc; what is there stays. A release
that cannot be had is named, and tests that need it are skipped by name.
"""
import os
import pathlib
import subprocess
import sys

RELEASES = ("12.8.93", "12.9.86", "13.0.88", "13.2.86", "13.3.33", "13.5.37")


def folder():
    if given := os.environ.get("DFA_NVRTC_RELEASES"):
        return pathlib.Path(given)
    caches = os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache"
    return pathlib.Path(caches) / "dfa" / "nvrtc"


def fetch(python, release):
    to = folder() / release
    if any(to.rglob("libnvrtc.so.1?")):
        return
    package = f"nvidia-cuda-nvrtc{'-cu12' if release.startswith('12.') else ''}=={release}"
    print(f"downloading {package} into {to}", flush=True)
    done = subprocess.run([python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
                           "--retries", "1", "--target", to, package], check=False)
    if done.returncode != 0:
        print(f"{package} cannot be had: its test is skipped", flush=True)


if __name__ == "__main__":
    for one in RELEASES:
        fetch(sys.argv[1], one)

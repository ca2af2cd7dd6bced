#!/bin/sh
# in_root.sh WHEEL_FOLDER: on a machine with nothing but Python: an empty environment, pip install, the command, the module; each timed.
# The wheel is the one that pip chooses for this Python. Where Python is too old for the package, the program alone is run, as a test of
# the C library.
set -eu
. /etc/os-release
say() { printf '%s: %s\n' "$PRETTY_NAME" "$*"; }
now() { date +%s.%N; }
since() { echo "$1 $(now)" | awk '{printf "%.1f s", $2 - $1}'; }
say "$(python3 --version), glibc $(ldd --version | sed -n '1s/.* //p'), $(uname -m)"
rm -rf /tmp/empty
if ! python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
  python3 -m zipfile -e "$1"/*-cp311-*.whl /tmp/empty
  chmod +x /tmp/empty/dfa/bin/dfa
  begin=$(now)
  /tmp/empty/dfa/bin/dfa selftest | tail -n 1
  say "dfa selftest, without the package, in $(since "$begin")"
  exit
fi
python3 -m venv /tmp/empty
begin=$(now)
/tmp/empty/bin/python -m pip install -q --disable-pip-version-check --no-cache-dir --find-links "$1" --only-binary :all: dfa-attention
say "pip install in $(since "$begin"): $(/tmp/empty/bin/python -m pip list --disable-pip-version-check 2>/dev/null | awk 'NR > 2 && $1 != "pip" {printf "%s %s, ", $1, $2}')"
begin=$(now)
/tmp/empty/bin/dfa selftest | tail -n 1
say "dfa selftest in $(since "$begin")"
begin=$(now)
/tmp/empty/bin/python -m dfa.selftest | tail -n 1
say "python -m dfa.selftest in $(since "$begin")"
if ls "$1"/dfa_attention_kernels-*.whl >/dev/null 2>&1; then
  /tmp/empty/bin/python -m pip install -q --disable-pip-version-check --no-cache-dir --no-index --find-links "$1" dfa-attention-kernels
  # Started so, the program is told of no environment, as the module in a Python that was not activated.
  say "$(/tmp/empty/lib/python3*/site-packages/dfa/bin/dfa info | sed -n 's/^  kernels  *//p')"
  # There is no NVRTC.
  for arch in sm_80 sm_86 sm_89 sm_90a; do
    for problem in "fwd bf16 causal b2 hq32 hk8 s2048 d128 layout(bshd)" "bwd fp16 b4 h16 s512 d64" "fwd fp32 b1 h12 s1024 d64" \
      "fwd bf16 b8 hq32 hk8 sq1 sk4096 d128"; do
      DFA_NVRTC=none /tmp/empty/bin/dfa cache warm --arch "$arch" --problem "$problem" >/tmp/warmed
      if grep -qv -e '^packaged' -e ' kernels for ' /tmp/warmed; then say "not compiled ahead: $(cat /tmp/warmed)" && exit 1; fi
    done
  done
  say "kernels compiled ahead serve without NVRTC"
fi
/tmp/empty/bin/python - "$PRETTY_NAME" <<'TEXT'
import subprocess, sys
code = """
import time
marks = [time.perf_counter()]
import dfa
marks.append(time.perf_counter())
import numpy
marks.append(time.perf_counter())
import dfa._numpy, dfa._core
marks.append(time.perf_counter())
print(*(b - a for a, b in zip(marks, marks[1:])))
"""
runs = [tuple(map(float, subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()))
        for _ in range(7)]
bare, numpy, module = (min(column) for column in zip(*runs))
print(f"{sys.argv[1]}: import dfa {bare:.3f} s; at the first call NumPy {numpy:.3f} s and the compiled module {module:.3f} s more")
sys.exit(0 if bare + module <= 0.15 else 1)
TEXT
rm -rf /tmp/empty

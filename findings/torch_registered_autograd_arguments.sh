#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/_library/autograd.py, fill_defaults of torch/_library/utils.py): where a gradient is asked for, an eager
# call of an operator with torch.library.register_autograd and a setup_context takes time that grows with the square of its
# arguments, those that are left out included, as the schema's list of them is made anew for each. Without a gradient it does not.
# Operators of attention have 20 to 40 arguments.
# Seen, microseconds of a call with 2, 16, 32 numbers beside a tensor: with a gradient 12.0, 68.1, 215.6; without 5.5, 6.7, 8.2
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
"$a/v/bin/python" - <<'P'
import time
import torch

library = torch.library.Library("counted", "DEF")

def operator(count):
    library.define(f"of_{count}(Tensor x, " + ", ".join(f"int n{i}=0" for i in range(count)) + ") -> Tensor")
    library.impl(f"of_{count}", lambda x, *_: x.clone(), "CPU")
    torch.library.register_autograd(f"counted::of_{count}", lambda ctx, d: (d, *(None,) * count),
                                    setup_context=lambda ctx, inputs, output: None, lib=library)
    return getattr(torch.ops.counted, f"of_{count}").default

def microseconds(call, *given):
    least = float("inf")
    for _ in range(10):
        begin = time.perf_counter()
        for _ in range(300):
            call(*given)
        least = min(least, (time.perf_counter() - begin) / 300)
    return 1e6 * least

learned, fixed = torch.ones(1, requires_grad=True), torch.ones(1)
taken = {count: (microseconds(op, learned), microseconds(op, fixed)) for count in (2, 16, 32) for op in (operator(count),)}
for count, (with_gradient, without) in taken.items():
    print(f"{count} numbers: {with_gradient:.1f} us with a gradient, {without:.1f} without")
steps = (taken[32][0] - taken[16][0]) / (taken[16][0] - taken[2][0])
print(f"from 16 to 32 numbers it grows {steps:.1f} times as much as from 2 to 16; in proportion it were 1.1")
raise SystemExit(steps < 1.8 or taken[32][0] < 4 * taken[32][1])
P

#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/_tensor.py, __dlpack__): a tensor with the conjugate bit is refused for DLPack, one with the negative bit is not, and
# the other side gets the numbers with their signs turned. conj().imag makes such a tensor: a float view whose sign waits. numpy() refuses
# it. PyTorch's own from_dlpack of it is wrong too; resolve_neg() first is right.
# Seen: conj().imag of 1+2j: PyTorch -2.0; np.from_dlpack 2.0, torch.from_dlpack 2.0, after resolve_neg() -2.0; numpy(): RuntimeError
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy==2.4.6
"$a/v/bin/python" -W ignore - <<'P'
import numpy, torch

def refused(what):
    try:
        what()
    except (RuntimeError, BufferError) as error:
        return f"{type(error).__name__}: {error}"

z = torch.tensor([1 + 2j]).conj()
x = z.imag
seen = {"PyTorch": x.item(), "numpy": numpy.from_dlpack(x).item(), "torch": torch.from_dlpack(x).item(),
        "resolved": numpy.from_dlpack(x.resolve_neg()).item()}
print(seen, x.dtype, "negative bit", x.is_neg())
conjugate, by_numpy = refused(lambda: numpy.from_dlpack(z)), refused(x.numpy)
print("conjugate bit:", conjugate)
print("numpy():", by_numpy)
raise SystemExit(not (seen == {"PyTorch": -2, "numpy": 2, "torch": 2, "resolved": -2} and conjugate and by_numpy))
P

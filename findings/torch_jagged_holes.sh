#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/nested/_internal/ops.py): torch.nested.narrow with layout=torch.jagged makes rows that lie in a longer padded buffer
# with holes between them. numel() and unbind() know the rows; sum, mean, max, amax and any over everything take the holes as well, and
# say nothing, where sum(dim=1), softmax and to_padded_tensor refuse such a tensor. contiguous() first makes them right.
# Seen: rows of ones in a buffer whose rest is 1000: numel 18, sum 12024.0, mean 334.0, max 1000.0; after contiguous(): 18.0, 1.0, 1.0
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
"$a/v/bin/python" -W ignore - <<'P'
import torch

padded = torch.ones(2, 6, 3)
padded[:, 4:] = 1000
rows = torch.nested.narrow(padded, 1, torch.tensor([0, 0]), torch.tensor([2, 4]), layout=torch.jagged)
by_hand = torch.cat([row.flatten() for row in rows.unbind()])

def figures(x):
    return [x.numel(), x.sum().item(), x.mean().item(), x.max().item(), (x > 500).any().item()]

holes, packed, right = figures(rows), figures(rows.contiguous()), figures(by_hand)
print("numel, sum, mean, max, any > 500:", holes, "contiguous:", packed, "rows by hand:", right)
raise SystemExit(not (packed == right == [18, 18, 1, 1, False] and holes[0] == 18 and holes[1] > 1000 and holes[3] == 1000 and holes[4]))
P

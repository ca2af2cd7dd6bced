#!/usr/bin/env bash
# PyTorch 2.15.0 (torch/distributed/tensor/experimental): context_parallel writes each rank's part of a buffer to the front of the memory
# that the buffer lies in. Tokens and labels are mostly views of one batch, batch[:, :-1] and batch[:, 1:], so that the part of
# the labels overwrites that of the tokens in a batch of one row. Nothing is said, and after the block both are whole again. Clones are cut right.
# Seen: rank 0 of 2 has tokens 0 1 2 3 4 13 14 15 of views, 0 1 2 3 12 13 14 15 of clones
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q torch==2.15.0 numpy
cat >"$a/cut.py" <<'P'
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.tensor.experimental import context_parallel


def work(rank, init):
    dist.init_process_group("gloo", init_method=init, rank=rank, world_size=2)
    mesh, seen = dist.init_device_mesh("cpu", (2,)), {}
    for name, made in (("views", lambda x: x), ("clones", torch.clone)):
        batch = torch.arange(17)[None]
        tokens, labels = made(batch[:, :-1]), made(batch[:, 1:])
        with context_parallel(mesh, buffers=[tokens, labels], buffer_seq_dims=[1, 1]):
            seen[name] = tokens[0].tolist()
    if rank == 0:
        for name, tokens in seen.items():
            print(f"tokens of {name}: {tokens}", flush=True)
        assert seen == {"views": [0, 1, 2, 3, 4, 13, 14, 15], "clones": [0, 1, 2, 3, 12, 13, 14, 15]}
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.spawn(work, (f"file://{sys.argv[1]}/init",), 2)
P
"$a/v/bin/python" -W ignore "$a/cut.py" "$a"

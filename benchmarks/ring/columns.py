"""Who is timed in a row: one card, dfa.distributed by each method, PyTorch's context_parallel; and the bytes of a rank."""

import contextlib

import torch

import dfa
import dfa.distributed as dd
from ring import model

# name: (method, multiprocessors left to transfers, None for dfa's own choice)
OURS = {"ring": ("ring", None), "ring-0": ("ring", 0), "ring-8": ("ring", 8), "ring-16": ("ring", 16), "allgather": ("allgather", 0),
        "alltoall": ("alltoall", 0), "mesh": ("ring", None)}
PEERS = {"torch.gather": "allgather", "torch.rotate": "alltoall"}  # how PyTorch's context moves keys


def columns_of(job, row, peers, stack):
    """({name: call}, {name: why not}). stack: holds what a peer needs open while it is timed."""
    calls, refused = {"one": _by_gradients(row, row.whole(), lambda q, k, v: _one(row, q, k, v))}, {}
    if job.ranks == 1:
        return calls, refused
    for name, (method, margin) in OURS.items():
        group = job.mesh2 if name == "mesh" else job.mesh
        if group is None or name.startswith("ring-") and (row.passes != "fwd" or not job.on_gpu):  # it is forwards that leave room
            continue
        if method == "alltoall" and (row.hk % job.ranks or row.hq % job.ranks):
            refused[name] = f"{row.hk} heads of k are not shared by {job.ranks} ranks"
            continue
        calls[name] = _ours(job, row, method, group, margin)
    if peers:
        _add_peers(job, row, stack, calls, refused)
    return calls, refused


def _one(row, q, k, v):
    return dfa.attention(q, k, v, causal=True, window=row.window_argument())


def _ours(job, row, method, group, margin):
    if group is job.mesh:
        mine = row.mine()
    else:
        mine = [dd.shard(x.detach(), group, causal=True) for x in row.whole()]
        row.learn(mine)

    def attend(q, k, v):
        return dd.context_parallel_attention(q, k, v, group=group, causal=True, window=row.window_argument(), method=method, check="once",
                                             sm_margin=margin)
    return _by_gradients(row, mine, attend)


def _by_gradients(row, tensors, attend):
    q, k, v, d_o = tensors
    if row.passes == "fwd":
        def forward():
            with torch.no_grad():
                return attend(q, k, v)
        return forward
    return lambda: torch.autograd.grad(attend(q, k, v), (q, k, v), d_o)


def _add_peers(job, row, stack, calls, refused):
    """PyTorch's context_parallel, by the first of its attentions that runs."""
    if row.window:
        refused["torch"] = "no windows"
        return
    for backend in ("CUDNN_ATTENTION", "FLASH_ATTENTION"):
        inner = stack.enter_context(contextlib.ExitStack())
        found, why = job.tried(lambda inner=inner, backend=backend: _torch(job, row, inner, backend))
        for name, call in (found or {}).items():
            _, why = job.tried(call)
            if why:
                break
        if not why:
            calls.update(found)
            return
        inner.close()
        refused[f"torch {backend.split('_')[0].lower()}"] = why


def _torch(job, row, stack, backend):
    """{name: call}, inside of PyTorch's context while the stack is open."""
    from torch.distributed.tensor.experimental import _attention, context_parallel
    from torch.nn.attention import SDPBackend, sdpa_kernel
    buffers = [x.detach().clone() for x in row.whole()]
    if row.hq != row.hk:  # its ring takes as many heads of k and v as of q
        buffers[1:3] = [x.repeat_interleave(row.hq // row.hk, 1) for x in buffers[1:3]]
    stack.enter_context(context_parallel(job.mesh, buffers=buffers, buffer_seq_dims=[2] * 4, no_restore_buffers=set(buffers)))
    stack.enter_context(sdpa_kernel([getattr(SDPBackend, backend)]))
    mine = [x.clone() for x in buffers]
    row.learn(mine)

    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    inner = _by_gradients(row, mine, attend)

    def by(method):
        def call():
            _attention.set_rotate_method(method)
            return inner()
        return call
    return {f"{name} {backend.split('_')[0].lower()}": by(method) for name, method in PEERS.items()}


def way_of(job, name):
    """(method, ways) as the model takes them."""
    return OURS[name][0], (job.ranks // 2, 2) if name == "mesh" else (job.ranks,)


def sent_bytes(job, row, name):
    """What the rank that sends most sends in a call; None of those that are not ours."""
    return model.sent_bytes(*way_of(job, name), **row.sizes()) if name in OURS else None

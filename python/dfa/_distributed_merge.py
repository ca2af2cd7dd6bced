"""Parts of a result that lie on rows of one tensor, and their sum: of outputs by their lse, of gradients as they are.

Parts are kept as kernels wrote them and added a few at a time, in float32: on a GPU by one kernel of Triton, which reads each part
and writes the sum once; by PyTorch's operators on processors and where there is no Triton, in more passes over memory.
"""

from functools import lru_cache
from typing import NamedTuple

import torch

MOST = 4  # parts that are added at once
by_kernel = True


class Part(NamedTuple):
    """Rows from `begin` on. lse: of an output; None of a gradient."""

    begin: int
    x: torch.Tensor  # [b, h, rows, d]
    lse: torch.Tensor | None = None  # [b, h, rows], float32

    def end(self):
        return self.begin + self.x.shape[2]


class Parts:
    """The sum of parts. like: a tensor [b, h, rows, d] of its shape and element type; weighted: by their lse."""

    def __init__(self, like, weighted):
        self._like, self._weighted = like, weighted
        self._sum, self._parts = None, []

    def add(self, begin, x, lse=None):
        if self._sum is not None and len(self._parts) == MOST - 1 or len(self._parts) == MOST:
            self._sum = self._added(torch.float32)
        self._parts.append(Part(begin, x, lse))

    def result(self, sinks=None, dtype=None):
        """(x, lse) of all rows, of the element type of `like` unless given; lse is None of gradients. A single part of all rows is
        given as it is."""
        dtype = dtype or self._like.dtype
        if self._sum is None and len(self._parts) == 1 and sinks is None:
            part = self._parts[0]
            if part.x.shape == self._like.shape and part.x.dtype == dtype:
                return part.x, part.lse
        done = self._added(dtype, sinks)
        return done.x, done.lse

    def _added(self, dtype, sinks=None):
        """One part of all rows, in the place of those before."""
        parts = self._parts if self._sum is None else [self._sum, *self._parts]
        self._parts = []
        if self._like.is_cuda and by_kernel and kernel():
            return Part(0, *kernel()(parts, self._like, dtype, self._weighted, sinks))
        return Part(0, *_by_operators(parts, self._like, dtype, self._weighted, sinks))


@lru_cache(maxsize=1)
def kernel():
    """add(parts, like, dtype, weighted, sinks) of Triton, or None where it is not installed."""
    try:
        from dfa._distributed_kernel import add
    except ImportError:
        return None
    return add


def _by_operators(parts, like, dtype, weighted, sinks):
    total = torch.zeros(like.shape, dtype=torch.float32, device=like.device)
    if not weighted:
        for part in parts:
            total[:, :, part.begin:part.end()].add_(part.x)
        return total.to(dtype), None
    lse = torch.full(like.shape[:3], -torch.inf, dtype=torch.float32, device=like.device)
    for part in parts:
        rows = lse[:, :, part.begin:part.end()]
        torch.logaddexp(rows, part.lse, out=rows)
    if sinks is not None:
        lse = torch.logaddexp(lse, sinks.view(1, -1, 1))
    for part in parts:
        rows = slice(part.begin, part.end())
        total[:, :, rows].addcmul_(part.x.float(), share(part.lse, lse[:, :, rows]))
    return total.to(dtype), lse


def share(lse, total):
    """[…, 1]: what part of the sum `total` one of its parts is; of rows that see nothing, 0."""
    return torch.where(total.isneginf(), 0, (lse - total).exp()).unsqueeze(-1)

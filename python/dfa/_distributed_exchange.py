"""Transfers by torch.distributed. With NCCL they run on streams of its own beside kernels, and waiting is the current stream's;
with gloo they run on threads, and waiting has a time limit."""

from datetime import timedelta

import torch
import torch.distributed as dist


class Exchange:
    def __init__(self, group, timeout_s):
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self._limit = None if timeout_s is None else timedelta(seconds=timeout_s)

    def swap(self, sent, destination, received, source):
        """Starts one transfer each way; None where there is nothing to send or receive. Wait for it by finish()."""
        ends = [(dist.isend, sent, destination), (dist.irecv, received, source)]
        wanted = [dist.P2POp(call, tensor, dist.get_global_rank(self.group, peer), self.group)
                  for call, tensor, peer in ends if tensor is not None]
        return self._tried(lambda: dist.batch_isend_irecv(wanted) if wanted else []), (sent, received)

    def gather(self, tensor):
        """Starts it; after finish() the second of the result is [ranks, …]."""
        gathered = tensor.new_empty((self.ranks, *tensor.shape))
        flat = gathered.view(-1)
        return [self._tried(lambda: dist.all_gather_into_tensor(flat, tensor.view(-1), self.group, async_op=True))], (tensor, gathered)

    def add_up(self, parts):
        """Of parts [ranks, …], for each rank the sum of what all have for it: this rank's."""
        total = parts.new_empty(parts.shape[1:])
        work = self._tried(lambda: dist.reduce_scatter_tensor(total.view(-1), parts.view(-1), group=self.group, async_op=True))
        return self.finish(([work], (parts, total)))

    def deal(self, tensor, sent, received):
        """all-to-all of a flat tensor: elements for each rank, and from each."""
        result = tensor.new_empty(sum(received))
        work = self._tried(lambda: dist.all_to_all_single(result, tensor, received, sent, self.group, async_op=True))
        return self.finish(([work], (tensor, result)))

    def finish(self, started):
        """What was received. The tensors of both sides live until here."""
        works, (_, received) = started
        for work in works:
            by_stream = received is not None and received.is_cuda
            self._tried(work.wait if by_stream or self._limit is None else lambda: work.wait(self._limit))
        return received

    def _tried(self, call):
        try:
            return call()
        except RuntimeError as error:
            raise lost(self.group, error) from error


def lost(group, error):
    ranks = dist.get_process_group_ranks(group)
    return RuntimeError(f"context_parallel_attention: a rank of the group {ranks} has stopped, did not come within the time limit or "
                        f"called with another group; rank {dist.get_rank()} says: {' '.join(str(error).split())[:300]}")


def cpu_works(group):
    """Does this group move tensors of a processor?"""
    return "cpu" in str(dist.get_backend_config(group)) or dist.get_backend(group) == "gloo"


def pack(tensors, spans, dtype=None):
    """The spans of rows of [b, h, s, d] tensors in one flat tensor; None where there are none."""
    if not spans:
        return None
    parts = [torch.cat([x[:, :, begin:end] for begin, end in spans], 2).flatten() for x in tensors]
    return torch.cat(parts) if dtype is None else torch.cat(parts).to(dtype)


def room(tensors, spans, dtype=None):
    """A flat tensor to receive what pack() makes of tensors of these shapes."""
    if not spans:
        return None
    rows, first = sum(end - begin for begin, end in spans), tensors[0]
    size = sum(x.shape[0] * x.shape[1] * x.shape[3] for x in tensors) * rows
    return first.new_empty(size, dtype=dtype or first.dtype)


def unpack(flat, tensors):
    """Views [b, h, rows, d] of what pack() has made."""
    widths = [x.shape[0] * x.shape[1] * x.shape[3] for x in tensors]
    rows = flat.numel() // sum(widths)
    parts = flat.split([width * rows for width in widths])
    return [part.view(*x.shape[:2], rows, x.shape[3]) for part, x in zip(parts, tensors)]


def add_spans(totals, parts, spans):
    """Adds rows of unpack() to where they came from."""
    done = 0
    for begin, end in spans:
        for total, part in zip(totals, parts):
            total[:, :, begin:end].add_(part[:, :, done:done + end - begin])
        done += end - begin

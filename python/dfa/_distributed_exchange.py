"""Transfers by torch.distributed. With NCCL they run on streams of its own beside kernels, and waiting is the current stream's;
with gloo they run on threads, and waiting has a time limit."""

import weakref
from datetime import timedelta

import torch
import torch.distributed as dist

_met = weakref.WeakSet()  # groups whose ranks have all been in one transfer on a GPU


class Exchange:
    def __init__(self, group, timeout_s):
        self.group, self.ranks, self.rank = group, dist.get_world_size(group), dist.get_rank(group)
        self._limit = None if timeout_s is None else timedelta(seconds=timeout_s)

    def swap(self, sent, destination, received, source):
        """Starts tensors each way, in one transfer; None where there is nothing to send or receive. Wait for it by finish()."""
        ends = [(dist.isend, sent, destination), (dist.irecv, received, source)]
        wanted = [dist.P2POp(call, tensor, dist.get_global_rank(self.group, peer), self.group)
                  for call, tensors, peer in ends for tensor in tensors or ()]
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
        """Starts the all-to-all of a flat tensor: elements for each rank, and from each."""
        result = tensor.new_empty(sum(received))
        work = self._tried(lambda: dist.all_to_all_single(result, tensor, received, sent, self.group, async_op=True))
        return [work], (tensor, result)

    def finish(self, started):
        """What was received. The tensors of both sides live until here."""
        works, (sent, received) = started
        for work in works:
            self._tried(work.wait if self._limit is None or _on_gpu(sent) or _on_gpu(received) else lambda: work.wait(self._limit))
        return received

    def meet(self, device):
        """Before the first transfers of a group on a GPU, once: NCCL connects all of its ranks in the first, which a swap may leave
        some of them out of."""
        if device.type == "cuda" and self.group not in _met:
            self._tried(lambda: dist.all_reduce(torch.zeros(1, device=device), group=self.group))
            _met.add(self.group)

    def _tried(self, call):
        try:
            return call()
        except RuntimeError as error:
            raise lost(self.group, error) from error


def _on_gpu(tensors):
    """Of a tensor, several, or None. Their waiting is the stream's, and a time limit would have the host wait, too."""
    return any(x.is_cuda for x in ((tensors,) if isinstance(tensors, torch.Tensor) else tensors or ()))


def lost(group, error):
    ranks = dist.get_process_group_ranks(group)
    return RuntimeError(f"context_parallel_attention: a rank of the group {ranks} has stopped, did not come within the time limit or "
                        f"called with another group; rank {dist.get_rank()} says: {' '.join(str(error).split())[:300]}")


def cpu_works(group):
    """Does this group move tensors of a processor?"""
    return "cpu" in str(dist.get_backend_config(group)) or dist.get_backend(group) == "gloo"


def taken(tensors, spans):
    """The spans of rows of each [b, h, s, d] tensor, as one contiguous tensor: itself if they are all of it. None without spans."""
    if not spans:
        return None
    return tuple(x[:, :, spans[0][0]:spans[0][1]].contiguous() if len(spans) == 1 else
                 torch.cat([x[:, :, begin:end] for begin, end in spans], 2).contiguous() for x in tensors)


def rooms(tensors, spans):
    """Tensors to receive what taken() makes of tensors of these shapes."""
    if not spans:
        return None
    rows = sum(end - begin for begin, end in spans)
    return tuple(x.new_empty((*x.shape[:2], rows, x.shape[3])) for x in tensors)


def spans_of_rows(x, spans):
    """(begin, part) of each span of what taken() has made."""
    done = 0
    for begin, end in spans:
        yield begin, x[:, :, done:done + end - begin]
        done += end - begin

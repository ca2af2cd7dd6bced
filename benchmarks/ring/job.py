"""The processes of one run: who they are, what they tell each other past the cards, who speaks."""

import datetime
import os
import time

import torch
import torch.distributed as dist


class Job:
    """One rank of torchrun. Numbers go between ranks by gloo, so that no card waits for them."""

    def __init__(self, device):
        local = int(os.environ.get("LOCAL_RANK", 0))
        self.on_gpu = device == "cuda"
        self.device = torch.device("cuda", local) if self.on_gpu else torch.device("cpu")
        if self.on_gpu:
            torch.cuda.set_device(self.device)
        else:
            torch.set_num_threads(1)
        dist.init_process_group("cpu:gloo,cuda:nccl" if self.on_gpu else "gloo", timeout=datetime.timedelta(seconds=120))
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.mesh = dist.init_device_mesh(device, (self.ranks,))
        self.mesh2 = dist.init_device_mesh(device, (self.ranks // 2, 2)) if self.ranks >= 4 and self.ranks % 2 == 0 else None
        seed = torch.tensor([time.time_ns() % 2 ** 31])
        dist.broadcast(seed, 0)
        self.seed = int(seed)

    def generator(self, add=0):
        """The same numbers on all ranks, others in each run."""
        return torch.Generator(self.device).manual_seed(self.seed + add)

    def wait(self):
        if self.on_gpu:
            torch.cuda.synchronize()

    def meet(self):
        """All ranks, with nothing left to do on their cards."""
        self.wait()
        dist.all_reduce(torch.zeros(1))

    def gathered(self, value):
        values = [None] * self.ranks
        dist.all_gather_object(values, value)
        return values

    def most(self, value):
        number = torch.tensor([float(value)], dtype=torch.float64)
        dist.all_reduce(number, dist.ReduceOp.MAX)
        return float(number)

    def mean(self, value):
        number = torch.tensor([float(value)], dtype=torch.float64)
        dist.all_reduce(number)
        return float(number) / self.ranks

    def tried(self, call):
        """(result, ""), or (None, why not) on every rank if one of them fails."""
        result, error = None, ""
        try:
            result = call()
            self.wait()
        except Exception as told:  # noqa: BLE001: whatever keeps it from running is told
            error = f"{type(told).__name__}: {' '.join(str(told).split())[:300]}"
        errors = [one for one in self.gathered(error) if one]
        return (None, errors[0]) if errors else (result, "")

    def merge_by(self, way):
        """Sets how parts are added in this process, and tells what it will be."""
        from dfa import _distributed_merge
        _distributed_merge.by_kernel = way == "kernel"
        return "Triton" if self.on_gpu and _distributed_merge.kernel() else "operators"

    def say(self, *lines):
        if self.rank == 0:
            for line in lines:
                print(line, flush=True)

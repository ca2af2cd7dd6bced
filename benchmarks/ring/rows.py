"""What is timed: sizes, and the tensors of a row."""

import torch

import dfa.distributed as dd


class Row:
    def __init__(self, job, tokens, hq, hk, passes, window=None, d=128, energy=False):
        self.tokens, self.hq, self.hk, self.d, self.passes, self.window, self.energy = tokens, hq, hk, d, passes, window, energy
        size = f"{tokens // 1024}k" if tokens >= 1024 else str(tokens)
        self.name = f"{size} h{hq}/{hk} {passes}" + (f" window {window}" if window else "")
        self._job, self._whole, self._mine = job, None, None

    def facts(self):
        return {"tokens": self.tokens, "hq": self.hq, "hk": self.hk, "d": self.d, "dtype": "bf16", "causal": True, "window": self.window,
                "passes": self.passes, "flops": self.flops()}

    def sizes(self):
        """As the model takes them."""
        return {"tokens": self.tokens, "hq": self.hq, "hk": self.hk, "d": self.d, "causal": True, "window": self.window_argument(),
                "passes": self.passes}

    def flops(self):
        """Forward 4 · pairs · d · hq, of the pairs that are seen; the backward 2.5 times that."""
        seen = self.tokens ** 2 / 2
        if self.window:
            w = min(self.window, self.tokens)
            seen = self.tokens * w - w * w / 2
        return 4 * self.hq * self.d * seen * (3.5 if self.passes == "fwd+bwd" else 1)

    def window_argument(self):
        return (self.window, 0) if self.window else None

    def whole(self):
        """q, k, v, do of all rows, the same on all ranks."""
        if self._whole is None:
            draw = self._job.generator()
            self._whole = [torch.randn(1, h, self.tokens, self.d, generator=draw, device=self._job.device, dtype=torch.bfloat16)
                           for h in (self.hq, self.hk, self.hk, self.hq)]
            self.learn(self._whole)
        return self._whole

    def mine(self):
        if self._mine is None:
            self._mine = [dd.shard(x.detach(), causal=True) for x in self.whole()]
            self.learn(self._mine)
        return self._mine

    def learn(self, tensors):
        for x in tensors[:3]:
            x.requires_grad_(self.passes == "fwd+bwd")

    def free(self):
        self._whole = self._mine = None
        if self._job.on_gpu:
            torch.cuda.empty_cache()


def rows_of(job, options):
    if not job.on_gpu:
        rows = [Row(job, 512, 4, 4, passes, d=64) for passes in ("fwd", "fwd+bwd")]
        rows += [Row(job, 512, 8, 2, "fwd+bwd", d=64), Row(job, 512, 4, 4, "fwd+bwd", window=100, d=64)]
    else:
        long = 131072
        rows = [Row(job, tokens, hq, hk, passes, energy=(tokens, passes) == (long, "fwd+bwd"))
                for hq, hk in ((16, 16), (32, 8)) for tokens in (32768, long) for passes in ("fwd", "fwd+bwd")]
        rows += [Row(job, long, 16, 16, "fwd+bwd", window=4096)]
        if options.long:
            rows += [Row(job, 524288, 16, 16, passes) for passes in ("fwd", "fwd+bwd")]
    return [row for row in rows if options.only in row.name]

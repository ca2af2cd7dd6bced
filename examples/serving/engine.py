"""Continuous batching: at each step the sequences that are there give one token each, and prompts fill what is left of the step."""

import dataclasses
import time
from collections import deque

import torch

from .pages import Pages


@dataclasses.dataclass(eq=False)
class Request:
    """A prompt and how many tokens are wanted; times in seconds of time.perf_counter()."""

    name: int
    prompt: list
    most: int
    arrival_s: float = 0.0
    answer: list = dataclasses.field(default_factory=list)
    times_s: list = dataclasses.field(default_factory=list)  # of each token of the answer
    pages: list = dataclasses.field(default_factory=list)
    cached: int = 0  # rows in the cache
    shared: int = 0  # of them, found there
    preempted: int = 0

    @property
    def tokens(self):
        return self.prompt + self.answer

    @property
    def done(self):
        return len(self.answer) >= self.most


class Engine:
    """Serves requests one step at a time: submit(), then step() while there is something to do.

    forward(tokens, positions, batch) gives the greedy next token of each sequence of a batch whose last row is in it. budget: tokens
    of a step at most; a prompt that is longer goes on in the next one (chunked prefill). mixed: prompts and answers in one
    step; else in steps of their own, so that their joules can be told apart.
    """

    def __init__(self, forward, pages: Pages, *, budget=256, sequences=16, mixed=True, meter=None, clock=time.perf_counter):
        if budget < sequences:
            raise ValueError(f"a budget of {budget} tokens for {sequences} sequences; accepted: one each at least")
        self.forward, self.pages, self.budget, self.sequences, self.mixed = forward, pages, budget, sequences, mixed
        self.meter, self.clock = meter, clock
        self.waiting, self.running, self.finished = deque(), [], []
        self.steps = {"prefill": 0, "decode": 0, "mixed": 0}
        self.last = None  # which of them the last one was

    def submit(self, request):
        rows = len(request.prompt) + request.most - 1
        if not request.prompt or request.most < 1:
            raise ValueError(f"request {request.name}: {len(request.prompt)} tokens, {request.most} wanted; accepted: 1 or more")
        if -(-rows // self.pages.size) > self.pages.count:
            raise ValueError(f"request {request.name} needs {rows} rows, the cache has {self.pages.count * self.pages.size}")
        self.waiting.append(request)

    @property
    def busy(self):
        return bool(self.waiting or self.running)

    def step(self):
        """Runs one batch; the requests that it finished."""
        work, self.last = self._plan(), None
        if not work:
            return []
        prefill = sum(rows for request, rows in work if not _answers(request))
        decode = sum(rows for request, rows in work if _answers(request))
        self.last = "mixed" if prefill and decode else "prefill" if prefill else "decode"
        self.steps[self.last] += 1
        ends = [request for request, rows in work if request.cached + rows == len(request.tokens)]
        if self.meter is None:
            new = self.forward(*self._batch(work))
        else:
            with self.meter.step(prefill=prefill, decode=decode, output=len(ends)):
                new = self.forward(*self._batch(work))
        return self._take(work, ends, new)

    def _plan(self):
        """(request, rows) of the step. Answers come first: a token that is late is noticed, a prompt waits for its turn."""
        work = []
        for request in [r for r in self.running if _answers(r)]:
            if request in self.running and self._room(request, 1):  # not sent back meanwhile
                work.append((request, 1))
        work = [(request, rows) for request, rows in work if request in self.running]
        left = self.budget - len(work)
        prompts = []
        for request in [r for r in self.running if not _answers(r)]:
            left -= self._chunk(prompts, request, left)
        while self.waiting and left > 0 and len(self.running) < self.sequences and self._admit(self.waiting[0]):
            request = self.waiting.popleft()
            self.running.append(request)
            left -= self._chunk(prompts, request, left)
        if not self.mixed and prompts:
            return prompts
        return work + prompts

    def _chunk(self, prompts, request, left):
        rows = min(left, len(request.tokens) - request.cached)
        if rows > 0 and self._room(request, rows, preempt=False):
            prompts.append((request, rows))
            return rows
        return 0

    def _admit(self, request):
        """Takes what pages of its beginning are known; whether the rest has room now."""
        shared = self.pages.shared(request.tokens[:-1])  # the last row is computed: its logits are wanted
        if -(-len(request.tokens) // self.pages.size) - len(shared) > self.pages.free:
            self.pages.release(shared)
            return False
        request.pages, request.cached = shared, len(shared) * self.pages.size
        request.shared += request.cached
        return True

    def _room(self, request, rows, preempt=True):
        """Pages for as many rows more; those that came last give theirs back where none are left."""
        need = -(-(request.cached + rows) // self.pages.size) - len(request.pages)
        while need > self.pages.free:
            if not preempt or self.running[-1] is request and len(self.running) == 1:
                return False
            last = self.running[-1]
            self._send_back(last)
            if last is request:
                return False
        request.pages += [self.pages.allocate() for _ in range(need)]
        return True

    def _send_back(self, request):
        """It begins again later, with what it had said as part of its prompt."""
        self.running.remove(request)
        self.pages.release(request.pages)
        request.pages, request.cached, request.preempted = [], 0, request.preempted + 1
        self.waiting.appendleft(request)

    def _batch(self, work):
        tokens = [t for request, rows in work for t in request.tokens[request.cached:request.cached + rows]]
        positions = [p for request, rows in work for p in range(request.cached, request.cached + rows)]
        columns = max(len(request.pages) for request, _ in work)
        table = [request.pages + [-1] * (columns - len(request.pages)) for request, _ in work]
        begins = [0]
        for _, rows in work:
            begins.append(begins[-1] + rows)
        last = [begins[n + 1] - 1 for n, (request, rows) in enumerate(work) if request.cached + rows == len(request.tokens)]
        return tokens, positions, Batch(_int32(table), _int32([request.cached for request, _ in work]), _int32(begins),
                                        max(rows for _, rows in work), last)

    def _take(self, work, ends, new):
        now, done = self.clock(), []
        for request, rows in work:
            before, request.cached = request.cached // self.pages.size, request.cached + rows
            if request.cached // self.pages.size > before:
                self.pages.learn(request.pages, request.tokens[:request.cached])
        for request, token in zip(ends, new, strict=True):
            request.answer.append(int(token))
            request.times_s.append(now)
            if request.done:
                self.running.remove(request)
                self.pages.release(request.pages)
                request.pages = []
                done.append(request)
        self.finished += done
        return done


@dataclasses.dataclass
class Batch:
    """Packed rows of several sequences: begins [b + 1], and of each the pages [b, columns] and the rows there before, [b]."""

    table: torch.Tensor
    before: torch.Tensor
    begins: torch.Tensor
    longest: int
    last: list  # rows of the batch whose next token is wanted


def _answers(request):
    return bool(request.answer) and request.cached == len(request.tokens) - 1


def _int32(values):
    return torch.tensor(values, dtype=torch.int32)

"""Joules of a token, prefill and decode apart."""

import operator
import threading
import weakref

from dfa import _core
from dfa._meter import _wait_for_gpu
from dfa._shapes import shown
from dfa._token_ledger import Ledger
from dfa._token_record import exposition, record_of


class Step:
    """One step of a server, as a with block. The counts may be set inside it, where they are known only then."""

    def __init__(self, meter, prefill, decode, output):
        self._meter, self.prefill, self.decode, self.output = meter, prefill, decode, output
        self._phase = "mixed" if prefill and decode else "prefill" if prefill else "decode"

    def __enter__(self) -> "Step":
        self._meter._begin(self._phase)
        return self

    def __exit__(self, kind: object, *exception: object) -> None:
        counts = (0, 0, 0)  # a step that failed made no tokens; its joules were used all the same
        try:
            if kind is None:
                output = self.decode if self.output is None else self.output
                counts = (_count("prefill", self.prefill), _count("decode", self.decode), _count("output", output))
        finally:
            self._meter._finish(self._phase, *counts)


class TokenMeter:
    """Counts tokens and the joules they take, prefill and decode apart.

        meter = dfa.TokenMeter()
        with meter.prefill(512, output=1):      # 512 tokens of prompts read, the first answer token made
            model(prompt)
        with meter.decode(8):                   # one token of each of 8 sequences
            model(last_tokens)
        print(meter.record()["phases"]["decode"]["energy_per_token_joules"])

    device: as dfa.EnergyMeter's ("auto", "cuda", "cpu"), a GPU's PCI bus id or UUID, or "replay:FILE", a recorded trace
    (CSV, time_s and columns NAME.energy_j or NAME.power_w). Where a device has no energy counter but a power sensor, watts are
    sampled by a thread and added up; the record says which. What no sensor measures is None, with the reason.

    window_s: seconds of a window; means and standard deviations are over windows. Counters change every 0.1 s on GPUs, so that
    windows of 5 s or more are worth their name. Joules are the whole device's, of everything that runs there, and
    those between steps count as "idle". Where steps are shorter than the counter's period, joules go to phases by the
    seconds of each, and `energy_uncertainty_joules` of a phase grows with it, up to all that was measured.

    synchronize: wait for PyTorch's and CuPy's work on the GPU at both ends of a step; without it, times and joules are those
    of the launches.

    One meter may be used by any number of threads; steps that overlap share time and joules evenly. As a with block it
    measures from there to the end of the block, else from the first step to each record(). Raises ValueError on bad counts,
    RuntimeError on a device that is not there and OSError on a trace that cannot be read.
    """

    device: str
    method: str | None  # nvml, rapl, replay; None where nothing measures
    kind: str | None  # counter or sampled
    period_s: float | None  # of the counter or the samples

    def __init__(self, device: str = "auto", *, window_s: float = 5.0, synchronize: bool = True):
        if isinstance(window_s, bool) or not isinstance(window_s, (int, float)) or not 0 < window_s < float("inf"):
            raise ValueError(f"window_s {shown(window_s)}; accepted: seconds, above 0")
        if not isinstance(device, str):
            raise TypeError(f"device is {type(device).__qualname__}; accepted: text")
        self._source = _core.EnergySource(device)
        self.device, self.kind = self._source.device, self._source.kind or None
        self.method = self._source.method if self.kind else None
        self.period_s = self._source.period_s
        self._synchronize = synchronize
        self._lock = threading.Lock()
        self._ledger = Ledger(self.kind == "sampled", self.period_s or 0.0, float(window_s), self._source.power_limit_w)
        self._ended = False
        self._stop = threading.Event()
        self._sampler = None
        weakref.finalize(self, self._stop.set)

    def prefill(self, tokens: int, *, output: int = 0) -> Step:
        """A step that reads prompts. output: answer tokens that it makes, one for each prompt that it ends."""
        return self.step(prefill=tokens, output=output)

    def decode(self, tokens: int, *, output: int | None = None) -> Step:
        """A step that makes a token of each sequence. output: those that are kept, where they are not all (speculation)."""
        return self.step(decode=tokens, output=output)

    def step(self, *, prefill: int = 0, decode: int = 0, output: int | None = None) -> Step:
        """A step of both, whose joules nobody can tell apart: they count as "mixed"."""
        prefill, decode = _count("prefill", prefill), _count("decode", decode)
        if prefill + decode == 0:
            raise ValueError("a step of no tokens; accepted: prefill or decode above 0")
        return Step(self, prefill, decode, None if output is None else _count("output", output))

    def record(self, **workload: object) -> dict:
        """What was measured so far, as docs/schema/dfa-tokens-1.schema.json says. workload: what ran, as the user names it
        (model, batch_size, …), of values that JSON has."""
        with self._lock:
            self._read_on()
            return record_of(self._source, self._ledger, workload)

    def prometheus(self) -> str:
        """The same as text that a Prometheus server scrapes (content type text/plain; version=0.0.4)."""
        with self._lock:
            self._read_on()
            return exposition(self._source, self._ledger)

    def __enter__(self) -> "TokenMeter":
        self._event()
        return self

    def __exit__(self, *exception: object) -> None:
        self._event()
        self._ended = True
        self._stop.set()

    def __repr__(self):
        if self.kind is None:
            return f"<dfa.TokenMeter {self.device}: not measured: {self._source.reason}>"
        return f"<dfa.TokenMeter {self.device}: {self._ledger.output} tokens, {self._ledger.energy_j:.4g} J by {self.method}>"

    def _begin(self, phase):
        if self._ended:
            raise RuntimeError("a step after the end of the meter's with block; accepted: inside it, or another meter")
        self._event(lambda: self._ledger.begin(phase))

    def _finish(self, phase, prefill, decode, output):
        self._event(lambda: self._ledger.finish(phase, prefill, decode, output))

    def _event(self, change=None):
        if self._synchronize and self.device != "cpu":
            _wait_for_gpu()
        with self._lock:
            self._ledger.event(self._source.read(), change)
            if self.kind == "sampled" and self._sampler is None:
                self._sampler = threading.Thread(target=_sample, args=(weakref.ref(self), self._stop, self.period_s), daemon=True)
                self._sampler.start()

    def _read_on(self):
        """What was used since the last step counts too, but for a meter that has not begun or has ended."""
        if self._ledger.begin_s is not None and not self._ended:
            self._ledger.event(self._source.read())


def _sample(meter, stop, period_s):
    while not stop.wait(period_s):
        here = meter()
        if here is None:
            return
        with here._lock:
            here._read_on()
        del here


def _count(name, value):
    try:
        if isinstance(value, bool) or operator.index(value) < 0:
            raise ValueError
        return operator.index(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} is {shown(value)}; accepted: a number of tokens, 0 or more") from None

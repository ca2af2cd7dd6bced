"""Who used which joules: readings of a counter, and what ran between them.

A counter changes every `period_s`, and steps of a server are often shorter. So time is cut into slots, from one change that a
reading showed to the next. The joules of a slot go to what ran in it, by seconds; where that were several phases, the counter does
not tell them apart, and the bound on the error says so. It takes the device to draw no more than its limit, or, where none is known,
twice the highest mean of a slot.
"""

import dataclasses
import math

PHASES = ("prefill", "decode", "mixed", "idle")


@dataclasses.dataclass
class Phase:
    """Sums of one phase. `seconds` and the tokens are of all steps; measured_… of the slots whose joules are known."""

    steps: int = 0
    seconds: float = 0.0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    measured_seconds: float = 0.0
    measured_tokens: int = 0
    energy_j: float = 0.0
    uncertainty_j: float = 0.0  # a bound, not a deviation


class Spread:
    """Mean and standard deviation of numbers, without keeping them."""

    def __init__(self):
        self.count, self.mean, self._squares = 0, 0.0, 0.0

    def add(self, x):
        self.count += 1
        step = x - self.mean
        self.mean += step / self.count
        self._squares += step * (x - self.mean)

    def std(self):
        return math.sqrt(self._squares / (self.count - 1)) if self.count > 1 else None


class Slot:
    """From one change of the counter to the next."""

    def __init__(self):
        self.seconds = dict.fromkeys(PHASES, 0.0)
        self.tokens = dict.fromkeys(PHASES, 0)
        self.output = 0

    def add(self, other):
        for phase in PHASES:
            self.seconds[phase] += other.seconds[phase]
            self.tokens[phase] += other.tokens[phase]
        self.output += other.output


class Ledger:
    """Not safe by itself for several threads: dfa.TokenMeter holds a lock around each call."""

    def __init__(self, sampled, period_s, window_s, limit_w=None):
        self.sampled, self.period_s, self.window_s, self._limit_w = sampled, period_s, window_s, limit_w
        self.phases = {phase: Phase() for phase in PHASES}
        self.output = self.measured_output = 0
        self.energy_j = self.measured_s = self.unmeasured_s = self._highest_w = 0.0
        self.begin_s = self.end_s = None
        self.readings = self.breaks = self._runs = 0  # runs: of slots without a break
        self.why_not = ""  # why the last slot without joules has none
        self.spreads = {phase: Spread() for phase in (*PHASES[:3], "output")}
        self.running = dict.fromkeys(PHASES[:3], 0)
        self._mark = self._joules = None  # the reading that the slot began with; joules of samples
        self._slot, self._before = Slot(), None
        self._new_window()

    def _new_window(self):
        self._window, self._window_j = Slot(), dict.fromkeys(PHASES, 0.0)

    def event(self, reading, change=None):
        """Takes in a reading. What has run since the last one is in `running`; then `change` is called, begin() or finish() of a
        step, so that its tokens belong to the slot that the reading may end."""
        self.readings += 1
        now = reading.time_s
        if self.begin_s is None:
            self.begin_s = self.end_s = now
        self._spend(max(0.0, now - self.end_s))
        self.end_s = max(now, self.end_s)
        if change is not None:
            change()
        value = self._integrated(reading) if self.sampled else reading.value
        if value is None or self._mark is None or reading.breaks != self._mark[1]:
            if self._mark is not None:
                self.breaks += 1
            self._drop(reading.reason or ("the counter broke off" if self._mark is not None else ""))
            self._mark = None if value is None else (value, reading.breaks)
        elif value != self._mark[0]:
            self._close(value - self._mark[0])
            self._mark = (value, reading.breaks)

    def begin(self, phase):
        self.running[phase] += 1

    def finish(self, phase, prefill, decode, output):
        self.running[phase] -= 1
        sums = self.phases[phase]
        sums.steps += 1
        sums.prefill_tokens += prefill
        sums.decode_tokens += decode
        self.output += output
        self._slot.tokens[phase] += prefill + decode
        self._slot.output += output

    def _spend(self, seconds):
        """Steps that overlap share the time, each by its number."""
        count = sum(self.running.values())
        for phase, n in self.running.items() if count else [("idle", 1)]:
            self._slot.seconds[phase] += seconds * n / max(count, 1)
            self.phases[phase].seconds += seconds * n / max(count, 1)

    def _integrated(self, reading):
        """Joules of watts that are sampled. A gap, in which anything may have been drawn, is a break."""
        if reading.value is None:
            self._joules = None
            return None
        last = self._joules
        gap = 0.0 if last is None else reading.time_s - last[1]
        if last is None or gap > 5 * self.period_s + 0.5:
            if last is not None and self._mark is not None:
                self.breaks += 1
                self._drop(f"no sample was taken for {gap:.3g} s")
            self._joules, self._mark = (0.0, reading.time_s, reading.value), None
        else:
            self._joules = (last[0] + gap * (reading.value + last[2]) / 2, reading.time_s, reading.value)
        return self._joules[0]

    def _drop(self, reason):
        seconds = sum(self._slot.seconds.values())
        if seconds > 0 or any(self._slot.tokens.values()):
            self.unmeasured_s += seconds
            self.why_not = reason or self.why_not
        self._slot, self._before = Slot(), None
        self._new_window()

    def _close(self, joules):
        slot, seconds = self._slot, sum(self._slot.seconds.values())
        if not joules > 0 or not seconds > 0:
            return self._drop("the counter went back")
        self._highest_w = max(self._highest_w, joules / seconds)
        for phase in PHASES:
            self._give(phase, joules, slot.seconds[phase], seconds)
            self.phases[phase].measured_tokens += slot.tokens[phase]
        self._edge(slot, seconds)
        self.energy_j += joules
        self.measured_s += seconds
        self.measured_output += slot.output
        self._window.add(slot)
        self._slot = Slot()
        if sum(self._window.seconds.values()) >= self.window_s:
            self._end_window()

    @property
    def most_w(self):
        return max(self._limit_w, self._highest_w) if self._limit_w else 2 * self._highest_w

    def _give(self, phase, joules, seconds, of):
        """A phase's part of a slot, and how far off it may be: neither it nor the others drew more than `most_w`."""
        part, sums = joules * seconds / of, self.phases[phase]
        least, most = joules - self.most_w * (of - seconds), self.most_w * seconds
        sums.uncertainty_j += max(min(joules, most) - part, part - max(0.0, least), 0.0)
        sums.energy_j += part
        sums.measured_seconds += seconds
        self._window_j[phase] += part

    def _edge(self, slot, seconds):
        """A counter is up to one period old: what was drawn in the last period of the slot before is counted in this one."""
        self._runs += self._before is None
        for phase in PHASES:
            share = slot.seconds[phase] / seconds
            low, high = (0.0, 0.0) if self._before is None else self._late(phase)
            self.phases[phase].uncertainty_j += self.period_s * self.most_w * max(high - share, share - low)
        self._before = slot.seconds

    def _late(self, phase):
        """The share of a phase in the last period of the slot before, at least and at most."""
        own, others = self._before[phase], sum(self._before.values()) - self._before[phase]
        if own + others < self.period_s:
            return 0.0, 1.0
        return (max(0.0, 1 - others / self.period_s), min(1.0, own / self.period_s)) if self.period_s else (0.0, 0.0)

    def uncertainty_j(self, phase=None):
        """Of a phase, or of the whole: then at its two ends alone. None drew more than `most_w`, in its seconds or the others'."""
        at_most, sums = self.period_s * self.most_w, self.phases.get(phase)
        ends = 2 * self._runs * at_most
        if sums is None:
            return ends
        open_end = at_most * self._late(phase)[1] if self._before else 0.0
        most = min(self.energy_j + ends, self.most_w * sums.measured_seconds)
        least = max(0.0, self.energy_j - ends - self.most_w * (self.measured_s - sums.measured_seconds))
        return min(sums.uncertainty_j + open_end, max(most - sums.energy_j, sums.energy_j - least))

    def _end_window(self):
        window, joules = self._window, self._window_j
        for phase in PHASES[:3]:
            if window.tokens[phase] and joules[phase] > 0:
                self.spreads[phase].add(joules[phase] / window.tokens[phase])
        if window.output:
            self.spreads["output"].add(sum(joules.values()) / window.output)
        self._new_window()

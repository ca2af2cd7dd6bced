"""A loop of the user's, held under a cap of watts or degrees, alone or with others under one budget."""

import os
import time
import warnings
from numbers import Real

from dfa import _core
from dfa._meter import _wait_for_gpu
from dfa._policy import Policy
from dfa._shapes import shown


def _is_amount(value):
    return isinstance(value, Real) and not isinstance(value, bool) and 0 <= value < float("inf")


def _socket_of(privileges):
    """The path of the daemon's socket, empty for the usual one; None where nothing is asked of it."""
    if isinstance(privileges, bool):
        return "" if privileges else None
    path = os.fspath(privileges) if isinstance(privileges, (str, os.PathLike)) else None
    if not isinstance(path, str) or not path:
        raise ValueError(f"privileges={privileges!r}; accepted: True, False or the path of the daemon's socket")
    return path


class Governor:
    """Holds a loop under a cap by gaps after its steps. No clock or limit of the card is touched, unless its owner lends them.

        with dfa.Governor("power_cap:500W") as governor:
            for batch in batches:
                train_step(batch)
                governor.pace()

    policy: power_cap:500W or temp_cap:70C, text or dfa.Policy. device: "cuda", the GPU that dfa uses, or a PCI bus
    id or UUID. Entering takes two seconds in which the idle card is measured, unless idle_w is given:
    nothing may run on it then. For calibrate_s seconds the loop then runs freely, so that what it draws is
    known; the cap may be exceeded until then.

    pace() waits for the GPU (PyTorch, CuPy) and then as long as the cap asks. Gaps fall between steps: watts
    swing between those of a step and those of the idle card. Of steps of a tenth of a second or less single seconds are held under a
    power_cap, in which a step more than their share is allowed for: the longer the steps and the gaps, the further below it the mean
    is. Of longer steps the mean alone is held.

    group: a ProcessGroup or DeviceMesh of torch.distributed whose ranks all make and enter a governor, in one order: power_cap is
    then the sum of their cards, one each, whose loops wait for each other. What a card may draw is its lease, `lease_w`, renewed
    ten times a second through the group's store by a thread of each rank and shared out by the group's first rank, so that all have
    gaps of the same share of their time: watts go where the step is late. A lease lasts lease_s seconds; a rank that hears nothing
    for so long goes down to its safe share, 0.9 of an equal one, and `alone` says why. What a dead rank might draw stays set aside.
    Decreases come before increases: the sum of all leases never exceeds the cap, whoever dies.

    privileges: True has the card's own power limit and clocks lent by the daemon of its owner (`dfa privileges serve`), over the socket
    that DFA_PRIVILEGES or the system names; a path is that of its socket. A power_cap is then held by the card's limit, and by gaps below
    what is lent; limit:450W and clock:1200MHz are policies too. The lease is renewed while the loop runs and the card is put back at its end. Where the daemon ends before,
    a cap goes on by gaps and `put_back` says why; a policy that is a lever ends pace() with RuntimeError.

    clocks: of a card whose clocks are lent, "1980,1500,1200MHz" or "1200:1980:60MHz": a step is measured at each of them too, calibrate_s
    each, after the card's own clock. min_energy, edp, latency:20ms (of a step) and max_performance are then policies as well, and choose a
    clock, as caps do that no lent limit holds: `clock_hz` tells which. Where clocks are no longer lent, it is the card's own.

    pace("decode") and pace("prefill") tell the steps of a server apart: a token that is late is noticed, a prompt may wait. Behind a
    step of decode there is no gap; its share is waited for behind the next prefill (or mixed) step, at_most_s at most, and the rest
    behind those that follow. latency: is then of the steps of decode, the time between tokens. Where a second was decoded
    although the cap asked for gaps, status is infeasible, and `reachable` what it draws.

    status: calibrating, silent (the power sensor has said nothing for two seconds beyond calibrate_s: no cap is held, of which
    one RuntimeWarning tells), holding, stale (no readings: by what was learned), foreign or infeasible, then with the nearest
    value that can be had in `reachable`. duty: the share of the time that steps take. power_w (the mean of the last
    second, where the card has it), steps, waited_s, idle_w tell more. Raises RuntimeError where there is no power sensor, ValueError for other policies.
    """

    status: str
    duty: float
    power_w: float | None
    reachable: float | None
    steps: int
    waited_s: float
    idle_w: float | None
    put_back: str  # why the levers that were lent are gone; empty where they are not
    clock_hz: float | None  # that the card is locked to by the policy's choice; None: its own
    lease_w: float | None  # of a group's card, what it may draw now
    alone: str  # why there is no lease of the group; empty where there is one, or no group

    def __init__(self, policy: Policy | str, *, device: str = "cuda", calibrate_s: float = 2.0,
                 idle_w: float | None = None, group: object = None, lease_s: float = 2.0,
                 privileges: bool | str | os.PathLike = False, clocks: str | None = None):
        self._share = None
        if not isinstance(device, str):
            raise TypeError(f"device is {type(device).__qualname__}; accepted: text")
        if not _is_amount(calibrate_s):
            raise ValueError(f"calibrate_s {shown(calibrate_s)}; accepted: seconds, 0 or more")
        if idle_w is not None and not _is_amount(idle_w):
            raise ValueError(f"idle_w {shown(idle_w)}; accepted: watts, 0 or more, or None to measure them")
        if group is None and lease_s != 2.0:
            raise ValueError(f"lease_s {shown(lease_s)} without group; accepted: 2, as there is no lease")
        if group is not None and privileges:
            raise ValueError("privileges= and group=; accepted: one of them, as a group's leases change ten times a second")
        if clocks is not None and (not isinstance(clocks, str) or privileges is False):
            raise ValueError(f"clocks={clocks!r}; accepted: a text such as 1980,1500,1200MHz, with privileges=")
        if group is not None:
            from dfa._governor_group import share_of
            self._share, policy = share_of(group, policy, lease_s, self)
        self._loop = _core.Loop(str(policy), device, float(calibrate_s), None if idle_w is None else float(idle_w), _socket_of(privileges),
                                clocks)
        self._step_s, self._resumed_s, self._limit_w = 0.0, None, None
        self._device, self._has_warned = device, False

    def __enter__(self) -> "Governor":
        _wait_for_gpu()
        self._loop.begin()
        self._resumed_s = time.monotonic()
        if self._share is not None:
            self._limit_w = self._loop.limit_w
            self._share.begin()
        return self

    def __exit__(self, *exception: object) -> None:
        if self._share is not None:
            self._share.end()
        self._loop.end()

    def pace(self, phase: str | None = None, *, at_most_s: float | None = None) -> None:
        """Waits for the GPU, then as long as the cap asks, at_most_s at most: after each step of the loop.

        phase: "prefill" (also of steps that are both), "decode", behind which nothing waits, not for the GPU either, or None.
        """
        if phase is not None and (not isinstance(phase, str) or phase not in ("prefill", "decode")):
            raise ValueError(f"phase is {shown(phase)}; accepted: 'prefill', 'decode' or None")
        if at_most_s is not None and (phase == "decode" or not _is_amount(at_most_s)):
            raise ValueError(f"at_most_s {shown(at_most_s)}" + (" beside phase 'decode', which never waits; accepted: None" if phase == "decode" else
                             "; accepted: seconds, 0 or more, or None"))
        if phase != "decode":
            _wait_for_gpu()
        if self._share is not None:
            self._share.hold()
        self._loop.pace(phase == "decode", float("inf") if at_most_s is None else float(at_most_s))
        if not self._has_warned and self._loop.status == "silent":
            self._has_warned = True
            warnings.warn(f"the power sensor of {self._device} says nothing, so that what a step draws is not known: the loop runs on and "
                          "no cap is held", RuntimeWarning, stacklevel=2)
        now, before = time.monotonic(), self._resumed_s
        if before is not None:
            self._step_s += (1.0 if not self._step_s else 0.2) * (now - before - self._step_s)
        self._resumed_s = now

    def _facts(self):
        """(power_w, step_s, least_w, most_w) for the group: a step counts as longer by its gap, as those who wait for it have none."""
        loop = self._loop
        idle_w, duty, limit_w, full_w = loop.idle_w or 0.0, max(loop.duty, 0.01), self._limit_w or 1e5, loop.full_w
        if full_w is None:  # it runs freely until it is known what it draws
            return 0.0, max(self._step_s, 1e-3), 1.1 * idle_w, limit_w
        most_w = 1.05 * full_w + 5
        return loop.power_w or full_w, max(self._step_s, 1e-3) / duty, 1.1 * idle_w, min(max(most_w, 1.1 * idle_w), limit_w)

    def _set_cap(self, watts):
        self._loop.set_policy(f"power_cap:{watts:.1f}W")

    def __getattr__(self, name):
        if name == "lease_w":
            return None if self._share is None else self._share.lease_w()
        if name == "alone":
            return "" if self._share is None else self._share.alone()
        if name in ("status", "duty", "power_w", "reachable", "clock_hz", "steps", "waited_s", "idle_w", "put_back"):
            return getattr(self._loop, name)
        raise AttributeError(f"dfa.Governor has no attribute '{name}'")

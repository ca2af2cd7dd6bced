"""Joules of a piece of code."""

import sys

from dfa import _core


class EnergyMeter:
    """Joules that a device takes between the begin and the end of a with block.

        with dfa.EnergyMeter() as m:
            train_step()
        print(m.energy_j, "±", m.uncertainty_j)

    device: "cuda" (the GPU's counter, through NVML), "cpu" (RAPL), or "auto": cuda where there is a
    usable GPU, else cpu. The counter is the whole device's: other programs' joules are in it. Counters
    change every `period_s` seconds (0.1 s on data-centre GPUs); the two ends are uncertain by one
    period each, so a block should last 5 s or more. PyTorch's and CuPy's pending work on the GPU is waited
    for at both ends.

    energy_j and uncertainty_j in joules, power_w in watts, seconds: of the last block. They are None where nothing was
    measured; `reason` says why. Raises ValueError on another device, RuntimeError where "cuda" has no GPU.
    """

    device: str
    period_s: float | None  # None where nothing measures
    energy_j: float | None  # J
    uncertainty_j: float | None  # J, to each side
    power_w: float | None  # W, the mean
    seconds: float | None
    reason: str  # why nothing was measured; empty where something was

    def __init__(self, device: str = "auto"):
        if not isinstance(device, str):
            raise TypeError(f"device is {type(device).__qualname__}; accepted: text")
        self._counters = _core.Counters(device)
        self.device = self._counters.device
        self.period_s = self._counters.period_s
        self.energy_j = self.uncertainty_j = self.power_w = self.seconds = None
        self.reason = "the meter has not run"

    def __enter__(self) -> "EnergyMeter":
        _wait_for_gpu()
        self._counters.begin()
        return self

    def __exit__(self, *exception: object) -> None:
        _wait_for_gpu()
        measured = self._counters.end()
        self.seconds = measured.seconds
        self.energy_j = measured.energy_j
        self.reason = measured.reason
        known = measured.energy_j is not None
        self.uncertainty_j = measured.uncertainty_j if known else None
        self.power_w = measured.power_w if known else None

    def __repr__(self):
        if self.energy_j is None:
            return f"<dfa.EnergyMeter {self.device}: not measured: {self.reason}>"
        return (f"<dfa.EnergyMeter {self.device}: {self.energy_j:.4g} ± {self.uncertainty_j:.2g} J in "
                f"{self.seconds:.4g} s>")


def _wait_for_gpu():
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.synchronize()
    cupy = sys.modules.get("cupy")
    if cupy is not None:
        cupy.cuda.runtime.deviceSynchronize()

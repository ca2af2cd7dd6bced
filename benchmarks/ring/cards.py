"""What the cards say of themselves, and their energy counters. Nothing is set."""

import platform
import subprocess
import time

import torch


def name(job):
    return torch.cuda.get_device_name(job.device) if job.on_gpu else platform.processor() or "a processor"


def nccl():
    return ".".join(map(str, torch.cuda.nccl.version())) if torch.cuda.is_available() else "none"


def states(job):
    """A line for each card of the job, of rank 0's nvidia-smi."""
    if not job.on_gpu or job.rank:
        return ["none"]
    fields = "index,name,power.limit,power.draw,clocks.sm,temperature.gpu,memory.used"
    try:
        run = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired) as error:
        return [f"cards: not measured: {error}"]
    return run.stdout.strip().splitlines() or [f"cards: not measured: {run.stderr.strip()[:200]}"]


def _uuid(job):
    return f"GPU-{torch.cuda.get_device_properties(job.device).uuid}"


class meter:  # noqa: N801: made once a column, as a function's result
    """This rank's energy counter, by dfa's own reader."""

    def __init__(self, job):
        self._source, self._why = None, "no card"
        if job.on_gpu:
            from dfa import _core
            try:
                self._source = _core.EnergySource(_uuid(job))
                self._why = "" if self._source.kind == "counter" else f"no energy counter: {self._source.reason}"
            except Exception as error:  # noqa: BLE001: told in the table
                self._why = str(error)

    def reading(self):
        """(seconds, joules)"""
        if self._why:
            raise RuntimeError(self._why)
        read = self._source.read()
        if read.value is None:
            raise RuntimeError(read.reason)
        return time.perf_counter(), read.value


class nvlink:  # noqa: N801: likewise
    """What this rank's card has sent over NVLink."""

    def __init__(self, job):
        self._sensor = None
        if job.on_gpu:
            from dfa import _core
            self._sensor = _core.CardSensor(_uuid(job), "nvml:nvlink_sent")

    def reading(self):
        """Bytes, of which only differences mean anything."""
        if self._sensor is None:
            raise RuntimeError("no card")
        value, why = self._sensor.read()
        if value is None:
            raise RuntimeError(why)
        return value

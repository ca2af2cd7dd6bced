#!/usr/bin/env bash
# pyJoules 0.5.1 (pyJoules/energy_meter.py, EnergyMeter.gen_idle): its docstring has it wait for each sample's duration again and give what
# the idle machine drew meanwhile, for EnergyTrace.remove_idle to subtract. A sample's duration is in seconds (EnergySample's docstring);
# gen_idle divides it by 1e9 before it sleeps. The idle share is thus that of one call and not of the sample, next to nothing is
# subtracted, and what is reported as net of idle is the gross energy, without a warning.
# Seen: on a meter that always reads 100 W, half a second of sleep is 50 J, its idle share 0.01 to 0.4 J, so net of idle 50 J; right is 0
set -euo pipefail
a=$(mktemp -d); trap 'rm -rf "$a"' EXIT
python3 -m venv "$a/v" && "$a/v/bin/pip" install -q pyJoules==0.5.1
"$a/v/bin/python" - <<'P'
import time
from pyJoules.device import Device, Domain
from pyJoules.energy_meter import EnergyMeter

class Plug(Domain):
    def __repr__(self):
        return "plug"
    def __eq__(self, other):
        return isinstance(other, Plug)
    def get_device_type(self):
        return Steady

class Steady(Device):
    """A wall meter of a machine that draws 100 W whatever it does, in microjoules as pyJoules' own devices of the CPU."""
    @staticmethod
    def available_domains():
        return [Plug()]
    def get_energy(self):
        return [100e6 * time.monotonic()]

plug = Steady()
plug.configure([Plug()])
meter = EnergyMeter([plug])
meter.start("sleep")
time.sleep(0.5)
meter.stop()
trace = meter.get_trace()
duration, gross = trace[0].duration, trace[0].energy["plug"] / 1e6
begin = time.monotonic()
idle = meter.gen_idle(trace)
waited = time.monotonic() - begin
trace.remove_idle(idle)
net = trace[0].energy["plug"] / 1e6
print(f"sample {duration:.2f} s, {gross:.1f} J; idle measured for {waited:.4f} s: {idle[0]['plug'] / 1e6:.3f} J; net of idle {net:.1f} J")
raise SystemExit(not (0.5 <= duration < 5 and gross > 45 and waited < 0.25 and net > 0.5 * gross))
P

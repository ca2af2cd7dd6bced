#!/usr/bin/env python3
"""A training loop under a cap: the GPT of examples/train_gpt.py, free, then paced by dfa.Governor. Needs a GPU.

Usage: python3 benchmarks/governed_training.py OUT.json [--policy power_cap:500W …] [--seconds 12]

Of each policy, from the end of its calibration on: tokens/s, joules by the card's counter, and the sensor's
watts as the governor saw them, as means of one second.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import torch

import dfa

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "examples"))
from train_gpt import MODEL, Gpt, batches, loss_of, ours, read_text  # noqa: E402

SHAPE = MODEL["cuda"]


def make_step():
    model = Gpt(**SHAPE, attention=ours).to("cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4)
    data = list(batches(read_text(), 50, SHAPE, 0, "cuda"))

    def step(number):
        tokens, targets = data[number % len(data)]
        loss = loss_of(model, tokens, targets, "cuda")
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    return step


def measure(step, seconds, pace):
    """(meter, steps, [(time, W, status)]) of a loop; pace() ends a step and tells W and status."""
    number, seen = 0, []
    with dfa.EnergyMeter("cuda") as meter:
        begin = time.perf_counter()
        while time.perf_counter() - begin < seconds:
            step(number)
            seen.append((time.perf_counter() - begin, *pace()))
            number += 1
    return meter, number, seen


def of(policy, meter, steps, seen):
    watts = {}
    for when, power, _ in seen:
        if power is not None:
            watts.setdefault(int(when), []).append(power)
    tokens = steps * SHAPE["batch"] * SHAPE["context"]
    return {"policy": policy, "tokens_per_s": tokens / meter.seconds, "steps": steps,
            "energy_j": meter.energy_j, "energy_uncertainty_j": meter.uncertainty_j,
            "power_w": meter.power_w, "mj_per_token": meter.energy_j and 1e3 * meter.energy_j / tokens,
            "watts_by_second": [statistics.mean(of_second) for _, of_second in sorted(watts.items())],
            "statuses": sorted({status for _, _, status in seen if status})}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=pathlib.Path)
    parser.add_argument("--policy", action="append")
    parser.add_argument("--seconds", type=float, default=12)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("governed_training.py: needs a GPU that PyTorch sees")
    step = make_step()
    for number in range(5):
        step(number)
    runs = []

    def free():
        torch.cuda.synchronize()
        return None, None
    runs.append(of("none", *measure(step, arguments.seconds, free)))
    for policy in arguments.policy or ["power_cap:500W", "power_cap:350W"]:
        torch.cuda.synchronize()
        with dfa.Governor(policy) as governor:
            def pace(governor=governor):
                governor.pace()
                return governor.power_w, governor.status
            while governor.status == "calibrating":
                step(0)
                governor.pace()
            measure(step, 2, pace)  # the first corrections
            run = of(policy, *measure(step, arguments.seconds, pace))
            run.update(duty=governor.duty, idle_w=governor.idle_w, reachable=governor.reachable)
        runs.append(run)
        watts = "not measured" if run["power_w"] is None else f"{run['power_w']:.0f} W"
        print(f"{policy}: {watts}, {run['tokens_per_s']:,.0f} tokens/s of {runs[0]['tokens_per_s']:,.0f}, "
              f"{run['statuses']}", flush=True)
    result = {"schema": "dfa-governed-training/1", "machine": torch.cuda.get_device_name(),
              "created": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "torch": torch.__version__,
              "model": SHAPE, "seconds": arguments.seconds, "runs": runs}
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")
    print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()

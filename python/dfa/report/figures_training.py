"""What examples/train_gpt.py wrote: the loss, the speed and the joules of training."""

import pathlib
import statistics

from dfa.report.chart import Chart, Panel, Series
from dfa.report.load import BadResult, read_json

_ALGORITHM = {"standard": "standard", "torch_sdpa": "torch-sdpa", "dfa": "flash"}
_POINTS = 12  # of a curve


def _load(path):
    path = pathlib.Path(path)
    result = read_json(path)
    try:
        runs = {name: [run for run in result["runs"] if run["variant"] == name]
                for name in _ALGORITHM}
        runs = {name: found for name, found in runs.items() if found}
        shape = result["model"]
        for run in result["runs"]:
            float(run["tokens_per_s"]), [float(loss) for loss in run["losses"]]
        str(result["machine"]), int(shape["context"]), result["agreement"]
    except (KeyError, TypeError, ValueError) as error:
        raise BadResult(f"{path}: not of examples/train_gpt.py: {error!r}") from None
    return result, runs


def _curve(losses):
    step = max(1, len(losses) // _POINTS)
    means = [statistics.mean(losses[i:i + step]) for i in range(0, len(losses), step)]
    return tuple(range(0, len(losses), step)), tuple(means)


def _bars(runs, context, key, scale, title, y_label):
    series = []
    for name, found in runs.items():
        values = [run[key] for run in found]
        if None not in values:
            series.append(Series(_ALGORITHM[name], (context,), (scale * statistics.mean(values),)))
    return Panel(title=title, x_label="context", y_label=y_label, series=tuple(series), kind="bars", unit="",
                 words="" if series else "not measured: " + next(iter(runs.values()))[0].get(
                     "energy_reason", "no reason given"))


def training(path):
    """The chart of such a file."""
    result, runs = _load(path)
    shape = result["model"]
    seed = min(run["seed"] for run in result["runs"])
    curves = tuple(Series(_ALGORITHM[name], *_curve(run["losses"]))
                   for name, found in runs.items() for run in found if run["seed"] == seed)
    panels = (Panel(title=f"loss, seed {seed}", x_label="step", y_label="nats a byte", series=curves),
              _bars(runs, shape["context"], "tokens_per_s", 1e-3, "speed", "thousand tokens a second"),
              _bars(runs, shape["context"], "j_per_token", 1e3, "energy", "mJ a token"))
    apart = result["agreement"]["largest_difference_between_variants_of_one_seed"]
    return Chart("training", "Training", f"A byte-level GPT, {shape['layers']} layers of "
                 f"{shape['width']}, batch {shape['batch']}, bf16 by autocast: the same weights and the same "
                 "batches in the same order.", panels,
                 f"kernels: each attention's own choice, dfa's as planned · python3 examples/train_gpt.py --steps "
                 f"{result['steps']} · {len(result['runs'])} runs · {result['machine']} · torch {result['torch']} · "
                 f"{result.get('created', 'date not recorded')}",
                 f"Last losses of one seed differ by {apart:.3g} at most.")

"""What `dfa study` left in its folder (schema dfa-study/1): which files, and what could not be run."""

import dataclasses
import pathlib

from dfa.report.load import BadResult, read_json

SCHEMA = "dfa-study/1"
_OTHERS = ("theory", "hbm", "training", "context_parallel", "report")  # steps that are no suite of `dfa bench`


@dataclasses.dataclass(frozen=True)
class Folder:
    steps: tuple  # the records, in order
    results: tuple  # files of dfa bench
    theory: tuple  # files of dfa analyze
    hbm: pathlib.Path | None
    training: pathlib.Path | None
    context_parallel: pathlib.Path | None


def load(path):
    """Folder of a study.json; BadResult in one line where it is something else."""
    path = pathlib.Path(path)
    record = read_json(path)
    try:
        if not isinstance(record, dict) or record.get("schema") != SCHEMA:
            raise ValueError("another schema")
        steps = tuple(record["steps"])
        done = {step["name"]: [path.parent / name for name in step["outputs"]]
                for step in steps if step["status"] == "done"}
        for step in steps:
            str(step["question"]), str(step["reason"]), float(step["seconds"])
    except (KeyError, TypeError, ValueError) as error:
        raise BadResult(f"{path}: no record of a study: {error}; accepted: {SCHEMA}") from None
    results = tuple(files[0] for name, files in done.items() if name not in _OTHERS)
    if not results:
        raise BadResult(f"{path}: no suite of this study is done")
    return Folder(steps, results, tuple(done.get("theory", ())),
                  next(iter(done.get("hbm", ())), None), *(next(iter(done.get(name, ())), None) for name in ("training", "context_parallel")))

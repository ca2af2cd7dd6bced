"""Whatever stands in a result file: a study that can be shown, or one line that says what is wrong."""

import copy
import json
import random

import synthetic
from dfa.report import figures, html
from dfa.report.interactive import plots_of
from dfa.report.load import BadResult, load

JUNK = [None, True, -1, 0, 1e-300, 1e300, "", "x", "</script>", [], [1], {}, {"a": 1}, "fwd fp32 b1"]


def nodes(value, path=()):
    yield path
    items = value.items() if isinstance(value, dict) else \
        enumerate(value) if isinstance(value, list) else ()
    for key, child in items:
        yield from nodes(child, (*path, key))


def broken(base, rng):
    """The result with one to three values replaced by junk or taken out."""
    result = copy.deepcopy(base)
    for _ in range(rng.randint(1, 3)):
        path = rng.choice([p for p in nodes(result) if p])
        parent = result
        for key in path[:-1]:
            parent = parent[key]
        if rng.random() < 0.2:
            del parent[path[-1]]
        else:
            parent[path[-1]] = rng.choice(JUNK)
    return result


def test_junk_in_any_place_is_shown_or_refused(tmp_path):
    rng = random.Random(20260131)
    rows = [synthetic.case("three_way", a, True, dtype="bf16", s=s)
            for a in ("standard", "flash") for s in (128, 256)]
    rows += [synthetic.case("causal", "flash", s=s, mask=m)
             for s in (128, 256) for m in ("full", "causal")]
    rows += [synthetic.case("heatmap", "flash", s=s, b=b) for s in (128, 256) for b in (1, 2)]
    rows += [synthetic.out_of_memory("memory", "standard", s=s) for s in (128, 256)]
    base, path = synthetic.result(rows), tmp_path / "r.json"
    outcomes = {"shown": 0, "refused": 0}
    for round_ in range(80):
        result = broken(base, rng)
        path.write_text(json.dumps(result))
        try:
            study = load([path])
        except BadResult as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
            continue
        charts, absent = figures.build(study)
        for chart in charts:
            json.dumps(plots_of(chart), allow_nan=False)
        if True:
            assert html.page(study, charts, absent).endswith("</html>\n")
        outcomes["shown"] += 1
    assert min(outcomes.values()) > 8, outcomes

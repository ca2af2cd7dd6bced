"""Each figure draws the series that the synthetic formula demands; words where nothing was measured."""

import json

import pandas as pd
import pytest
import synthetic

from dfa.report import figures, style, sweeps
from dfa.report.chart import Absent, Chart, Heat, Panel, Series, log_ticks
from dfa.report.draw import figure_of, size_text
from dfa.report.interactive import plots_of
from dfa.report.load import load

LENGTHS = [128, 256, 512, 1024, 2048]
NAMES = ["speedup", "latency", "throughput", "memory", "three_panel", "efficiency", "power",
         "energy", "causal", "forward_backward", "batch", "heads", "head_dim", "embedding",
         "heatmap", "varlen", "launch"]


@pytest.fixture(scope="module")
def charts(tmp_path_factory):
    """charts(rows, energy) → {name: Chart or Absent}."""
    def make(rows=None, energy=False):
        path = tmp_path_factory.mktemp("figures") / "synthetic.json"
        path.write_text(json.dumps(synthetic.result(rows, energy)))
        found, absent = figures.build(load([path]))
        return {chart.name: chart for chart in [*found, *absent]}
    return make


@pytest.fixture(scope="module")
def plain(charts):
    return charts()


@pytest.fixture(scope="module")
def with_energy(charts):
    return charts(energy=True)


def lines(ax):
    """{label: (x, y)} of the lines and crosses drawn in an axes."""
    named = {line.get_label(): line for line in ax.lines}
    named |= {box.get_label(): box.lines[0] for box in ax.containers if hasattr(box, "lines")}
    return {label: (list(line.get_xdata()), list(line.get_ydata()))
            for label, line in named.items() if not label.startswith("_")}


def bars(ax):
    """{label: heights}"""
    return {box.get_label(): [bar.get_height() for bar in box] for box in ax.containers
            if hasattr(box, "patches") and not hasattr(box, "lines")}


def axes(chart):
    return figure_of(chart).axes[:len(chart.panels)]


def test_every_figure_is_made_of_a_full_result(plain):
    assert list(plain) == NAMES
    assert not any(isinstance(chart, Absent) for chart in plain.values())


def test_latency_draws_the_medians(plain):
    first = lines(axes(plain["latency"])[0])
    assert first["standard"] == (LENGTHS, [synthetic.time_of("standard", s=s) for s in LENGTHS])
    assert first["dfa"][1] == [synthetic.time_of("flash", s=s) for s in LENGTHS]
    assert first["dfa dynamic"][1] == [synthetic.time_of("dynamic", s=s) for s in LENGTHS]
    assert "71.6 against 215 ms (fp32, length 2048)" in plain["latency"].finding


def test_latency_has_a_panel_a_suite_and_precision_on_logarithmic_axes(plain):
    assert [p.title for p in plain["latency"].panels] == [
        "fp32 · b 1 · h 8 · d 64", "fp16 · b 1 · h 8 · d 64", "bf16 · b 1 · h 8 · d 64"]
    ax = axes(plain["latency"])[0]
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [t.get_text() for t in ax.get_xticklabels()] == [str(n) for n in LENGTHS]


def test_speedup_draws_bars_against_standard(plain):
    ax = axes(plain["speedup"])[0]
    assert bars(ax)["dfa"] == pytest.approx([3] * 5)
    assert bars(ax)["dfa dynamic"] == pytest.approx([4] * 5)
    assert "standard" not in bars(ax)


def test_throughput_draws_the_rate(plain):
    rate = 4 * 10 / 1e3  # 4 n flops in n / 10 ms
    first = lines(axes(plain["throughput"])[0])
    assert first["standard"][1] == pytest.approx([rate] * 5)
    assert first["dfa"][1] == pytest.approx([3 * rate] * 5)


def test_memory_draws_measured_planned_and_what_did_not_fit(plain):
    left, right = axes(plain["memory"])
    drawn = lines(left)
    mib = 1 << 20
    tensors = [16 * 4 * s * 64 for s in (256, 512, 1024, 2048, 4096)]
    assert drawn["dfa, measured"][1] == pytest.approx([t / mib + 1 for t in tensors])
    assert drawn["dfa, planned"][1] == pytest.approx([t / mib for t in tensors])
    x, y = drawn["standard: out of memory"]
    assert x == [65536] and y == pytest.approx([(16 * 4 * 65536 * 64 + 8 * 4 * 65536**2) / mib])
    assert bars(right)["dfa"][-1] == pytest.approx(529 / 17)


def test_causal_draws_both_masks_and_what_the_mask_saves(plain):
    left, right = axes(plain["causal"])
    assert lines(left)["dfa, causal"][1] == pytest.approx(
        [synthetic.time_of("flash", s=s) / 2 for s in (256, 512, 1024, 2048)])
    assert bars(right) == {"standard": pytest.approx([1] * 4),
                           "dfa": pytest.approx([2] * 4)}


def test_forward_and_backward_are_told_apart(plain):
    left, right = axes(plain["forward_backward"])
    for words, pass_ in (("forward", "fwd"), ("backward", "bwd"), ("forward + backward", "fwdbwd")):
        assert lines(left)[f"standard, {words}"][1] == pytest.approx(
            [synthetic.time_of("standard", pass_=pass_, s=s) for s in (256, 512, 1024)])
    assert "standard, forward + backward" not in lines(right)


@pytest.mark.parametrize("name, key, values", [
    ("batch", "b", [1, 2, 4, 8, 16]), ("heads", "h", [1, 2, 4, 8, 16, 32]),
    ("head_dim", "d", [32, 64, 96, 128, 192, 256]), ("embedding", "h", [4, 8, 12, 16, 24, 32])])
def test_shapes_draw_time_and_throughput_against_their_axis(plain, name, key, values):
    fixed = {"batch": {"s": 256}, "head_dim": {"h": 4}}.get(name, {})
    time = lines(axes(plain[name])[0])["dfa"]
    assert time[0] == [v * 64 if name == "embedding" else v for v in values]
    assert time[1] == pytest.approx([synthetic.time_of("flash", **fixed, **{key: v})
                                     for v in values])
    rate = lines(axes(plain[name])[1])["dfa"]
    assert rate[1] == pytest.approx([0.12] * len(values))


def test_the_heatmap_has_a_cell_a_batch_and_length(plain):
    heat = plain["heatmap"].panels[0]
    assert isinstance(heat, Heat) and heat.x == (128, 256, 512, 1024) and heat.y == (1, 2, 4, 8)
    drawn = axes(plain["heatmap"])[0].collections[0].get_array()
    assert drawn.shape == (4, 4) and drawn.ravel().tolist() == pytest.approx([0.12] * 16)


def test_energy_power_and_efficiency_draw_what_was_measured(with_energy):
    seconds = [synthetic.time_of("flash", s=s) / 1e3 for s in LENGTHS]
    energy = lines(axes(with_energy["energy"])[0])
    assert energy["dfa"][1] == pytest.approx([250 * t for t in seconds])
    power = lines(axes(with_energy["power"])[0])
    assert power["dfa, average"][1] == [250] * 5
    assert power["dfa, maximum"][1] == [300] * 5
    efficiency = lines(axes(with_energy["efficiency"])[0])
    assert efficiency["dfa"][1] == pytest.approx([120 / 250] * 5)
    assert with_energy["efficiency"].panels[-1].title.startswith("by pass")


def test_three_panels_are_energy_efficiency_latency(with_energy):
    drawn = axes(with_energy["three_panel"])
    assert [ax.get_title(loc="left") for ax in drawn] == ["Energy", "Efficiency", "Latency"]
    assert lines(drawn[1])["dfa dynamic, fp16"][1] == pytest.approx([160 / 220] * 5)


@pytest.mark.parametrize("name", ["energy", "efficiency", "power"])
def test_without_energy_the_figure_says_so_in_words(plain, name):
    ax, = axes(plain[name])
    text = " ".join(t.get_text().replace("\n", " ") for t in ax.texts)
    assert text == f"not measured: {synthetic.NO_ENERGY}"
    assert not ax.lines and not ax.containers and not plain[name].measured


def test_without_energy_the_three_panels_still_show_latency(plain):
    energy, efficiency, latency = axes(plain["three_panel"])
    for ax in (energy, efficiency):
        assert "not measured" in ax.texts[0].get_text() and not ax.lines
    assert lines(latency)["standard, fp32"][1] == [synthetic.time_of("standard", s=s)
                                                   for s in LENGTHS]


def test_every_figure_states_samples_machine_and_command(plain):
    for chart in plain.values():
        text = " ".join(t.get_text().replace("\n", " ") for t in figure_of(chart).texts)
        for word in ("n = 12 samples", "Synthetic CPU, 2 threads, synthetic_isa",
                     "dfa bench --suite synthetic", "git 0123456789 with local changes"):
            assert word in text, chart.name


def test_a_footer_does_not_grow_with_the_number_of_files(tmp_path):
    paths = []
    for s in (128, 256, 512, 1024):
        paths.append(tmp_path / f"{s}.json")
        paths[-1].write_text(json.dumps(synthetic.result(
            synthetic.both("sequence", False, s=s), argv=["dfa", "bench", str(s)],
            created=f"2026-01-31T12:00:{s % 60:02}Z")))
    charts, _ = figures.build(load(paths))
    source = next(chart.source for chart in charts if chart.name == "latency")
    assert source.endswith("4 commands, in report.html · git 0123456789 with local changes · "
                           "2026-01-31T12:00:04Z to 2026-01-31T12:00:32Z")


def test_bars_leave_room_for_their_interval(plain):
    for ax, panel in zip(axes(plain["speedup"]), plain["speedup"].panels):
        assert ax.get_ylim()[1] > max(y + e for s in panel.series for y, e in zip(s.y, s.error))


def test_one_algorithm_has_one_colour_in_every_figure(with_energy):
    for chart in with_energy.values():
        for panel, plot in zip(chart.panels, plots_of(chart)):
            for series, trace in zip(getattr(panel, "series", ()), plot["data"]):
                assert trace["marker"]["color"] == style.colour(series.algorithm)
        for ax in axes(chart):
            for line in ax.lines:
                for algorithm in ("standard", "flash", "dynamic"):
                    if line.get_label().startswith(style.label(algorithm)):
                        assert line.get_color() == style.colour(algorithm)


def test_the_page_draws_the_same_numbers(with_energy):
    for chart in with_energy.values():
        for panel, plot in zip(chart.panels, plots_of(chart)):
            if isinstance(panel, Heat):
                assert plot["data"][0]["z"] == [list(row) for row in panel.z]
                continue
            drawn = [trace["y"] for trace in plot["data"]][:len(panel.series)]
            assert drawn == [list(series.y) for series in panel.series]


def test_packed_sequences_stand_beside_the_same_ones_padded(plain):
    rate, gain = plain["varlen"].panels
    assert gain.series[0].x == ("3 of 37–512", "2 of 256") and gain.series[0].y == pytest.approx((2, 2))
    assert gain.reference == 1 and rate.series[0].x == gain.series[0].x


def test_panels_of_other_logits_and_layouts_say_which(charts):
    rows = [row | {"problem": f"{row['problem']} {extra}".strip()}
            for extra in ("", "softcap(5)", "alibi sink", "layout(bshd)")
            for row in (synthetic.case("custom", "flash", s=s) for s in (128, 256))]
    titles = [panel.title for panel in charts(rows)["latency"].panels]
    assert titles == [f"fp32 · b 1 · h 8 · d 64{extra}" for extra in ("", " · softcap(5)", " · alibi sink", " · layout(bshd)")]


def test_packed_sequences_are_no_points_of_a_line_of_dense_ones(charts):
    dense = [synthetic.case("custom", "flash", b=2, s=s) for s in (128, 256)]
    packed = [row | {"problem": f"fwd fp32 full hq8 hk8 d64 lens({s},1)"} for row, s in zip(dense, (128, 256))]
    for row in packed:
        row["time_ms"] = row["time_ms"] | {"median": 1e3}
    drawn = lines(axes(charts(dense + packed)["latency"])[0])
    assert drawn["dfa"][0] == [128, 256] and max(drawn["dfa"][1]) < 1e3
    assert isinstance(charts(packed)["latency"], Absent)


def test_packed_sequences_are_held_against_padded_ones_of_the_same_logits(charts):
    rows = synthetic.packed((512, 37, 100))
    packed, padded = rows
    capped = padded | {"problem": padded["problem"] + " softcap(5)"}
    capped["time_ms"] = {name: value * 8 if name != "n" else value for name, value in padded["time_ms"].items()}
    gain = charts([capped, packed, padded])["varlen"].panels[1]
    assert gain.series[0].y == pytest.approx((2,))


def test_without_the_suite_there_is_no_figure_but_the_command_for_it(charts):
    found = charts(synthetic.both("sequence", False, s=128) + synthetic.both("sequence", False))
    assert [n for n, c in found.items() if isinstance(c, Absent)] == [
        "causal", "forward_backward", "batch", "heads", "head_dim", "embedding", "heatmap",
        "varlen", "launch"]
    assert "dfa bench --suite heads" in found["heads"].reason


def test_an_energy_below_one_tick_is_drawn_at_zero_on_a_straight_axis(charts):
    rows = [synthetic.case("sequence", "flash", True, s=s) for s in (128, 256)]
    rows[0]["energy_j"] = 0.0
    chart = charts(rows)["energy"]
    ax, = axes(chart)
    assert ax.get_yscale() == "linear" and lines(ax)["dfa"][1][0] == 0
    assert "type" not in plots_of(chart)[0]["layout"]["yaxis"]


def test_one_case_alone_gives_no_sweep_and_no_crash(charts):
    found = charts([synthetic.case("run", "flash")])
    assert isinstance(found["latency"], Absent) and isinstance(found["memory"], Absent)
    assert not found["three_panel"].measured


def test_wrong_results_are_crosses_not_points(charts):
    rows = [synthetic.case("sequence", "flash", s=s) for s in (128, 256)]
    rows += [synthetic.wrong("sequence", "flash", s=512)]
    drawn = lines(axes(charts(rows)["latency"])[0])
    assert drawn["dfa"][0] == [128, 256]
    assert drawn["dfa: wrong or failed"][0] == [512]


def test_crosses_of_one_reason_share_a_look(charts):
    rows = [synthetic.case("sequence", a, s=s) for a in ("standard", "flash") for s in (128, 256)]
    one = [*rows, synthetic.out_of_memory("sequence", "standard", s=512)]
    assert charts(one)["latency"].legend[2] == {"standard: out of memory": style.colour("standard")}
    several = charts([*one, synthetic.out_of_memory("sequence", "flash", s=512)])["latency"]
    assert several.legend[2] == {"out of memory": style.SEVERAL}
    crosses = [trace for trace in plots_of(several)[0]["data"] if trace["mode"] == "markers"]
    assert [c["name"] for c in crosses] == ["standard: out of memory", "dfa: out of memory"]
    assert {c["marker"]["color"] for c in crosses} == {style.SEVERAL}


def legend_and_figure(chart):
    """Right ends, in pixels."""
    figure = figure_of(chart)
    return max((legend.get_window_extent().x1 for legend in figure.legends), default=0), figure.bbox.x1


def test_a_legend_is_no_wider_than_its_figure(with_energy):
    wide = [Series("flash", (1, 2), (1, 2), variant=f"way {k} with a long name of its own to read")
            for k in range(7)]
    made = Chart("wide", "Wide", "", (Panel("p", "x", "y", tuple(wide)),), "")
    for chart in (made, *with_energy.values()):
        legend, figure = legend_and_figure(chart)
        assert legend <= figure, chart.name


def test_an_algorithm_that_only_failed_leaves_words_not_an_empty_plot(charts):
    rows = [synthetic.out_of_memory("sequence", "standard", s=s) for s in (4096, 8192)]
    found = charts(rows)
    assert found["latency"].panels[0].words == "no number: standard: out of memory"
    for name in ("latency", "throughput", "memory"):
        text = axes(found[name])[0].texts[0].get_text().replace("\n", " ")
        assert text == "no number: standard: out of memory"
        assert plots_of(found[name]) == [None]


def test_lengths_with_a_constant_number_of_tokens_make_one_sweep(charts):
    rows = [synthetic.case("sequence", "flash", b=16384 // s, s=s) for s in (1024, 2048, 4096)]
    panel, = charts(rows)["latency"].panels
    assert panel.series[0].x == (1024, 2048, 4096) and "16384 tokens" in panel.title


def test_a_constant_batch_does_not_hide_a_constant_number_of_tokens(charts):
    rows = [synthetic.case("sequence", "flash", b=16384 // s, s=s) for s in (1024, 2048, 4096)]
    rows += [synthetic.case("three_way", "flash", b=16, s=s) for s in (512, 1024)]
    panels = charts(rows)["latency"].panels
    assert sorted(panel.series[0].x for panel in panels) == [(512, 1024), (1024, 2048, 4096)]


def test_unknown_algorithms_keep_a_colour_of_their_own():
    known = {style.colour(a) for a in ("standard", "flash", "dynamic")}
    assert style.colour("someone_elses") not in known
    assert style.colour("someone_elses") == style.colour("someone_elses")


@pytest.mark.parametrize("value, text", [(128, "128"), (8192, "8k"), (65536, "64k"), (9000, "9000"),
                                         (0.5, "0.5")])
def test_sizes_are_short(value, text):
    assert size_text(value) == text


@pytest.mark.parametrize("low, high", [(0.01, 0.02), (1, 50), (1e-3, 1e6), (3, 3)])
def test_logarithmic_ticks_are_few_and_inside(low, high):
    ticks = log_ticks(low, high)
    assert 1 <= len(ticks) <= 10 and ticks == sorted(ticks)
    assert all(low / 1.6 <= t <= high * 1.6 for t in ticks)


def test_lengths_at_constant_tokens_are_one_line_and_no_row_is_lost():
    fixed = {"device": "d", "suite": "custom", "pass": "fwd", "dtype": "bf16", "mask": "full", "hq": 8,
             "hk": 8, "d": 64, "dv": 64, "extra": "", "lengths": ""}
    rows = pd.DataFrame([{**fixed, "b": b, "sq": s, "sk": s, "length": s}
                         for b, s in ((4, 4096), (2, 8192), (1, 16384), (1, 32768))])
    parts = sweeps.sweeps(rows, "length", ["custom"])
    assert [list(part["length"]) for part in parts] == [[4096, 8192, 16384], [16384, 32768]]
    assert sweeps.describe(parts[0], "length") == "bf16 · h 8 · d 64 · 16384 tokens"

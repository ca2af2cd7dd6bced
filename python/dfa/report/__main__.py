"""python3 -m dfa.report RESULT… --out DIR, or --story FILE --out DIR"""

import argparse
import pathlib
import sys

try:
    from dfa.report import study as study_folder
    from dfa.report.load import BadResult, load
except ImportError as lacking:
    sys.exit(f"dfa.report: {lacking.name} is not installed; wanted are pandas, matplotlib, seaborn and plotly")


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python3 -m dfa.report", description="Figures and one self-contained page from the "
        "result files of `dfa bench`.", epilog="example: python3 -m dfa.report out/r.json "
        "--out out")
    parser.add_argument("results", nargs="*", metavar="RESULT",
                        help="a file of schema dfa-result/1")
    parser.add_argument("--study", metavar="FILE",
                        help="study.json of `dfa study`: everything that it names")
    parser.add_argument("--story", metavar="FILE",
                        help="story.json: chapters of words and figures, e.g. results/story.json")
    parser.add_argument("--dfa", metavar="PROGRAM",
                        help="with --story: the program whose `analyze` computes the theory")
    parser.add_argument("--theory", nargs="+", default=[], metavar="FILE",
                        help="what `dfa analyze --json` printed, with or without --worked-example")
    parser.add_argument("--training", metavar="FILE", help="what examples/train_gpt.py wrote")
    parser.add_argument("--hbm", metavar="FILE",
                        help="what benchmarks/hbm_bytes wrote: counted beside analysed traffic")
    parser.add_argument("--context-parallel", metavar="FILE",
                        help="what benchmarks/context_parallel.py wrote: one sequence over several cards")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR",
                        help="folder for report.html (story.html), NAME.png, figures.pdf, three_panel.pdf")
    arguments = parser.parse_args(argv)
    others = (arguments.results, arguments.study, arguments.theory, arguments.training, arguments.hbm,
              arguments.context_parallel)
    if arguments.story and any(others):
        parser.error("--story names its files itself; accepted beside it: --dfa, --out")
    if arguments.dfa and not arguments.story:
        parser.error("--dfa computes the theory of a story; accepted beside --story")
    if not arguments.results and not arguments.study and not arguments.story:
        parser.error("the following arguments are required: RESULT, --study or --story")
    return arguments


def _more_charts(arguments):
    """(charts of files that are no results, numbers of the worked example, what was run on several cards)."""
    from dfa.report import figures_cards, figures_hbm, figures_theory, figures_training
    analyses, example = figures_theory.load(arguments.theory)
    charts = [figures_theory.theory(analyses)] if analyses else []
    charts += [figures_hbm.hbm(arguments.hbm)] if arguments.hbm else []
    charts += [figures_training.training(arguments.training)] if arguments.training else []
    several = figures_cards.load(arguments.context_parallel) if arguments.context_parallel else None
    charts += [figures_cards.chart_of(several)] if several else []
    return charts, example, several


def _tell(arguments):
    """Writes the page and the figures of a story; says what it has no numbers for."""
    from dfa.report import files, story, story_html
    told = story.tell(arguments.story, arguments.dfa)
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = files.write_figures([chart for chart in told.charts if chart.measured], arguments.out)
    for part in (part for chapter in told.chapters for part in chapter.parts):
        if isinstance(part, story.Picture):
            files.write_atomically(arguments.out / f"{part.name}.png", part.png)
            names.append(f"{part.name}.png")
        elif isinstance(part, story.Missing):
            print(f"not measured: {part.title}" + (f"; {part.command}" if part.command else ""))
    files.write_atomically(arguments.out / "story.html", story_html.page(told).encode())
    print(f"wrote {arguments.out / 'story.html'} and {len(names)} figure files")


def main(argv=None):
    """0 done, 2 bad usage or input, with one line on stderr."""
    arguments = _arguments(argv)
    try:
        steps = ()
        if arguments.story:
            _tell(arguments)
            return 0
        if arguments.study:
            folder = study_folder.load(arguments.study)
            steps = folder.steps
            arguments.results += folder.results
            arguments.theory += folder.theory
            arguments.hbm = arguments.hbm or folder.hbm
            arguments.training = arguments.training or folder.training
            arguments.context_parallel = arguments.context_parallel or folder.context_parallel
        study = load(arguments.results)
        # Drawing takes a second to import: a bad file is reported without it.
        from dfa.report import figures, files, html
        charts, absent = figures.build(study)
        more, example, several = _more_charts(arguments)
        charts += more
        arguments.out.mkdir(parents=True, exist_ok=True)
        names = files.write_figures(charts, arguments.out)
        text = html.page(study, charts, absent, steps, example, several)
        files.write_atomically(arguments.out / "report.html", text.encode())
    except BadResult as error:
        print(f"dfa.report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"dfa.report: {error.filename or arguments.out}: cannot be written: "
              f"{error.strerror or error}; accepted: a folder with room that may be written",
              file=sys.stderr)
        return 2
    for lost in absent:
        print(f"no figure {lost.name}: {lost.reason}")
    print(f"wrote {arguments.out / 'report.html'} and {len(names)} figure files")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""python3 -m dfa.report RESULT… --out DIR"""

import argparse
import pathlib
import sys

from dfa.report.load import BadResult, load


def _arguments(argv):
    parser = argparse.ArgumentParser(
        prog="python3 -m dfa.report", description="Figures and one self-contained page from the "
        "result files of `dfa bench`.", epilog="example: python3 -m dfa.report out/r.json "
        "--out out")
    parser.add_argument("results", nargs="+", metavar="RESULT",
                        help="a file of schema dfa-result/1")
    parser.add_argument("--hbm", metavar="FILE",
                        help="what benchmarks/hbm_bytes wrote: counted beside analysed traffic")
    parser.add_argument("--out", required=True, type=pathlib.Path, metavar="DIR",
                        help="folder for report.html, NAME.png, figures.pdf, three_panel.pdf")
    return parser.parse_args(argv)


def main(argv=None):
    """0 done, 2 bad usage or input, with one line on stderr."""
    arguments = _arguments(argv)
    try:
        study = load(arguments.results)
        # Drawing takes a second to import: a bad file is reported without it.
        from dfa.report import figures, figures_hbm, files, html
        charts, absent = figures.build(study)
        if arguments.hbm:
            charts.append(figures_hbm.hbm(arguments.hbm))
        arguments.out.mkdir(parents=True, exist_ok=True)
        names = files.write_figures(charts, arguments.out)
        text = html.page(study, charts, absent)
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

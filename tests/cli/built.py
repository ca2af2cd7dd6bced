"""The built program: DFA_PROGRAM, or the newest of this checkout's builds."""
import os
import pathlib

ROOT = pathlib.Path(__file__).resolve().parents[2]


def program():
    if "DFA_PROGRAM" in os.environ:
        return pathlib.Path(os.environ["DFA_PROGRAM"])
    built = sorted(ROOT.glob("build/*/cli/dfa"), key=lambda path: path.stat().st_mtime)
    assert built, "no dfa program; build it or set DFA_PROGRAM"
    return built[-1]

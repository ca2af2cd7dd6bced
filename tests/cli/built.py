"""The built program: DFA_PROGRAM, or the newest of this checkout's builds."""
import os
import pathlib
import signal
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
HUNG_S = 600  # what takes longer has hung; under sanitizers, where a machine is busy, seconds become minutes


def program():
    if "DFA_PROGRAM" in os.environ:
        return pathlib.Path(os.environ["DFA_PROGRAM"])
    built = sorted(ROOT.glob("build/*/cli/dfa"), key=lambda path: path.stat().st_mtime)
    assert built, "no dfa program; build it or set DFA_PROGRAM"
    return built[-1]


def start(*arguments, ignoring=(), env=None, **options):
    """Starts it with its signals as from a terminal, whatever these tests were started with (`nohup … &`
    of a script ignores SIGINT, and children inherit that), but for those to be ignored."""
    def signals():
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN if number in ignoring else signal.SIG_DFL)
    return subprocess.Popen([program(), *map(str, arguments)], preexec_fn=signals,
                            env={"DFA_CUDA_DRIVER": "none-in-tests", **os.environ, **(env or {})}, **options)

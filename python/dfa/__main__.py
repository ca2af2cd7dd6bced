"""python -m dfa, and the command dfa: the program that this package brings, with its arguments and exit code."""

import os
import pathlib
import sys


def main():
    """Becomes the program. Exits with one line and 3 where the package was built without it."""
    program = pathlib.Path(__file__).with_name("bin") / "dfa"
    if not os.access(program, os.X_OK):
        print(f"dfa: {program} is not there: this package was built without the program; accepted: one that pip install has built",
              file=sys.stderr)
        sys.exit(3)
    # The program looks for NVRTC in the environment that this variable names, which only `activate` sets.
    os.environ.setdefault("VIRTUAL_ENV", sys.prefix)
    os.execv(program, ["dfa", *sys.argv[1:]])


if __name__ == "__main__":
    main()

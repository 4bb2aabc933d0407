"""`python -m lmplay PROGRAM …`: the commands, where their scripts are not on the path."""
from __future__ import annotations

import runpy
import sys

from . import __version__
from .errors import nearest

PROGRAMS = {"trainer": ("train", "train a model from a plan"), "plotstats": ("plotstats", "draw and compare what was trained"),
            "generator": ("generate", "write texts with a model"), "export": ("export", "write a model for other programs"),
            "eval": ("evaluate", "judge models by data sets"), "checkpoint": ("tools", "convert, verify, average and show states")}


def main() -> int:
    """Run a program, with the rest of the command line; without one, list them."""
    name = next(iter(sys.argv[1:]), "--help").replace("lmp_", "")
    if name == "--version":
        print(f"lmplay {__version__}")
        return 0
    if name in PROGRAMS:
        sys.argv = [f"lmp_{name}", *sys.argv[2:]]
        runpy.run_module(f"{__package__}.{PROGRAMS[name][0]}", run_name="__main__", alter_sys=True)
    if name in ("-h", "--help"):
        print("python -m lmplay PROGRAM [flags], or the command lmp_PROGRAM:\n\n"
              + "\n".join(f"  {program:<11}{what}" for program, (_, what) in PROGRAMS.items())
              + "\n\nEach has --help, --help-all and --version. Without network: python -m lmplay trainer --training-plan quickstart")
        return 0
    print(f"lmplay: there is no program {name}.{nearest(name, PROGRAMS)} There are: {', '.join(PROGRAMS)}.", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())

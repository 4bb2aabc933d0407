"""What all commands have in common."""
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from helpers import ENVIRONMENT, ROOT, TINY

from lmplay import __version__
from lmplay.command_line import Parser
from lmplay.evaluate.__main__ import main as evaluate
from lmplay.export.__main__ import main as export
from lmplay.generate.__main__ import main as generate
from lmplay.plan.options import BASIC, FLAGS
from lmplay.plotstats.__main__ import main as plot
from lmplay.tools.__main__ import main as checkpoint
from lmplay.train.__main__ import main as train

PROGRAMS = {"lmp_trainer": train, "lmp_plotstats": plot, "lmp_generator": generate, "lmp_export": export, "lmp_eval": evaluate,
            "lmp_checkpoint": checkpoint}


def said(capsys, main, *arguments):
    with pytest.raises(SystemExit) as end:
        main([*arguments])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_program_says_its_version_and_helps(capsys, name):
    main = PROGRAMS[name]
    assert said(capsys, main, "--version") == f"{name} {__version__}\n"
    short, whole = said(capsys, main, "--help"), said(capsys, main, "--help-all")
    assert said(capsys, main, "--help_all") == whole
    assert whole.startswith(short.split("\n\n")[0])
    assert said(capsys, main, "-h") == short
    assert "--out-dir" in short
    further = len(re.findall(r"^  -", whole, re.MULTILINE)) - len(re.findall(r"^  -", short, re.MULTILINE))
    assert further > 0
    assert f"--help-all has {further} flags more" in short


def test_help_is_short_and_help_all_is_whole(capsys):
    short, whole = said(capsys, train, "--help"), said(capsys, train, "--help-all")
    assert len(short.splitlines()) < 110 < 150 < len(whole.splitlines())
    for flag in FLAGS:
        option = f"--{flag.name.replace('_', '-')}"
        assert f"  {option}" in whole
        assert (f"  {option}" in short) is (flag.name in BASIC), option
    for group in ("model:", "plan and data:", "training:", "optimizer:", "run:"):
        assert group in short
    assert set(BASIC) <= {flag.name for flag in FLAGS}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_wrong_flag_is_refused_with_the_nearest_however_it_is_written(capsys, name):
    for flag in ("--out_dri", "--out-dri"):
        assert PROGRAMS[name]([flag, "x"]) == 2
        assert "Did you mean '--out-dir'?" in capsys.readouterr().err


def test_underscores_in_values_stay():
    parser = Parser(prog="p")
    parser.add_argument("--a-name")
    assert parser.read(["--a_name", "b_c"]).a_name == parser.read(["--a_name=b_c"]).a_name == "b_c"


def module(*arguments):
    return subprocess.run([sys.executable, "-m", "lmplay", *arguments], capture_output=True, text=True, env=ENVIRONMENT, cwd=ROOT, check=False)


def test_the_package_is_a_program_too():
    assert module("--version").stdout == f"lmplay {__version__}\n"
    assert all(name in module().stdout for name in ("trainer", "plotstats", "generator", "export", "eval", "checkpoint"))
    assert module("trainer", "--version").stdout == f"lmp_trainer {__version__}\n"
    assert module("lmp_generator", "--prompt", "a", "--model", "nowhere.lmp").returncode == 2
    wrong = module("triner")
    assert (wrong.returncode, "Did you mean 'trainer'?" in wrong.stderr) == (2, True)


@pytest.mark.parametrize(("typed", "expected"), [("lmp_trainer --optim", "--optimizer"), ("lmp_trainer --optimizer ada", "adagrad"),
                                                 ("lmp_trainer --exp gpt2ish_t", "gpt2ish_tiny"), ("lmp_trainer --training-plan quick", "quickstart")])
def test_the_shell_completes(tmp_path, typed, expected):
    pytest.importorskip("argcomplete")
    answer = tmp_path / "answer"
    environment = {**os.environ, "_ARGCOMPLETE": "1", "COMP_LINE": typed, "COMP_POINT": str(len(typed)), "_ARGCOMPLETE_STDOUT_FILENAME": str(answer),
                   "_ARGCOMPLETE_IFS": "\n"}
    subprocess.run([sys.executable, "-m", "lmplay.train"], env=environment, check=False, capture_output=True)
    assert expected in answer.read_text().split()


ROOMS = ["train", "plotstats", "generate", "export", "evaluate", "tools"]
PREVIEW = ["--dataset", "builtin:tales/1", *TINY]
ASKED = [*((room, [flag]) for room in ROOMS for flag in ("--help", "--version")), *(("train", asked) for asked in (
    ["--exp", "list"], ["--training-plan", "list"], [*PREVIEW, "--describe"], [*PREVIEW, "--show-samples", "1"], [*PREVIEW, "--check-plan", "--json"]))]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full disk to write to")
@pytest.mark.parametrize(("room", "asked"), ASKED)
def test_an_output_on_a_full_disk_is_one_line(room, asked, tmp_path):
    with open("/dev/full", "w") as full:
        run = subprocess.run([sys.executable, "-m", f"lmplay.{room}", *asked], stdout=full, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, cwd=tmp_path,
                             check=False)
    assert run.returncode == 2
    assert re.search(r"(?m)^lmp_\w+: its output cannot be written \(No space left on device\); make room, or send it elsewhere\.\n\Z", run.stderr)
    assert "Traceback" not in run.stderr


@pytest.mark.skipif(os.name == "nt", reason="a shell's redirections")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_standard_stream_that_is_closed_ends_nothing(closed, tmp_path):
    def run(room, *asked):
        command = shlex.join([sys.executable, "-m", f"lmplay.{room}", *map(str, asked)])
        return subprocess.run(f"{command} {closed}", shell=True, capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, check=False)

    for room in ROOMS:
        assert run(room, "--help").returncode == 0, room
    done = run("train", *PREVIEW, "--max-steps", 1, "--model", "m")
    assert done.returncode == 75, done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out_gpt" / "m.lmp").is_file()
    for room, *asked in (("generate", "--model", "m", "--max-tokens", 2), ("generate", "--model", "m", "--chat"), ("tools", "verify", "out_gpt/m.lmp")):
        done = run(room, *asked)
        assert done.returncode == 0, (room, done.stderr)
        assert not done.stderr.count("Traceback")


def test_a_terminal_that_knows_few_characters_ends_nothing(tmp_path):
    run = subprocess.run([sys.executable, "-m", "lmplay.train", *TINY, "--dataset", "builtin:tales", "--max-steps", "1", "--out-dir", str(tmp_path)],
                         capture_output=True, text=True, env={**ENVIRONMENT, "PYTHONIOENCODING": "ascii"}, cwd=ROOT, check=False)
    assert run.returncode == 75, run.stderr
    assert "'title' \\u2192 'text'" in run.stdout

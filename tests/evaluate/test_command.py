"""`lmp_eval` as a program: light where nothing is judged, and its end on Ctrl+C."""
from __future__ import annotations

import signal
import subprocess
import sys

import pytest
from exported import model_file
from helpers import ENVIRONMENT, ROOT, sentences, write_rows

LIGHT = """
import sys
from lmplay.evaluate.command import run
try:
    code = run({arguments})
except SystemExit as end:
    code = end.code
heavy = [name for name in ("torch", "transformers", "datasets", "lm_eval") if name in sys.modules]
assert not heavy, heavy
sys.exit(code)
"""


@pytest.mark.parametrize(("arguments", "code"), [(["--help"], 0), (["--stet", "x"], 2), (["m", "--set", "x", "--stride", "0"], 2),
                                                 (["nowhere", "--set", "rows.jsonl"], 2)])
def test_help_and_what_is_refused_answer_without_torch(tmp_path, arguments, code):
    write_rows(tmp_path / "rows.jsonl", [{"text": "a"}])
    run = subprocess.run([sys.executable, "-c", LIGHT.format(arguments=arguments)], capture_output=True, text=True, cwd=tmp_path, check=False,
                         env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)})
    assert run.returncode == code, run.stderr


def test_ctrl_c_ends_with_130_and_one_line(tmp_path):
    model_file(tmp_path / "m.lmp", "gpt2ish")
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(40)} for _ in range(20_000)])
    with subprocess.Popen([sys.executable, "-m", "lmplay.evaluate", "./m.lmp", "--set", "rows.jsonl", "--device", "cpu"], cwd=tmp_path, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)}) as program:
        assert program.stderr is not None
        assert "text" in program.stderr.readline()  # the set is open
        program.send_signal(signal.SIGINT)
        _, said = program.communicate(timeout=120)
    assert program.returncode == 130
    assert said.strip().startswith("lmp_eval: stopped")
    assert "Traceback" not in said

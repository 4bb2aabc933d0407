"""Saving a run on a disk that is full."""
import subprocess
import sys
from pathlib import Path

from helpers import ENVIRONMENT, TINY, train, write_plan


def test_a_disk_that_is_full_loses_nothing(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}})
    train(capsys, "--training-plan", "plan.json")
    before = Path("out_gpt/gpt2ish_model.lmp").read_bytes()
    write_plan(corpus, {"one": {"dataset": "rows.jsonl"}, "two": {"dataset": "rows.jsonl"}})
    program = ("import resource, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
               "import lmplay.engine.loop, lmplay.train.__main__ as door\n"
               f"resource.setrlimit(resource.RLIMIT_FSIZE, ({len(before) // 2}, {len(before) // 2}))\n"
               "sys.exit(door.main(sys.argv[1:]))")
    done = subprocess.run([sys.executable, "-c", program, *TINY, "--batch-size", "5", "--training-plan", "plan.json", "--save-interval", "10"],
                          capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.returncode == 1, done.stderr
    assert done.stdout.count("could not be written (File too large)") >= 3  # at each interval, and at the end
    assert Path("out_gpt/gpt2ish_model.lmp").read_bytes() == before
    assert not list(Path("out_gpt").glob(".*.tmp"))

"""What the user is told: banner, progress, summary, and the command to go on."""
import re
from pathlib import Path

import pytest
from helpers import train_plan
from told import LOG, train

from lmplay.report.report import Report


def test_banner_progress_and_summary(folder, capsys):
    text = train(capsys, "--max-steps", "9", code=75)
    for words in ("parameters", "device      cpu, float32, batch 4, mini-batch 4", f"stage 1/2   one (to do): 0.5 epochs (27 samples) of {folder}/rows.jsonl",
                  f"stage 2/2   two (to do): 40 samples of {folder}/rows.jsonl"):
        assert words in text
    lines = [line for line in text.splitlines() if line.startswith(("one:", "two:"))]
    assert re.fullmatch(r"one: 24 of 27 samples \(89%\), loss \d\.\d{3}, validation \d\.\d{3}, [\d,]+ tokens/s, 0:00:\d\d left \(plan 0:00:\d\d\)", lines[5])
    assert "(plan" not in lines[-1]  # the last stage: what is left of it is what is left of the plan
    end = text[text.index("stopped (--max-steps 9)"):]
    assert re.search(r"best validation loss \d\.\d{3} ± \d\.\d{3} nats per token at \d+ samples", end)
    assert "lmp_plotstats --out-dir out" in end
    assert LOG in end
    assert end.splitlines()[-1].startswith("  lmp_trainer --num-blocks 1")
    text = train(capsys)
    end = text[text.index("plan complete"):]
    for words in ("best validation loss", "final validation loss", "model       out/gpt2ish_model.lmp", "lmp_plotstats", LOG):
        assert words in end


def test_the_command_to_go_on_does_not_start_anew():
    from lmplay.report.report import Report

    assert Report(["lmp_trainer", "--reset_history", "--lr", "1", "--ignore-optimizer"])._command == "lmp_trainer --lr 1"


def test_the_summary_says_how_to_go_on(two_stages, capsys):
    text = train_plan(capsys, "--max-steps", 1, "--reset-history", code=75)
    told = text.splitlines()[-1].strip()
    assert told.startswith("lmp_trainer --num-blocks 1")
    assert told.endswith("--max-steps 1")
    assert "stage 1/2, one" in text
    assert str(Path("out_gpt/gpt2ish_model.lmp")) in text


@pytest.mark.parametrize(("words", "kept"), [
    ("--lr 1 --reset_history", "--lr 1"), ("--ignore-optimizer --lr 1", "--lr 1"), ("--resume best --lr 1", "--lr 1"),
    ("--lr 1 --resume=a.lmp", "--lr 1"), ("--model --resume", "--model"), ("--resume a.lmp", "")])
def test_the_command_to_go_on_neither_starts_anew_nor_goes_back(words, kept):
    assert Report(["lmp_trainer", *words.split()])._command == f"lmp_trainer {kept}".strip()


def test_a_settings_file_that_starts_anew_is_undone_in_the_command(two_stages, capsys):
    Path("settings.yaml").write_text("reset_history: true\n")
    text = train_plan(capsys, "--use-config", "settings.yaml", "--max-steps", 1, code=75)
    assert text.rstrip().endswith("--no-reset-history")

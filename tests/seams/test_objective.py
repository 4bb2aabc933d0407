"""An objective from an outside package: 1 file (and its entry point)."""
import json
import math
import sys
from pathlib import Path

import pytest
from helpers import TINY, compare_runs, sentences, write_plan, write_rows

from lmplay.plotstats.__main__ import main as plotstats
from lmplay.report import report
from lmplay.train.__main__ import main

# Beside the loss, how sure the model is of what it predicts, and every sample twice: the second time without its prompt.
FILE = '''
from dataclasses import replace

import torch
from lmplay.objectives.base import Result
from lmplay.objectives.next_token import NextToken
from lmplay.stats.figures import Figure


class Surer(NextToken):
    figures = (Figure("entropy", "entropy", "mean", "entropy_sum", "entropy_tokens", "nats per token", False, progress=True),)

    def prepare(self, sample, cutter):
        pieces = cutter.cut(sample) + cutter.cut(replace(sample, prompt=""))
        return [replace(piece, sample=sample, number=number, last=piece is pieces[-1]) for number, piece in enumerate(pieces)]

    def loss(self, model, mini_batch, head):
        result = super().loss(model, mini_batch, head)
        with torch.no_grad():
            lengths = {} if mini_batch.seq_lens is None else {"lengths": mini_batch.seq_lens}
            logits = head(model(mini_batch.tokens_BT, **lengths).flatten(0, 1)[mini_batch.positions_N]).float()
            entropy = torch.distributions.Categorical(logits=logits).entropy()
        return replace(result, loss_sum=result.loss_sum * 2, figures={"entropy_sum": entropy.sum(), "entropy_tokens": torch.tensor(float(len(entropy)))})
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    info = tmp_path / "site" / "surer-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: surer\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[lmplay.objectives]\nsurer = surer:Surer\n")
    (tmp_path / "site" / "surer.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path / "site")
    monkeypatch.chdir(tmp_path)
    write_rows(Path("rows.jsonl"), [{"prompt": f"Say {i}.", "completion": sentences(1 + i % 3)} for i in range(60)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "samples": 12}, "two": {"dataset": "rows.jsonl", "objective": "surer", "batch_size": 8}})
    return [*TINY, "--dropout", "0", "--training-plan", "plan.json", "--validation-interval", "10", "--save-interval", "9", "--track", "csv"]


def column(folder, kind, stage="two"):
    return json.loads(Path(folder, f"gpt2ish_model_step_{stage}_{kind}_stats.json").read_text())


def test_it_trains_validates_and_shows_its_figure(package, capsys, monkeypatch, tmp_path):
    monkeypatch.setattr(report, "_PLAIN_SECONDS", 0.0)
    assert main([*package, "--out-dir", "whole"]) == 0
    assert ", entropy 5." in capsys.readouterr().out
    for kind in ("train", "validate"):
        content = column("whole", kind)
        entropies, losses = content["columns"]["entropy"], content["columns"]["loss"]
        assert len(entropies) == len(losses) > 3
        assert all(0 < value < math.log(257) for value in entropies)
        assert losses[0] > 8  # twice the cross-entropy: its own loss is what is minimised
        assert content["figures"]["entropy"]["unit"] == "nats per token"
        assert "entropy" not in column("whole", kind, "one")["columns"]
    counts = column("whole", "train")["totals"]
    assert counts["pieces"] >= 2 * counts["total_train_samples"]  # a unit is a sample, twice
    whole = json.loads(Path("whole/gpt2ish_model_train_stats.json").read_text())["columns"]["entropy"]
    assert whole[0] is None  # the first stage has another objective
    assert whole[-1] == column("whole", "train")["columns"]["entropy"][-1]
    assert "entropy" in Path("whole/gpt2ish_model_train.csv").read_text().splitlines()[0]


def test_its_figure_has_panels_and_charts(package, capsys, tmp_path):
    """Drawn by a program that does not know the package: the files describe the figure."""
    assert main([*package, "--out-dir", "whole"]) == 0
    for folder in list(sys.path):
        if folder.endswith("site") and str(tmp_path) in folder:
            sys.path.remove(folder)
    assert plotstats(["--out-dir", "whole", "--x", "samples", "--format", "svg"]) == 0
    assert Path("whole/gpt2ish_model_step_two_train_stats.svg").stat().st_size > Path("whole/gpt2ish_model_step_one_train_stats.svg").stat().st_size
    pytest.importorskip("plotly")
    assert plotstats(["--out-dir", "whole", "--html", "page.html"]) == 0
    assert "entropy (nats per token)" in Path("page.html").read_text().lower()


def test_a_run_that_was_stopped_goes_on_exactly(package, capsys):
    assert main([*package, "--out-dir", "whole"]) == 0
    codes = [75]
    while codes[-1] == 75:
        codes.append(main([*package, "--out-dir", "parts", "--max-steps", "2"]))
    assert codes[-1] == 0
    assert compare_runs(Path("whole"), Path("parts")) == []


def test_a_figure_that_was_not_declared_is_an_error(package, tmp_path):
    file = tmp_path / "site" / "surer.py"
    file.write_text(FILE.replace('figures={"entropy_sum"', 'figures={"entropi_sum"'))
    sys.modules.pop("surer", None)
    with pytest.raises(ValueError, match="entropi_sum"):
        main([*package, "--out-dir", "wrong"])
    sys.modules.pop("surer", None)


def test_a_loss_over_other_things_than_tokens_is_divided_by_their_number(package, tmp_path):
    (tmp_path / "site" / "surer.py").write_text(FILE + """
    def count(self, mini_batch):
        return len(mini_batch.rows)  # pieces
""")
    sys.modules.pop("surer", None)
    assert main([*package, "--out-dir", "whole", "--lr", "1e-9"]) == 0
    sys.modules.pop("surer", None)
    training, validation = (column("whole", kind)["columns"]["loss"][-1] for kind in ("train", "validate"))
    assert training > 50
    assert 0.5 < training / validation < 2


def test_a_figure_by_a_name_that_is_taken_is_refused(package, tmp_path, capsys):
    (tmp_path / "site" / "surer.py").write_text(FILE.replace('Figure("entropy"', 'Figure("loss"'))
    sys.modules.pop("surer", None)
    assert main([*package, "--out-dir", "wrong"]) == 2
    sys.modules.pop("surer", None)
    assert "stage 'two': its objective surer cannot be used here" in capsys.readouterr().err


def test_held_out_samples_with_nothing_to_learn_are_no_validation(package, tmp_path, capsys):
    nothing = "        if 'Say 3' in sample.prompt:\n            return []\n        pieces = cutter"
    (tmp_path / "site" / "surer.py").write_text(FILE.replace("        pieces = cutter", nothing))
    write_rows(Path("odd.jsonl"), [{"prompt": f"Say {30 + i % 10}.", "completion": "x"} for i in range(8)])
    plan = json.loads(Path("plan.json").read_text())
    plan["two"]["validation"] = {"dataset": "odd.jsonl"}
    Path("plan.json").write_text(json.dumps(plan))
    sys.modules.pop("surer", None)
    assert main([*package, "--out-dir", "odd"]) == 0
    sys.modules.pop("surer", None)
    assert "no validation" in capsys.readouterr().out


def test_settings_of_the_plan_are_arguments_of_its_class(package, tmp_path, capsys):
    (tmp_path / "site" / "surer.py").write_text(FILE + """
    def __init__(self, factor):
        super().__init__()
        print(f"factor {factor}")
""")
    plan = json.loads(Path("plan.json").read_text())
    for given, code, said in (({"factor": 3}, 0, "factor 3"), ({"fctor": 3}, 2, "objective 'surer': does not take the settings {\"fctor\": 3} (")):
        plan["two"]["objective"] = {"name": "surer", "settings": given}
        Path("plan.json").write_text(json.dumps(plan))
        sys.modules.pop("surer", None)
        assert main([*package, "--out-dir", "-".join(given)]) == code
        captured = capsys.readouterr()
        assert said in captured.out + captured.err
    sys.modules.pop("surer", None)

"""Early stopping: which validation was the best, and when a stage ends."""
from pathlib import Path
from types import SimpleNamespace

from helpers import load, train, write_plan
from hypothesis import given
from hypothesis import strategies as st

from lmplay.engine.early_stopping import is_over, note_loss
from lmplay.plan.curriculum import StageState


def test_a_stage_ends_early_when_validation_gets_no_better(corpus, capsys):
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "epochs": 50, "lr": 1e-9, "early_stopping": {"patience": 3, "min_delta": 0.5}}})
    text = train(capsys, "--training-plan", "plan.json", "--validation-interval", "10")
    assert "ended early" in text
    assert load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["total_train_samples"] < 60


@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([0.0, 1.0, 3.0]), st.sampled_from([None, 1, 2, 5]))
def test_the_best_loss_and_the_validations_since_are_those_of_the_whole_list(losses, min_delta, patience):
    state, bests = StageState("one"), []
    for number, loss in enumerate(losses):
        assert note_loss(state, float(loss), 10 * number, min_delta) == (loss < min(losses[:number], default=99))
        if not bests or loss < bests[-1][0] - min_delta:  # a smaller drop is none, however many of them add up to a larger one
            bests.append((loss, number))
        assert (state.best_loss, state.stale) == (bests[-1][0], number - bests[-1][1])
        assert (state.lowest_loss, state.lowest_samples) == (min(losses[:number + 1]), 10 * losses.index(min(losses[:number + 1])))
        assert is_over(state, SimpleNamespace(patience=patience)) == (patience is not None and number - bests[-1][1] >= patience)

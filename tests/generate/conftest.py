"""Models that the doors' tests share."""
import pytest
from helpers import TINY, trainer, write_plan, write_rows


@pytest.fixture(scope="package")
def trained(tmp_path_factory):
    """A model that has learned a chat of two questions."""
    folder = tmp_path_factory.mktemp("trained")
    asked = [("user", "Who?"), ("assistant", "A cat."), ("user", "Where?"), ("assistant", "Here.")]
    write_rows(folder / "a.jsonl", [{"messages": [{"role": role, "content": text} for role, text in asked]} for _ in range(400)])
    plan = write_plan(folder, {"a": {"dataset": "a.jsonl", "epochs": 3, "lr": 0.01, "validation": 0}})
    done = trainer(*TINY, "--dropout", "0", "--context-len", "128", "--training-plan", plan, "--out-dir", folder, "--batch-size", "8",
                   "--optimizer-warmup-steps", "2")
    assert done.returncode == 0, done.stderr
    return folder

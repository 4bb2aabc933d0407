"""The held-out samples of a stage: which a validation takes, and the lowest loss that they allow."""
from pathlib import Path

from helpers import load, sentences, train, write_plan, write_rows


def test_the_last_validation_is_not_longer_than_its_stage(corpus, capsys):
    write_rows(corpus / "long.jsonl", [{"text": sentences(1000)}] * 64)
    write_plan(corpus, {"one": {"dataset": "rows.jsonl", "validation": {"dataset": "long.jsonl"}}})
    train(capsys, "--training-plan", "plan.json", "--validation-interval", 0)
    rows = load(Path("out_gpt/gpt2ish_model.lmp"))["runner"]["state"]["stats"]["validate"]["rows"]
    assert 64 * 2000 <= rows["n_bytes"][0] <= 64 * 2000 + len(sentences(1000))

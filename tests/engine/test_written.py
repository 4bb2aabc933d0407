"""Texts that the model writes itself, compared with the truth by edit distance."""
import json
from pathlib import Path

import torch
from helpers import train, write_rows
from texts import BYTES
from torch import nn

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.engine.written import judge_written
from lmplay.report.completions import CompletionWriter
from lmplay.stats.figures import Progress
from lmplay.writing.prompting import Prompting


class Next(nn.Module):
    """Knows the alphabet, and nothing else: the next token is the one after this one."""

    def __init__(self):
        super().__init__()
        self.head = nn.Identity()
        self.unused = nn.Parameter(torch.zeros(()))

    def forward(self, tokens_BT):
        return nn.functional.one_hot((tokens_BT + 1) % BYTES.vocab_size, BYTES.vocab_size).float()


def judged(*pairs):
    units = [Cutter(BYTES, 64).cut(Sample(prompt, truth)) for prompt, truth in pairs]
    return judge_written(Next(), BYTES, units, 64, lambda: False)


def test_the_words_that_the_model_writes_are_compared_with_the_truth():
    assert judged(("a", "bcdef")) == {"written_right": 1.0, "written_words": 1.0}
    assert judged(("a", "bcdef"), ("1", "2 3 4"), ("!", "xyz")) == {"written_right": 1.0, "written_words": 1.0 + 3.0 + 3.0}


def test_a_request_to_stop_is_heard_while_the_model_writes():
    assert judge_written(Next(), BYTES, [Cutter(BYTES, 64).cut(Sample("a", "bcdef"))], 64, lambda: True) is None


def test_a_prompt_with_its_truth_behind_a_tab_is_continued_with_the_most_probable_text(tmp_path):
    writer = CompletionWriter(["a", "a\tbcd", "w\txyz!"], tmp_path / "samples.jsonl", 3, 0, print)
    texts = writer.write(Next(), Prompting(BYTES), 64, 1, lambda: False)
    writer.keep(texts, Progress(1, 2, 3, 4.0), "one")
    free, right, wrong = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert "truth" not in free
    assert (right["prompt"], right["text"], right["truth"], right["edit_accuracy"]) == ("a", "bcd", "bcd", 1.0)
    assert (wrong["text"], wrong["edit_accuracy"]) == ("xyz", 0.5)


def test_edit_accuracy_is_in_statistics_and_trackers_and_that_of_written_texts_at_the_end_of_a_stage(corpus, capsys):
    write_rows(corpus / "same.jsonl", [{"prompt": "?", "truth": "aaaa aaaa"}] * 60)
    text = train(capsys, "--dataset", "same.jsonl", "--lr", "0.05", "--dropout", 0, "--track", "csv", "--validation-interval", 20)
    columns = json.loads(Path("out_gpt/gpt2ish_model_validate_stats.json").read_text())["columns"]
    assert all(0 <= value <= 1 for value in columns["edit_accuracy"])
    assert [value is None for value in columns["written_accuracy"]] == [True] * (len(columns["step"]) - 1) + [False]
    assert "(by edit distance " in text
    assert "of texts that the model writes " in text
    assert "edit_accuracy" in open("out_gpt/gpt2ish_model_validate.csv", encoding="utf-8").readline()  # noqa: SIM115

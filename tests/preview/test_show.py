"""`--show-samples` and `--show-batch`: they show what training sees, exactly, and leave nothing behind."""
import json
import subprocess
import sys

import numpy as np
import pytest
from helpers import ENVIRONMENT, sentences, write_plan, write_rows

from lmplay.data.batcher import Batcher
from lmplay.data.continuation import Cutter, Piece
from lmplay.data.sentences import Cut
from lmplay.data.stage import StageData
from lmplay.plan.load import load_plan
from lmplay.tokenizer import load_tokenizer
from lmplay.train.__main__ import main

SMALL = ["--num-blocks", "1", "--embed-dim", "16", "--num-heads", "2", "--device", "cpu", "--training-plan", "plan.json"]
CHAT = [("system", "Be kind."), ("user", "hi\x1b[31m"), ("assistant", "hello\nyou"), ("user", "bye"), ("assistant", "so long")]
BYTES = load_tokenizer("bytes")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a plan of two stages over texts, some longer than a batch, and chats."""
    write_rows(tmp_path / "texts.jsonl", [{"title": f"T{i}", "text": sentences(1 + 3 * (i % 4))} for i in range(30)])
    write_rows(tmp_path / "chats.jsonl", [{"messages": [{"role": role, "content": f"{text} {i}"} for role, text in CHAT]} for i in range(20)])
    write_plan(tmp_path, {"$model": {"context_len": 48}, "$tokenizer": "bytes", "$defaults": {"batch_size": 6},
                          "first": {"dataset": ["texts.jsonl", "chats.jsonl"], "epochs": 1.5},
                          "second": {"dataset": "texts.jsonl", "tokens": 3000, "batch_size": 5, "context_len": 40, "shuffle": False}})
    monkeypatch.chdir(tmp_path)
    return tmp_path


def look(capsys, *arguments):
    """Give the exit code and what was printed, or on failure the complaint."""
    capsys.readouterr()
    code = main([*SMALL, *map(str, arguments)])
    printed = capsys.readouterr()
    return code, printed.err if code else printed.out


def look_json(capsys, *arguments):
    code, printed = look(capsys, *arguments, "--json")
    assert code == 0, printed
    return json.loads(printed)


def train_and_record(monkeypatch, *arguments):
    """Train, and give every batch that was made, as (source number, row, piece number, tokens) by piece."""
    batches = []
    original = Batcher.next

    def recorded(self, progress=0.0):
        batch = original(self, progress)
        if batch is not None:
            batches.append([(piece.sample.source, piece.sample.row, piece.number, piece.tokens.tolist()) for piece in batch.pieces])
        return batch

    with monkeypatch.context() as patch:
        patch.setattr(Batcher, "next", recorded)
        assert main([*SMALL, "--validation-interval", "0", *arguments]) == 0
    return batches


def shown(batch):
    numbers = {"texts.jsonl": 0, "chats.jsonl": 1}
    return [(numbers[piece["source"]], piece["row"], piece["piece"] - 1, piece["ids"]) for piece in batch["pieces"]]


@pytest.mark.parametrize("tokenizer", ["bytes", "train:300"])
def test_a_batch_that_is_shown_is_the_one_that_is_trained_on(folder, capsys, monkeypatch, tokenizer):
    new = ["--tokenizer", tokenizer, "--seed", "7"]
    before = [look_json(capsys, "--show-batch", which, *new) for which in ("1", "9", "second:2")]
    batches = train_and_record(monkeypatch, *new)
    code, complaint = look(capsys, "--show-batch", "first:1000000")
    assert code == 2
    n_first = int(complaint.split("has ")[1].split(" batches")[0])
    assert f"give a number from 1 to {n_first}" in complaint
    after = [look_json(capsys, "--show-batch", which) for which in ("1", "9", "second:2")]  # seed and tokenizer are the file's now
    assert before == after
    assert [shown(batch) for batch in after] == [batches[0], batches[8], batches[n_first + 1]]
    assert shown(look_json(capsys, "--show-batch", n_first)) == batches[n_first - 1]
    assert after[2]["batch_size"] == 5
    assert len(batches[n_first]) == 5
    assert f"has {len(batches) - n_first} batches" in look(capsys, "--show-batch", "second:999")[1]


def test_a_batch_is_counted(folder, capsys):
    batch = look_json(capsys, "--show-batch", "first:2")
    assert batch["tokens"] == sum(len(piece["ids"]) for piece in batch["pieces"])
    assert batch["learned_tokens"] == sum(piece["learned_tokens"] for piece in batch["pieces"])
    assert all(len(piece["ids"]) == piece["prompt_tokens"] + piece["truth_tokens"] for piece in batch["pieces"])
    code, text = look(capsys, "--show-batch", "first:2")
    assert code == 0
    head, _, *lines = text.splitlines()
    assert head.startswith(f"batch 2 of stage first: {len(lines)} of at most 6 pieces")
    for line, piece in zip(lines, batch["pieces"], strict=True):
        assert piece["place"] in line
        assert piece["text"][:20].replace("\n", "⏎").replace("\x1b", "␛") in line


def test_samples_are_shown_as_the_model_sees_them(folder, capsys):
    samples = look_json(capsys, "--show-samples", 4)
    plan = load_plan("plan.json")
    expected = []
    for stage in plan.stages:
        stream = StageData(stage, folder / "datasets", 0).open_samples()
        expected += [(stage.name, stream.next()) for _ in range(4)]
    assert len(samples) == 8
    for shown_sample, (stage, sample) in zip(samples, expected, strict=True):
        assert (shown_sample["stage"], shown_sample["row"]) == (stage, sample.row)
        assert str(sample.row + 1) in shown_sample["place"]
        pieces = shown_sample["pieces"]
        for piece in pieces:
            assert "".join(span["text"] for span in piece["spans"]) == BYTES.decode(piece["ids"])
            assert sum(len(span["text"].encode()) + span["end"] for span in piece["spans"] if span["learned"]) == piece["learned_tokens"]
            assert piece["learned_tokens"] <= piece["truth_tokens"] == len(piece["ids"]) - piece["prompt_tokens"]
            assert piece["last"] or piece["ends_at"] != "end"
        assert pieces[-1]["spans"][-1] == {"text": "", "learned": True, "end": True}
        assert [piece["last"] for piece in pieces] == [False] * (len(pieces) - 1) + [True]
        learned = "".join(span["text"] for piece in pieces for span in piece["spans"] if span["learned"])
        if not sample.turns:
            assert learned == sample.truth
        else:
            assert "hello\nyou" in learned
            assert "so long" in learned


def test_what_is_given_inside_a_chat_is_shown_as_given(folder, capsys, monkeypatch):
    def cut(self, sample):
        tokens = np.array([*b"Q\n\nA", BYTES.end_id, *b"QQA", BYTES.end_id])
        return [Piece(sample, tokens, 3, "AA", Cut.END, 0, True, np.array([1, 1, 0, 0, 1, 1], dtype=bool),
                      starts=np.array([0, 1, 1, 2, 3, 4, 4]), cuttable=np.ones(7, dtype=bool))]

    monkeypatch.setattr(Cutter, "cut", cut)
    piece = look_json(capsys, "--show-samples", 1)[0]["pieces"][0]
    assert [(span["text"], span["learned"], span["end"]) for span in piece["spans"]] == [
        ("Q\n\n", False, False), ("A", True, False), ("", True, True), ("QQ", False, False), ("A", True, False), ("", True, True)]
    assert (piece["prompt_tokens"], piece["truth_tokens"], piece["learned_tokens"]) == (3, 6, 4)
    text = look(capsys, "--show-samples", 1)[1]
    assert "    given │ Q⏎\n          │ ⏎\n  learned │ A⏹\n    given │ QQ\n  learned │ A⏹\n" in text


@pytest.mark.parametrize(("terminal", "no_color", "grey"), [(True, "", True), (True, "1", False), (False, "", False)])
def test_prompts_are_greyed_on_a_terminal(folder, capsys, monkeypatch, terminal, no_color, grey):
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    capsys.readouterr()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal, raising=False)
    code, text = look(capsys, "--show-samples", 2)
    assert code == 0
    assert ("\033[90m" in text) is grey
    assert "\x1b[31m" not in text  # what a row says does not colour the terminal
    grey_lines = [line for line in text.splitlines() if "\033[90m" in line]
    assert all(" learned │" not in line for line in grey_lines)
    assert "⏹" in text


def test_looking_leaves_nothing_behind(folder, capsys):
    for arguments in (["--show-samples", 2], ["--show-batch", "3"]):
        assert look(capsys, *arguments)[0] == 0
    out = folder / "out_gpt"
    assert not out.exists() or {path.name for path in out.iterdir()} <= {"datasets"}


def test_a_reader_who_has_seen_enough_is_no_error(folder):
    command = [sys.executable, "-m", "lmplay.train", *SMALL, "--show-samples", "30"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as process:
        process.stdout.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0


def test_data_with_another_name_is_what_was_trained_on(folder, capsys, monkeypatch):
    trained = train_and_record(monkeypatch)
    (folder / "texts.jsonl").rename(folder / "prose.jsonl")
    (folder / "plan.json").write_text((folder / "plan.json").read_text().replace("texts.jsonl", "prose.jsonl"))
    batch = look_json(capsys, "--show-batch", 3)
    assert [piece["ids"] for piece in batch["pieces"]] == [tokens for *_, tokens in trained[2]]


def test_what_is_shown_is_of_the_newest_whole_state(folder, capsys, monkeypatch):
    trained = train_and_record(monkeypatch, "--seed", "5")
    (folder / "out_gpt" / "gpt2ish_model.lmp").write_bytes(b"damaged")
    assert shown(look_json(capsys, "--show-batch", 3)) == trained[2]
    assert (folder / "out_gpt" / "gpt2ish_model.lmp").read_bytes() == b"damaged"
    assert look(capsys, "--check-plan")[0] == 0


def test_what_is_shown_is_of_the_state_that_is_resumed(folder, capsys, monkeypatch):
    other = ["--model", "other.lmp", "--resume", "out_gpt/gpt2ish_model.lmp"]
    trained = train_and_record(monkeypatch, "--seed", "5")
    assert shown(look_json(capsys, "--show-batch", 3, *other)) == trained[2]
    assert shown(look_json(capsys, "--show-batch", 3, *other[:2])) != trained[2]  # a new model's
    code, complaint = look(capsys, "--show-batch", 3, "--resume", "nowhere.lmp")
    assert code == 2
    assert "--resume nowhere.lmp: there is no file" in complaint


def test_data_that_has_changed_is_not_what_was_trained_on(folder, capsys, monkeypatch):
    train_and_record(monkeypatch)
    rows = [json.loads(line) for line in (folder / "chats.jsonl").read_text().splitlines()]
    write_rows(folder / "chats.jsonl", rows[::-1])
    code, complaint = look(capsys, "--show-batch", 1)
    assert code == 2
    assert "stage 'first': the data of chats.jsonl (chats.jsonl has changed; 20 rows before, 20 now) has changed since the checkpoint" in complaint
    capsys.readouterr()
    assert main([*SMALL, "--show-batch", "1", "--accept-changed-data", "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["batch"] == 1
    assert "accepted: stage 'first': the data of chats.jsonl" in printed.err
    assert look(capsys, "--show-batch", "second:1")[0] == 0  # which does not read it
    code, complaint = look(capsys, "--show-batch", "second:1", "--seed", 3)
    assert code == 2
    assert "--seed 3 is given" in complaint


@pytest.mark.parametrize(("arguments", "words"), [
    (["--show-batch", "secnd:1"], ["no stage 'secnd'", "Did you mean 'second'?"]), (["--show-batch", "0"], ["N from 1"]),
    (["--show-batch", "1", "--show-samples", "1"], ["--show-samples and --show-batch together"]),
    (["--describe", "--show-samples", "1"], ["--describe and --show-samples together"]), (["--json"], ["--json: is for"])])
def test_what_cannot_be_shown_is_refused(folder, capsys, arguments, words):
    code, complaint = look(capsys, *arguments)
    assert code == 2
    assert len(complaint.splitlines()) == 1
    assert all(word in complaint for word in words)

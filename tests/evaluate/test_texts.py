"""`lmp_eval --set`: perplexity and bits per byte against transformers and a plain loop, exports, several models, intervals."""
from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from exported import SIZES, logits, model_file, stirred
from helpers import sentences, write_rows
from hypothesis import given
from hypothesis import strategies as st

from lmplay.checkpoints.format import write
from lmplay.evaluate.command import run
from lmplay.export.command import run as export
from lmplay.tokenizer import load_tokenizer, train_tokenizer
from lmplay.writing.scoring import sliding

TEXTS = [sentences(n, word) for n, word in ((1, "cat"), (7, "dog"), (2, "größe"), (12, "日本"), (3, "owl"), (1, "ant"))]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    write_rows(tmp_path / "rows.jsonl", [{"text": text} for text in TEXTS])
    return tmp_path


def evaluate(capsys, *arguments) -> dict:
    assert run([*map(str, arguments), "--json", "-", "--device", "cpu"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def figures(found: dict, number: int = 0) -> dict[str, float]:
    return {name: one["value"] for name, one in found["evaluations"][number]["figures"].items()}


def by_a_plain_loop(model, texts, context, stride) -> tuple[float, int]:
    """Predict each token by itself, in float64, from what its window has before it."""
    model = model.double()
    loss, count = 0.0, 0
    for text in texts:
        tokens = [256, *text.encode(), 256]
        for place in range(1, len(tokens)):
            moves = max(0, math.ceil((place - context) / stride))
            begin = moves * stride
            log_p = logits(model, torch.tensor([tokens[begin:place]]))[0, -1].log_softmax(0)
            loss -= float(log_p[tokens[place]])
            count += 1
    return loss, count


@pytest.mark.parametrize(("context", "stride"), [(32, 16), (32, 32), (20, 3), (7, 1)])
def test_a_sliding_window_scores_as_a_plain_loop_in_float64(capsys, context, stride):
    model_file(Path("m.lmp"), "gpt2ish")
    found = evaluate(capsys, "./m.lmp", "--set", "rows.jsonl", "--context", context, "--stride", stride)
    loss, count = by_a_plain_loop(stirred("gpt2ish", 257), TEXTS, context, stride)
    n_bytes = sum(len(text.encode()) for text in TEXTS)
    said = found["evaluations"][0]
    assert (said["documents"], said["tokens"], said["bytes"]) == (len(TEXTS), count, n_bytes)
    assert said["settings"]["context"] == context
    assert figures(found) == pytest.approx({"loss": loss / count, "perplexity": math.exp(loss / count), "bits_per_byte": loss / math.log(2) / n_bytes}, 1e-5)


def test_the_figure_of_an_export_is_that_of_the_file_and_the_loss_of_transformers(capsys):
    transformers = pytest.importorskip("transformers")
    tokenizer = train_tokenizer(iter([sentences(30)] * 3), 300)
    model_file(Path("m.lmp"), "llamaish", tokenizer, context_len=512)
    assert export(["./m.lmp", "out"]) == 0
    capsys.readouterr()
    found = evaluate(capsys, "./m.lmp", "out", "--set", "wiki=rows.jsonl")
    assert figures(found, 1) == pytest.approx(figures(found), 1e-5)
    model, theirs = transformers.AutoModelForCausalLM.from_pretrained("out"), transformers.AutoTokenizer.from_pretrained("out")
    loss = count = 0.0
    for text in TEXTS:  # none is longer than the context
        ids = theirs(theirs.eos_token + text + theirs.eos_token, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            loss += float(model(ids, labels=ids).loss) * (ids.shape[1] - 1)
        count += ids.shape[1] - 1
    assert figures(found)["loss"] == pytest.approx(loss / count, 1e-5)
    assert found["comparisons"][0]["difference"] == pytest.approx(0, abs=1e-5)


@pytest.fixture
def foreign(capsys) -> Path:
    """A folder of transformers that lmplay has not written, with a token for the beginning."""
    tokenizer = train_tokenizer(iter([sentences(30)] * 3), 300)
    model_file(Path("m.lmp"), "llamaish", tokenizer, context_len=512)
    assert export(["./m.lmp", "theirs"]) == 0
    folder = Path("theirs")
    (folder / "lmplay.json").unlink()
    content = json.loads((folder / "tokenizer.json").read_text())
    begin = next(name for name, token in content["model"]["vocab"].items() if token == 5)
    content["added_tokens"].append({**content["added_tokens"][0], "id": 5, "content": begin})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    config = folder / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "bos_token": begin}))
    capsys.readouterr()
    return folder


def test_a_text_begins_after_the_begin_token_of_a_foreign_model_and_after_the_end_token_of_ours(capsys, foreign):
    transformers = pytest.importorskip("transformers")
    write_rows(Path("titled.jsonl"), [{"title": "Cats", "text": "They sleep."}])
    found = evaluate(capsys, "theirs", "--set", "rows.jsonl", "--set", "titled.jsonl")
    model, theirs = transformers.AutoModelForCausalLM.from_pretrained("theirs"), transformers.AutoTokenizer.from_pretrained("theirs")
    assert theirs.bos_token_id == 5

    def loss_of(given: list[int], texts: list[list[int]]) -> float:
        loss = count = 0.0
        for text in texts:
            ids = [*given, *text, theirs.eos_token_id]
            with torch.no_grad():
                every = model(torch.tensor([ids])).logits[0].log_softmax(-1)
            loss -= sum(float(every[place - 1, ids[place]]) for place in range(len(given), len(ids)))
            count += len(ids) - len(given)
        return loss / count

    def ids(text: str) -> list[int]:
        return theirs(text, add_special_tokens=False)["input_ids"]

    texts = [ids(text) for text in TEXTS]
    assert figures(found)["loss"] == pytest.approx(loss_of([5], texts), 1e-5)
    assert figures(found, 1)["loss"] == pytest.approx(loss_of([5, *ids("Cats\n\n")], [ids("They sleep.")]), 1e-5)
    assert found["evaluations"][0]["tokens"] == sum(map(len, texts)) + len(texts)
    assert figures(evaluate(capsys, "./m.lmp", "--set", "rows.jsonl"))["loss"] == pytest.approx(loss_of([theirs.eos_token_id], texts), 1e-5)


def test_titles_prompts_and_questions_of_chats_are_given_and_not_counted(capsys):
    model_file(Path("m.lmp"), "gpt2ish")
    write_rows(Path("titled.jsonl"), [{"title": "Cats", "text": "They sleep."}])
    write_rows(Path("chats.jsonl"), [{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yes"}]}])
    found = evaluate(capsys, "./m.lmp", "--set", "titled.jsonl", "--set", "chats.jsonl")
    assert [(one["tokens"], one["bytes"]) for one in found["evaluations"]] == [(len("They sleep.") + 1, 11), (len("Yes") + 1, 3)]
    model, tokens = stirred("gpt2ish", 257), [*b"Cats\n\nThey sleep.", 256]
    log_p = logits(model, torch.tensor([tokens])).log_softmax(-1)[0]
    expected = -sum(float(log_p[place - 1, tokens[place]]) for place in range(6, len(tokens))) / 12
    assert figures(found)["loss"] == pytest.approx(expected, 1e-5)


def test_models_with_other_tokenizers_are_compared_by_bits_per_byte(capsys):
    model_file(Path("a.lmp"), "gpt2ish")
    model_file(Path("b.lmp"), "gpt2ish", train_tokenizer(iter([sentences(30)] * 3), 300))
    model_file(Path("c.lmp"), "llamaish")
    found = evaluate(capsys, "./a.lmp", "./b.lmp", "./c.lmp", "--set", "rows.jsonl")
    assert [(one["model"], one["other"], one["unit"]) for one in found["comparisons"]] == [
        ("a", "b", "bits per byte"), ("a", "c", "nats per token"), ("b", "c", "bits per byte")]
    a, b = figures(found)["bits_per_byte"], figures(found, 1)["bits_per_byte"]
    assert found["comparisons"][0]["difference"] == pytest.approx(a - b)


def test_models_are_compared_on_the_texts_that_both_tokenizers_can_write(capsys, tmp_path):
    import tokenizers

    fast = tokenizers.Tokenizer(tokenizers.models.BPE({letter: number for number, letter in enumerate("abcdefgh ")}, []))
    fast.save(str(tmp_path / "letters.json"))
    model_file(Path("a.lmp"), "gpt2ish")
    model_file(Path("b.lmp"), "gpt2ish", load_tokenizer("letters.json"))
    texts = ["bad cafe", "日本", "a faded bed", "ÖÜ", "a cab"]
    write_rows(Path("mixed.jsonl"), [{"text": text} for text in texts])
    write_rows(Path("latin.jsonl"), [{"text": text} for text in texts[::2]])
    found = evaluate(capsys, "./a.lmp", "./b.lmp", "--set", "mixed.jsonl")
    assert [(one["documents"], one["left_out"]) for one in found["evaluations"]] == [(5, 0), (3, 2)]
    [one], [alone] = found["comparisons"], evaluate(capsys, "./a.lmp", "./b.lmp", "--set", "latin.jsonl")["comparisons"]
    assert one["documents"] == 3
    assert [one[key] for key in ("difference", "low", "high")] == pytest.approx([alone[key] for key in ("difference", "low", "high")], abs=1e-5)
    assert run(["./a.lmp", "./b.lmp", "--set", "mixed.jsonl", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "mixed (texts): 5 (a), 3 (b) documents, left out as no token can write them: 2 (b), " in said
    assert "3 documents of mixed" in said


def test_a_table_has_a_line_for_each_model_and_a_verdict_for_each_pair(capsys):
    for name, experiment in (("a", "gpt2ish"), ("b", "llamaish")):
        model_file(Path(f"{name}.lmp"), experiment)
    assert run(["./a.lmp", "./b.lmp", "--set", "rows.jsonl", "--json", "all.json", "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "rows (texts): 6 documents" in said
    assert "perplexity" in said
    found = json.loads(Path("all.json").read_text())
    one = found["comparisons"][0]
    assert one["verdict"] in said.splitlines()
    half = (one["high"] - one["low"]) / 2
    assert f"± {half:.3f} nats per token" in one["verdict"]
    assert ("is better than" in one["verdict"]) == (one["low"] > 0 or one["high"] < 0)
    better = "a" if one["difference"] < 0 else "b"
    assert not one["more_than_noise"] or one["verdict"].startswith(better)


def test_builtin_texts_and_a_part_of_a_set(capsys):
    model_file(Path("m.lmp"), "gpt2ish")
    found = evaluate(capsys, "./m.lmp", "--set", "builtin:tales?seed=3", "--set", "rows.jsonl", "--documents", 3)
    assert [one["documents"] for one in found["evaluations"]] == [3, 3]
    assert found["evaluations"][1]["bytes"] == sum(len(text.encode()) for text in TEXTS[:3])
    again = evaluate(capsys, "./m.lmp", "--set", "builtin:tales?seed=3", "--documents", 3)
    assert figures(again) == figures(found)


def test_the_size_of_a_batch_changes_nothing(capsys):
    model_file(Path("m.lmp"), "llamaish")
    one, other = (evaluate(capsys, "./m.lmp", "--set", "rows.jsonl", "--context", 16, "--batch-size", size) for size in (1, 64))
    assert figures(one) == pytest.approx(figures(other), 1e-6)


@given(st.integers(0, 60), st.integers(1, 20), st.data())
def test_a_window_scores_each_token_but_the_first_once_with_enough_before_it(length, context, data):
    stride = data.draw(st.integers(1, context))
    tokens, place = np.arange(length, dtype=np.int32), 1
    for span in sliding(tokens, context, stride):
        assert len(span.tokens) <= context + 1
        assert 1 <= span.first < len(span.tokens)
        for number in range(span.first, len(span.tokens)):
            assert span.tokens[number] == place
            assert number >= min(place, context - stride + 1)
            place += 1
    assert place == max(length, 1)


def refused(capsys, *arguments) -> str:
    assert run([str(argument) for argument in arguments]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lmp_eval: ")]
    assert len(said) == 1, said
    return said[0]


def test_bad_input_is_one_clear_line(capsys):
    path = model_file(Path("m.lmp"), "gpt2ish")
    write_rows(Path("numbers.jsonl"), [{"n": 1}])
    write_rows(Path("blank.jsonl"), [{"text": " "}, {"text": None}])
    Path("empty").mkdir()
    assert "no text column found" in refused(capsys, "./m.lmp", "--set", "numbers.jsonl")
    assert "no row gives a sample" in refused(capsys, "./m.lmp", "--set", "blank.jsonl")
    assert "nope.jsonl" in refused(capsys, "./m.lmp", "--set", "nope.jsonl")
    assert "has no config.json" in refused(capsys, "empty", "--set", "rows.jsonl")
    assert "more than the 32 tokens that m reads" in refused(capsys, "./m.lmp", "--set", "rows.jsonl", "--context", SIZES["context_len"] + 1)
    assert "--stride 9: is more than --context 8" in refused(capsys, "./m.lmp", "--set", "rows.jsonl", "--context", 8, "--stride", 9)
    assert "is endless; give the number of documents to read with --documents" in refused(capsys, "./m.lmp", "--set", "builtin:tales")
    assert "named twice" in refused(capsys, "./m.lmp", "m.lmp", "--set", "rows.jsonl")
    assert "there is another set named rows" in refused(capsys, "./m.lmp", "--set", "rows.jsonl", "--set", "./rows.jsonl")
    assert "there is nothing to judge by" in refused(capsys, "./m.lmp")
    assert "give one MODEL" in refused(capsys, "--set", "rows.jsonl")
    assert "there is no such file" in refused(capsys, "other", "--set", "rows.jsonl")
    path.write_bytes(path.read_bytes()[:-400])
    assert "damaged" in refused(capsys, "./m.lmp", "--set", "rows.jsonl")


def test_a_model_whose_loss_is_not_a_number_has_no_figures(capsys):
    path = model_file(Path("m.lmp"), "gpt2ish")
    content = torch.load(path, weights_only=True)
    content["model"]["state"]["head.weight"].fill_(float("nan"))
    write(Path("broken.lmp"), content)
    model_file(Path("m.lmp"), "gpt2ish")
    found = evaluate(capsys, "./broken.lmp", "./m.lmp", "--set", "rows.jsonl")
    assert {*figures(found).values()} == {None}
    assert found["comparisons"] == []
    write_rows(Path("q.jsonl"), [{"question": "a", "choices": ["b", "c"], "answer": 0}])
    assert {*figures(evaluate(capsys, "./broken.lmp", "--choices", "q.jsonl")).values()} == {None}


def test_folders_that_are_no_whole_model_are_one_clear_line(capsys):
    model_file(Path("m.lmp"), "llamaish", train_tokenizer(iter([sentences(30)] * 3), 300))
    assert export(["./m.lmp", "out"]) == 0
    capsys.readouterr()
    config, weights = Path("out/config.json"), Path("out/model.safetensors")
    weights.rename("w")
    assert "out: has no weights" in refused(capsys, "out", "--set", "rows.jsonl")
    Path("w").rename(weights)
    said = config.read_text()
    config.write_text(json.dumps({**json.loads(said), "auto_map": {"AutoModel": "x.Y"}}))
    assert "code of its own" in refused(capsys, "out", "--set", "rows.jsonl")
    config.write_text("{")
    assert "MODEL out: its config.json" in refused(capsys, "out", "--set", "rows.jsonl")
    config.write_text(said)
    whole = weights.read_bytes()
    weights.write_bytes(whole[:len(whole) // 2])
    assert "MODEL out: cannot be read (SafetensorError" in (half := refused(capsys, "out", "--set", "rows.jsonl"))
    assert "--exp" not in half  # which lmp_eval does not have
    weights.write_bytes(whole)
    Path("out/tokenizer.json").unlink()
    assert "MODEL out: its tokenizer cannot be read" in refused(capsys, "out", "--set", "rows.jsonl")


def test_a_file_that_cannot_be_written_is_refused_before_anything_is_judged(capsys):
    model_file(Path("m.lmp"), "gpt2ish")
    assert "folder of --json rows.jsonl: " in refused(capsys, "./m.lmp", "--set", "rows.jsonl", "--json", "rows.jsonl/all.json")
    assert "perplexity" not in capsys.readouterr().out


def test_a_run_in_the_usual_folder_wins_over_a_folder_of_its_name(capsys, monkeypatch, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    model_file(tmp_path / "elsewhere" / "mine.lmp", "gpt2ish")
    (tmp_path / "mine").mkdir()
    monkeypatch.setenv("LMP_DATASETS", str(tmp_path / "elsewhere"))
    assert figures(evaluate(capsys, "mine", "--set", "rows.jsonl"))["loss"] > 0

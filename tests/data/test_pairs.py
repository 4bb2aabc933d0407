"""Rows of preference pairs: what is prompt and what is answer, as texts and as chats, and what is skipped."""
import pytest
from helpers import write_rows
from hypothesis import given
from hypothesis import strategies as st
from templates import CHATML
from texts import BPE, BYTES

from lmplay.data.continuation import Cutter
from lmplay.data.roles import needed_columns
from lmplay.data.samples import BREAK, Sample, choose_reading
from lmplay.data.sentences import Cut
from lmplay.data.stage import StageData
from lmplay.data.turns import Skipped, Turn
from lmplay.errors import UserError
from lmplay.plan.schema import Stage


def say(role, content):
    return {"role": role, "content": content}


def read(row, **options):
    return choose_reading("rows", row, None, pairs=True, **options)(row)


S, Q, A, B = say("system", "s"), say("user", "q?"), say("assistant", "good"), say("assistant", "bad")


def test_texts_with_a_prompt_are_read_as_questions_are():
    sample = read({"prompt": "q", "chosen": "good", "rejected": "bad"})
    assert (sample.prompt, sample.truth, sample.rejected) == ("q" + BREAK, "good", Sample("q" + BREAK, "bad"))
    assert read({"question": "q", "system": "Be brief.", "chosen": "good", "rejected": "bad"}).prompt == "Be brief." + BREAK + "q" + BREAK


@pytest.mark.parametrize(("one", "other", "expected"), [
    ("Human: hi\n\nAssistant: I am", "Human: hi\n\nAssistant: It is", ("Human: hi\n\nAssistant:", " I am", " It is")),
    ("a b\ncd", "a b\nce", ("a b\n", "cd", "ce")), ("same start", "same", ("", "same start", "same")), ("x", "y", ("", "x", "y")),
    ("ab cd ef", "ab cd", ("ab", " cd ef", " cd"))])
def test_without_a_prompt_it_is_the_whole_words_that_both_begin_with(one, other, expected):
    sample = read({"chosen": one, "rejected": other})
    assert (sample.prompt, sample.truth, sample.rejected.truth) == expected


@given(st.text("ab \n", min_size=1, max_size=9), st.text("ab \n", min_size=1, max_size=9))
def test_an_implicit_prompt_loses_nothing(one, other):
    try:
        sample = read({"chosen": one, "rejected": other})
    except Skipped:
        assert one == other or not one.strip() or not other.strip() or one[:3].isspace() or other.startswith(one.rstrip()) or one.startswith(other.rstrip())
        return
    assert sample.prompt == sample.rejected.prompt
    assert (sample.prompt + sample.truth, sample.prompt + sample.rejected.truth) == (one, other)


@pytest.mark.parametrize("row", [
    {"prompt": [Q], "chosen": [A], "rejected": [B]}, {"prompt": None, "chosen": [Q, A], "rejected": [Q, B]}, {"chosen": [Q, A], "rejected": [Q, B]},
    {"prompt": "q?", "chosen": [Q, A], "rejected": [Q, B]}, {"prompt": "q?", "chosen": [A], "rejected": [B]},
    {"prompt": [Q], "chosen": "good", "rejected": "bad"}, {"prompt": [Q], "chosen": [Q, A], "rejected": [Q, B]}, {"chosen": [Q, A, Q], "rejected": [Q, B]}])
def test_chats_are_the_same_however_the_prompt_is_given(row):
    sample = read(row)
    question = Turn("user", "q?", False)
    assert (sample.turns, sample.rejected.turns) == ((question, Turn("assistant", "good", True)), (question, Turn("assistant", "bad", True)))
    assert (sample.prompt, sample.truth, sample.rejected.truth) == ("user: q?\n\nassistant: ", "good", "bad")


def test_chats_may_differ_behind_their_first_answers():
    sample = read({"chosen": [Q, A, say("user", "and?"), A], "rejected": [Q, B, say("user", "why?"), B]})
    assert [(turn.content, turn.learned) for turn in sample.rejected.turns] == [("q?", False), ("bad", True), ("why?", False), ("bad", True)]


def test_answers_that_both_chats_share_are_given_not_learned():
    start = [say("system", "s"), Q, say("assistant", "first"), say("user", "and?")]
    sample = read({"chosen": [*start, A], "rejected": [*start, B]})
    assert [turn.learned for turn in sample.turns] == [False, False, False, False, True]
    chosen, rejected = Cutter(BYTES, 200).cut_pair(sample)
    assert (chosen.truth, rejected.truth) == ("good", "bad")
    whole, = Cutter(BYTES, 200).cut(choose_reading("rows", ["messages"], None)({"messages": [*start, A]}))
    assert chosen.tokens.tolist() == whole.tokens.tolist()  # the same text, of which less is learned


def test_a_system_text_comes_first_unless_the_chat_has_one():
    assert read({"system": "s", "prompt": "q?", "chosen": [A], "rejected": [B]}).turns[0] == Turn("system", "s", False)
    own = read({"system": "s", "prompt": [say("system", "own"), Q], "chosen": [A], "rejected": [B]})
    assert [turn.content for turn in own.turns] == ["own", "q?", "good"]


@pytest.mark.parametrize("row", [
    {"system": "s", "prompt": [Q], "chosen": [Q, A], "rejected": [Q, B]}, {"system": "s", "prompt": [Q], "chosen": [A], "rejected": [B]},
    {"prompt": [Q], "chosen": [S, Q, A], "rejected": [S, Q, B]}, {"prompt": [S, Q], "chosen": [Q, A], "rejected": [Q, B]},
    {"prompt": [S, Q], "chosen": [S, Q, A], "rejected": [S, Q, B]}, {"system": "s", "prompt": "q?", "chosen": [Q, A], "rejected": [Q, B]},
    {"system": "other", "prompt": [Q], "chosen": [S, Q, A], "rejected": [S, Q, B]}, {"prompt": [Q], "chosen": [S, A], "rejected": [S, B]},
    {"system": "other", "prompt": [S], "chosen": [Q, A], "rejected": [Q, B]}])
def test_a_prompt_that_the_chats_repeat_is_there_once_whoever_has_the_system_message(row):
    sample = read(row)
    assert [(turn.role, turn.content) for turn in sample.turns] == [("system", "s"), ("user", "q?"), ("assistant", "good")]
    assert [(turn.role, turn.content) for turn in sample.rejected.turns] == [("system", "s"), ("user", "q?"), ("assistant", "bad")]


def test_a_system_text_is_a_paragraph_before_the_words_that_both_texts_begin_with():
    sample = read({"system": "You are kind.", "chosen": "Human: hi a", "rejected": "Human: hi b"})
    assert (sample.prompt, sample.truth, sample.rejected.truth) == ("You are kind.\n\nHuman: hi", " a", " b")


@pytest.mark.parametrize(("row", "reason"), [
    ({"prompt": "q", "chosen": "same", "rejected": "same"}, "equal answers"), ({"chosen": [Q, A], "rejected": [Q, A, Q]}, "equal answers"),
    ({"prompt": "q", "chosen": "good", "rejected": None}, "null"), ({"prompt": "q", "chosen": " ", "rejected": "bad"}, "empty"),
    ({"prompt": "", "chosen": "good", "rejected": "bad"}, "empty"), ({"chosen": [Q], "rejected": [Q, B]}, "no answer"),
    ({"prompt": 3, "chosen": "good", "rejected": "bad"}, "not text"), ({"chosen": [Q, A], "rejected": [say("user", "other?"), B]}, "different prompts"),
    ({"chosen": [Q, A, Q, A], "rejected": [Q, A, say("user", "other?"), B]}, "different prompts"),
    ({"chosen": [S, Q, A], "rejected": [Q, B]}, "different prompts"),
    ({"chosen": [say("judge", "x")], "rejected": [A]}, "unknown role")])
def test_what_is_no_pair_is_skipped_with_a_reason(row, reason):
    with pytest.raises(Skipped, match=f"^{reason}$"):
        read(row)


def test_a_row_that_lacks_an_answer_is_skipped_by_its_name():
    reading = choose_reading("rows", ["prompt", "chosen", "rejected"], None, pairs=True)
    with pytest.raises(Skipped, match="without 'rejected'"):
        reading({"prompt": "q", "chosen": "good"})


@pytest.mark.parametrize(("columns", "roles", "pairs", "fault"), [
    (["text"], None, True, "no column 'chosen' and no column 'rejected' .its columns: text.*choose another objective"),
    (["prompt", "chosen"], None, True, "no column 'rejected'"),
    (["prompt", "chosen", "rejected"], None, False, 'look like preference pairs; to learn from both answers, say "objective": "dpo"'),
    (["a", "b"], {"prompt": "a", "truth": "b"}, True, "columns.*names prompt and truth, and the objective of the stage learns from preference pairs"),
    (["a", "b"], {"chosen": "a", "rejected": "b"}, False, "pairs are for objectives such as dpo")])
def test_an_objective_and_data_that_do_not_fit_are_refused(columns, roles, pairs, fault):
    with pytest.raises(UserError, match=fault):
        choose_reading("rows", columns, roles, pairs=pairs)


def test_columns_may_have_other_names():
    reading = choose_reading("rows", ["ask", "win", "lose"], {"prompt": "ask", "chosen": "win", "rejected": "lose"}, pairs=True)
    assert reading({"ask": "q", "win": "good", "lose": "bad"}).rejected.truth == "bad"
    assert str(reading.form({"ask": "q", "win": "good", "lose": "bad"})) == "'ask' → 'win' over 'lose'"
    assert needed_columns(["messages", "prompt", "chosen", "rejected", "score"], None) == ["messages", "prompt", "chosen", "rejected"]


def test_how_a_source_begins_is_told_for_the_prompts_of_a_model(tmp_path):
    def form(rows, **source):
        path = write_rows(tmp_path / "rows.jsonl", rows)
        stage = Stage.model_validate({"name": "s", "dataset": {"path": str(path), **source}, "validation": 0})
        return StageData(stage, tmp_path, 0, pairs=True).forms()[0]["form"]

    assert form([{"prompt": "q", "chosen": "a", "rejected": "b"}]) == "instruction"
    assert form([{"chosen": "a", "rejected": "b"}]) == "text"
    assert form([{"prompt": "q", "chosen": [Q, A], "rejected": [Q, B]}], chat="plain") == "chat"


def test_both_answers_follow_the_same_prompt_and_fit_in_one_piece():
    prompt, long = "word " * 9, "Sentence. " * 20
    for one, other in (("short", long), (long, "short"), (long, long + "!")):
        chosen, rejected = Cutter(BYTES, 64).cut_pair(Sample(prompt, one, rejected=Sample(prompt, other)))
        assert len(chosen.tokens) <= 64 >= len(rejected.tokens)
        assert chosen.tokens[:chosen.n_prompt].tolist() == rejected.tokens[:rejected.n_prompt].tolist()
        assert (chosen.prompt_lost > 0, chosen.preferred, rejected.preferred) == (True, True, False)
        assert (chosen.cut is Cut.END, rejected.cut is Cut.END) == (one == "short", other == "short")
        assert one.startswith(chosen.truth)
        assert other.startswith(rejected.truth)
        assert [(piece.number, piece.last) for piece in (chosen, rejected)] == [(0, False), (1, True)]
    assert all(piece.cut is Cut.END and not piece.prompt_lost for piece in Cutter(BYTES, 64).cut_pair(Sample("q", "a", rejected=Sample("q", "b"))))


def test_a_template_writes_both_chats():
    import json

    spec = {**BPE.spec, "chat_template": CHATML}
    tokenizer = type(BPE)(json.loads(json.dumps(spec)))
    chosen, rejected = Cutter(tokenizer, 300).cut_pair(read({"prompt": [Q], "chosen": [A], "rejected": [B]}))
    assert tokenizer.decode(chosen.tokens.tolist()).count("<|im_start|>") == 3
    assert tokenizer.decode(chosen.tokens.tolist()) == tokenizer.decode(rejected.tokens.tolist()).replace("bad", "good")

"""Conversations: the model reads them as it read chats in training, and what no longer fits is left out from the front."""
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from templates import FORMATS

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Turn, choose_reading
from lmplay.errors import UserError
from lmplay.tokenizer import load_tokenizer
from lmplay.writing.conversation import Conversation, for_conversation
from lmplay.writing.prompting import Prompting

SAYINGS = st.text("ab .\né🎉<|im_end|>", min_size=1, max_size=12).filter(str.strip)


def prompting(template=None):
    tokenizer = load_tokenizer("bytes")
    tokenizer.chat_template = template
    return Prompting(tokenizer, "chat")


@settings(max_examples=40, deadline=None)
@given(said=st.lists(SAYINGS, min_size=2, max_size=7).map(lambda said: said[:len(said) // 2 * 2]), template=st.sampled_from([None, FORMATS["chatml"].template]),
       system=st.sampled_from(["", "Be kind."]))
def test_an_answer_follows_the_tokens_that_it_followed_in_training(said, template, system):
    how = prompting(template)
    messages = [{"role": role, "content": text} for role, text in zip(["user", "assistant"] * len(said), said, strict=False)]
    row = {"messages": [{"role": "system", "content": system}] * bool(system) + messages}
    [piece] = Cutter(how.tokenizer, 4096).cut(choose_reading("s", row, None)(row))
    talk = Conversation(how, 4096, 16, system, [Turn(message["role"], message["content"], message["role"] == "assistant") for message in messages[:-2]])
    ids, left_out = talk.ask(said[-2])
    last = how.tokenizer.encode(said[-1]).ids.tolist()
    assert left_out == 0
    assert piece.tokens[:len(ids) + len(last)].tolist() == ids + last


@settings(max_examples=40, deadline=None)
@given(lengths=st.lists(st.integers(1, 60), min_size=1, max_size=9).filter(lambda lengths: len(lengths) % 2), context=st.integers(40, 300))
def test_the_oldest_is_left_out_and_the_rest_fits(lengths, context):
    how = prompting()
    talk = Conversation(how, context, 32, "s", [Turn(["user", "assistant"][i % 2], "x" * n, bool(i % 2)) for i, n in enumerate(lengths[:-1])])
    ids, left_out = talk.ask("y" * lengths[-1])
    assert left_out % 2 == 0
    assert ids == how.turn_ids([Turn("system", "s", False), *talk.said[left_out:]])
    fits = context - min(32, context // 4)
    assert len(ids) <= fits or left_out == len(lengths) - 1
    assert not left_out or len(how.turn_ids([Turn("system", "s", False), *talk.said[left_out - 2:]])) > fits
    assert len(talk.messages()) == len(lengths) + 1


def test_a_question_that_cannot_be_written_is_not_kept():
    talk = Conversation(prompting("{{ raise_exception('no') }}"), 100, 9)
    with pytest.raises(UserError):
        talk.ask("Why?")
    assert talk.said == []


@pytest.mark.parametrize(("forms", "form", "words"), [
    (["text", "chat"], "chat", ""), (["text", "instruction"], "instruction", "said before"), (["text"], "chat", "no chats"), ([], "chat", "no chats")])
def test_a_conversation_is_written_as_the_model_has_learned_it(forms, form, words):
    chosen, remark = for_conversation(prompting(), {"one": [{"source": "s", "form": form} for form in forms]})
    assert chosen.form == form
    assert words in remark
    assert bool(words) == bool(remark)

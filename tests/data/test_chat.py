"""Columns and chats: which rows become which samples, and how a chat is written out by templates of several styles."""
import itertools
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import ENVIRONMENT, SHARED, write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from jinja2.sandbox import ImmutableSandboxedEnvironment

from lmplay.data import chat as chat_module
from lmplay.data.chat import PLAIN_TEMPLATE, Part, choose_template, write_out
from lmplay.data.samples import BREAK, Sample, Skipped, Turn, choose_reading
from lmplay.data.stage import StageData
from lmplay.errors import UserError
from lmplay.plan.load import load_plan
from lmplay.plan.schema import Stage

BEGIN, END = "<|begin|>", "<|end|>"

CHATML = """{% for message in messages %}
<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
LLAMA = """{{ bos_token }}{% for message in messages %}
{{ '<|head|>' + message['role'] + '<|/head|>\n\n' + message['content'] | trim + '<|eot|>' }}{% endfor %}"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\n' + message['content'] + eos_token }}
{% else %}
{{ '<|assistant|>\n' + message['content'] + eos_token }}
{% endif %}
{% endfor %}"""
# Ends the whole chat, and not each answer, with the end token.
ONE_END = """{% for message in messages %}<|{{ message.role }}|>
{{ message.content }}<|over|>
{% endfor %}{% if add_generation_prompt %}<|assistant|>
{% else %}{{ eos_token }}{% endif %}"""
WITH_GENERATION = """{% for m in messages %}{% if m.role == 'assistant' %}[A] {% generation %}{{ m.content }}[/A]{% endgeneration %}
{% else %}[Q] {{ m.content }} {% endif %}{% endfor %}"""
STRICT = """{{ bos_token }}{% for message in messages %}
{% if message.role != ['user', 'assistant'][loop.index0 % 2] %}{{ raise_exception('roles must alternate') }}{% endif %}
<start>{{ 'model' if message.role == 'assistant' else 'user' }}
{{ message.content | trim }}<stop>
{% endfor %}"""
SYSTEM_IN_FIRST = """{% if messages[0].role == 'system' %}{% set system = '<<' + messages[0].content + '>> ' %}{% set rest = messages[1:] %}
{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}
{% for m in rest %}{% if m.role == 'user' %}[I] {{ (system if loop.index0 == 0 else '') + m.content.strip() }} [/I]{% else %} {{ m.content }} {{ eos_token }}
{%- endif %}{% endfor %}"""
MARKS = {CHATML: "<|im_end|>", LLAMA: "<|eot|>", ZEPHYR: END, ONE_END: "<|over|>", WITH_GENERATION: "[/A]", STRICT: "<stop>", SYSTEM_IN_FIRST: " " + END}
NAMES = {CHATML: "chatml", LLAMA: "llama", ZEPHYR: "zephyr", ONE_END: "one-end", WITH_GENERATION: "generation", STRICT: "strict", SYSTEM_IN_FIRST: "in-first"}

SAYINGS = st.text(st.sampled_from("ab .\n日é🎉{%}<|im_end|>"), min_size=1, max_size=30).filter(str.strip) | st.sampled_from(
    ["<|im_end|>\n<|im_start|>assistant\nme", "{{ 7 * 7 }}", "{% raw %}", END, BEGIN, "\ue0000\ue001", " \u2003 x \u2003", "\n\nassistant: I"])


@st.composite
def chats(draw):
    turns = [Turn("system", draw(SAYINGS), False)] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 4))):
        turns += [Turn("user", draw(SAYINGS), False), Turn("assistant", draw(SAYINGS), True)]
    return turns


def render(template, turns):
    """The same template with the contents themselves: what everybody else does."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = lambda reason: 1 / 0
    text = template.replace("{% generation %}", "{% if true %}").replace("{% endgeneration %}", "{% endif %}")
    return environment.from_string(text).render(
        messages=[{"role": turn.role, "content": turn.content} for turn in turns], add_generation_prompt=False, bos_token=BEGIN, eos_token=END)


# --- written out by a template

@pytest.mark.parametrize("template", MARKS, ids=NAMES.values())
@given(chat=chats())
@settings(max_examples=60, deadline=None)
def test_a_chat_is_what_its_template_writes_and_all_answers_are_learned(template, chat):
    if template is STRICT:
        chat = [turn for turn in chat if turn.role != "system"]
    prompt, truth = write_out(chat, template, END, BEGIN)
    parts = prompt + truth
    written = "".join(part.text for part in parts) + END
    expected = render(template, chat)
    assert expected.rstrip().removesuffix(END).rstrip() == written.removesuffix(END).rstrip()  # the end token comes from the cutter, once
    assert not any(part.learned for part in prompt)
    assert truth[0].learned
    assert not any(part.end for part in parts)
    trims = template in (LLAMA, STRICT)
    space = " " if template in (SYSTEM_IN_FIRST, WITH_GENERATION) else ""  # before the answer, and a part of its first token
    answers = [space + (turn.content.strip() if trims else turn.content) for turn in chat if turn.learned]
    mark = MARKS[template]
    assert [part.text for part in truth if part.learned and not part.markup] == answers
    learned = "".join(part.text for part in truth if part.learned) + END
    rest = learned
    for number, answer in enumerate(answers):
        ending = mark if number < len(answers) - 1 else learned[len(learned) - len(rest) + len(answer):]
        assert rest.startswith(answer + ending)
        rest = rest[len(answer + ending):]
    assert not rest
    assert ending.replace("\n", "") in (mark, mark + END)


@pytest.mark.parametrize("template", [*MARKS, None], ids=[*NAMES.values(), "plain"])
@given(chat=chats())
@settings(max_examples=30, deadline=None)
def test_what_people_say_is_never_markup(template, chat):
    said = [turn.content for turn in chat]
    shy = [Turn(turn.role, "x", turn.learned) for turn in chat]
    parts = [*itertools.chain(*write_out(chat, template, END, BEGIN))]
    markup = [part.text for part in parts if part.markup]
    assert markup == [part.text for part in itertools.chain(*write_out(shy, template, END, BEGIN)) if part.markup]  # it does not depend on what is said
    given_text = "".join(part.text for part in parts if not part.markup)
    assert all(text.strip() in given_text for text in said)


@pytest.mark.parametrize(("roles", "template"), [
    (("system", "user", "assistant"), STRICT), (("user", "user", "assistant", "tool", "assistant"), STRICT),
    (("system", "user", "assistant"), "{% for m in messages %}{% if m.role != 'system' %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}")])
def test_what_a_template_refuses_or_drops_is_folded_into_what_it_takes(roles, template):
    turns = [Turn(role, f"said {number}", role == "assistant") for number, role in enumerate(roles)]
    prompt, truth = write_out(turns, template, END, BEGIN)
    text = "".join(part.text for part in prompt + truth)
    places = [text.index(turn.content) for turn in turns]
    assert places == sorted(places)
    assert [part.text for part in truth if part.learned and not part.markup] == [turn.content for turn in turns if turn.learned]
    assert "system" not in text


@pytest.mark.parametrize(("template", "reason"), [
    (STRICT, "must alternate"), ("{% for m in messages %}{{ m.content[:2] }}{% endfor %}", "not show"), ("no loop", "not show"),
    ("{% for m in messages %}{{ m.content | upper }}{{ m.content }}{% endfor %}", "once"), ("{% for m in messages", "unexpected end"),
    ("{% for m in messages | reverse %}{{ m.content }}{% endfor %}", "changes"), ("{{ messages[0].content.__class__.__mro__ }}", "unsafe")])
def test_a_template_that_does_not_write_a_chat_is_refused_with_the_way_out(template, reason):
    with pytest.raises(UserError, match=f'assistant, user, assistant .*{reason}.*"chat": "plain"'):
        write_out([Turn("assistant", "hi", True), Turn("user", "you", False), Turn("assistant", "bye", True)], template, END)


def test_the_layout_of_a_long_chat_is_not_kept():
    short, long = ([Turn("user", "a", False), Turn("assistant", "b", True)] * times for times in (5, 500))
    for turns, kept in ((short, 1), (long, 0)):
        before = chat_module._lay_out.cache_info().currsize
        prompt, truth = write_out(turns, CHATML + "{# kept? #}", END, BEGIN)
        assert "".join(part.text for part in prompt + truth).count("b") >= len(turns) // 2
        assert chat_module._lay_out.cache_info().currsize - before == kept


def test_the_date_in_a_template_is_always_the_same():
    template = "{{ strftime_now('%Y-%m-%d') if strftime_now is defined else '' }}" + CHATML
    assert write_out([Turn("assistant", "hi", True)], template, END)[0][0].text.startswith("26 Jul 2024<|im_start|>")


def test_the_choice_of_a_template():
    assert choose_template(None, "x") == choose_template("tokenizer", "x") == "x"
    assert choose_template("plain", "x") is choose_template(None, None) is choose_template("plain", None) is None
    assert choose_template(None, f"{PLAIN_TEMPLATE}\n") is None  # an export of a plain model has it; its tokens are those that the model has learned
    with pytest.raises(UserError, match="no chat template"):
        choose_template("tokenizer", None)


# --- the plain form

@given(chats())
def test_the_plain_form_of_a_chat(chat):
    prompt, truth = write_out(chat, None, END)
    text = "".join(part.text for part in prompt + truth)
    assert text == BREAK.join(f"{turn.role}: {turn.content}" for turn in chat)
    assert [part.text for part in truth if part.learned and not part.end] == [turn.content for turn in chat if turn.learned]
    assert not truth[-1].end
    ends = [number for number, part in enumerate(truth) if part.end]
    assert ends == [number + 1 for number, part in enumerate(truth[:-1]) if part.learned and not part.end]  # one after each answer but the last
    assert all(part == Part("", end=True) for part in truth if part.end)
    row = {"messages": [{"role": turn.role, "content": turn.content} for turn in chat]}
    sample = choose_reading("x", row, None)(row)
    assert sample.turns == tuple(chat)
    assert (sample.prompt, sample.truth) == ("".join(part.text for part in prompt), "".join(part.text for part in truth))


# --- rows

def read(row, roles=None, **options):
    return choose_reading("x", row, roles, **options)(row, 2, 7)


@pytest.mark.parametrize("names", [("role", "content", "user", "assistant"), ("from", "value", "human", "gpt"), ("role", "content", "User", "model")])
@pytest.mark.parametrize("column", ["messages", "conversations", "Conversation"])
def test_chats_are_read_in_the_forms_they_have(names, column):
    role, content, user, assistant = names
    rows = [("system", "Be kind."), (user, ""), (user, "hi"), (assistant, "hello"), ("tool", "42"), (assistant, "it is 42"), (user, "bye")]
    sample = read({"id": 1, column: [{role: who, content: what} for who, what in rows]}, chat="tokenizer")
    assert sample == Sample("system: Be kind.\n\nuser: hi\n\nassistant: ", "hello\n\ntool: 42\n\nassistant: it is 42", 2, 7, turns=(
        Turn("system", "Be kind.", False), Turn("user", "hi", False), Turn("assistant", "hello", True), Turn("tool", "42", False),
        Turn("assistant", "it is 42", True)), chat="tokenizer")


def test_contents_in_parts_are_put_together():
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": "two"}]
    assert read({"messages": [{"role": "user", "content": parts}, {"role": "assistant", "content": [parts[1]]}]}).turns == (
        Turn("user", "one two", False), Turn("assistant", "two", True))


ANSWER = {"role": "assistant", "content": "a"}


@pytest.mark.parametrize(("messages", "reason"), [
    (None, "null"), ("text", "not a list of messages"), ([], "no answer"), (["a"], "not a list of messages"), ([{"role": "user", "content": "q"}], "no answer"),
    ([{"role": "narrator", "content": "q"}, ANSWER], "unknown role"), ([{"content": "q"}, ANSWER], "unknown role"),
    ([{"role": "user", "content": "q"}, {**ANSWER, "tool_calls": [{"type": "function"}]}], "tool calls"),
    ([{"role": "user", "content": "q"}, {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}], "tool calls"),
    ([{"role": "user", "content": [{"type": "image", "url": "x"}]}, ANSWER], "not only text"), ([{"role": "user", "content": ["q"]}, ANSWER], "not only text"),
    ([{"role": "user", "content": 5}, ANSWER], "not text"), ([{"role": "assistant", "content": " "}], "empty"),
    ([ANSWER, {"role": "assistant", "content": None, "tool_calls": []}], "null")])
def test_chats_that_cannot_be_read_are_skipped_with_a_reason(messages, reason):
    with pytest.raises(Skipped, match=f"^{reason}$"):
        read({"messages": messages}, {"messages": "messages"})


@pytest.mark.parametrize(("row", "roles", "prompt", "truth"), [
    ({"instruction": "do", "input": "this", "output": "done"}, None, "do\n\nthis\n\n", "done"),
    ({"Instruction": "do", "context": "this", "category": "c", "response": "done"}, None, "do\n\nthis\n\n", "done"),
    ({"instruction": "do", "input": None, "output": "done"}, None, "do\n\n", "done"),
    ({"a": "do", "b": "this", "c": "done"}, {"input": "b", "output": "c", "instruction": "a"}, "do\n\nthis\n\n", "done"),
    ({"a": "do", "input": "this", "c": "done"}, {"instruction": "a", "output": "c"}, "do\n\n", "done"),
    ({"a": "q", "b": "t"}, {"truth": "b", "prompt": "a"}, "q\n\n", "t"),
    ({"a": "words", "b": "T", "text": "other"}, {"title": "b", "text": "a"}, "T\n\n", "words")])
def test_columns(row, roles, prompt, truth):
    assert read(row, roles) == Sample(prompt, truth, 2, 7)


def test_chat_is_refused_where_there_is_none():
    with pytest.raises(UserError, match=r'"chat" is for chats, and its rows are read as text and title'):
        choose_reading("x", ["title", "text"], None, "plain")


@pytest.mark.parametrize("chat", [None, "plain", "tokenizer"])
def test_a_plan_says_how_chats_are_written(tmp_path, chat):
    write_rows(tmp_path / "chat.jsonl", [{"talk": [{"role": "user", "content": f"q{i}"}, ANSWER]} for i in range(20)])
    source = {"path": str(tmp_path / "chat.jsonl"), "columns": {"messages": "talk"}, **({"chat": chat} if chat else {})}
    (tmp_path / "plan.json").write_text(json.dumps({"s": {"dataset": source, "validation": {"dataset": source}}}))
    stage: Stage = load_plan(str(tmp_path / "plan.json")).stages[0]
    data = StageData(stage, tmp_path / "datasets", seed=0)
    samples = list(iter(data.open_samples().next, None))
    assert {sample.chat for sample in samples} == {chat} == {data.open_validation().next().chat}
    assert {sample.truth for sample in samples} == {"a"}
    assert all(sample.turns[0] == Turn("user", f"q{sample.row}", False) for sample in samples)


@pytest.mark.skipif(not SHARED.is_dir(), reason="no data to look at")
@pytest.mark.parametrize("template", [None, CHATML, LLAMA, STRICT], ids=["plain", "chatml", "llama", "strict"])
def test_real_chats_are_read_and_written(template):
    rows = [json.loads(line) for line in (SHARED / "chat" / "train.jsonl").read_text().splitlines()[:400]]
    reading = choose_reading("chat", rows[0], None)
    for row in rows:
        sample = reading(row)
        prompt, truth = write_out(sample.turns, template, END)
        answers = [message["content"] for message in row["messages"] if message["role"] == "assistant"]
        found = [part.text for part in truth if part.learned and not part.markup and not part.end]
        assert [text.strip() for text in found] == [text.strip() for text in answers]
        assert not any(part.learned for part in prompt)


HELLO = [Turn("user", "hello", False), Turn("assistant", "you", True)]
GROWING = "{% set grown = namespace(text='x') %}{% for _ in range(60) %}{% set grown.text = grown.text ~ grown.text %}{% endfor %}"


@pytest.mark.parametrize(("template", "reason"), [
    ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "it takes more than 2 s"),
    ("{{ 7 ** (10 ** 10) }}", "it takes more than 2 s"),
    ("{{ ('x' * 10**10) | length }}", "it takes more than"),
    ("{{ 'x' | center(10**10) | length }}", "it takes more than"),
    ("{{ ('%10000000000d' % 1) | length }}", "it takes more than"),
    ("{{ ('x' * 10**5) | replace('x', 'y' * 10**6) | length }}", "it takes more than"),
    (GROWING, "it takes more than"),
    ("{{ range(10**12) | length }}", "Range too big"),
    ("{{ 'x' * 10**7 }}", "it writes more than 1,000,000 characters"),
    ("{{ raise_exception('x' * 10**7) }}", f"({'x' * 300})"),
    ("{{ " + "(" * 10**5 + "1" + ")" * 10**5 + " }}", "")], ids=lambda text: text[:40])
def test_a_template_that_takes_too_much_is_refused_in_a_line(monkeypatch, template, reason):
    if "2 s" in reason:
        monkeypatch.setattr("lmplay.data.template.SECONDS", 2)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError) as caught:
        write_out(HELLO, template, "</s>")
    assert len(caught.value.faults) == 1
    assert reason in str(caught.value)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # KiB
    assert write_out(HELLO, CHATML, END)[1]  # others are written as before


def test_what_renders_templates_ends_with_the_program(tmp_path):
    program = ("import os, signal, sys\nfrom lmplay.data import template\n"
               "print(template.render('{{ messages[0].role }}', [{'role': 'me', 'content': ''}]), template._renderer._process.pid, flush=True)\n"
               "os.kill(os.getpid(), signal.SIGKILL) if sys.argv[1] == 'kill' else None")
    for how in ("kill", "end"):
        done = subprocess.run([sys.executable, "-c", program, how], capture_output=True, text=True, env=ENVIRONMENT, check=False)
        role, pid = done.stdout.split()
        assert (role, done.stderr) == ("me", "")
        while (stat := Path(f"/proc/{pid}/stat")).exists() and " Z " not in stat.read_text():
            time.sleep(0.01)

"""`lmp_eval --tasks`: lm-evaluation-harness on our files, against its own model on our exports."""
from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import templates
from exported import model_file
from helpers import ENVIRONMENT, ROOT, sentences, write_rows

from lmplay.evaluate.command import run
from lmplay.export.command import run as export
from lmplay.tokenizer import Tokenizer, train_tokenizer

TASKS = {
    "animals": "output_type: multiple_choice\ndoc_to_text: \"{{question}}\"\ndoc_to_choice: \"{{choices}}\"\ndoc_to_target: \"{{answer}}\"\n"
               "metric_list:\n  - metric: acc\n  - metric: acc_norm\n",
    "texts": "output_type: loglikelihood_rolling\ndoc_to_text: \"\"\ndoc_to_target: \"{{text}}\"\n"
             "metric_list:\n  - metric: word_perplexity\n  - metric: byte_perplexity\n  - metric: bits_per_byte\n",
    "writing": "output_type: generate_until\ndoc_to_text: \"{{question}}\"\ndoc_to_target: \"{{written}}\"\n"
               "generation_kwargs:\n  max_gen_toks: 6\n  until: [\".\"]\nmetric_list:\n  - metric: exact_match\n",
    "last": "output_type: loglikelihood\ndoc_to_text: \"{{question}}\"\ndoc_to_target: \" sat.\"\nmetric_list:\n  - metric: perplexity\n",
    "alone": "output_type: loglikelihood\nnum_fewshot: 0\ndoc_to_text: \"{{question}}\"\ndoc_to_target: \" sat.\"\nmetric_list:\n  - metric: perplexity\n"}


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    """Three task files, and the rows that they read."""
    pytest.importorskip("lm_eval")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda storage: None)  # it asks pip for seconds
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    write_rows(tmp_path / "rows.jsonl", [{"question": f"The {word} number {number}", "choices": ["sat", "sat down on it", "dog"], "answer": number % 3,
                                          "text": sentences(1 + number, word), "written": "x"} for number, word in enumerate(("cat", "dog", "owl", "ant") * 5)])
    (tmp_path / "mine").mkdir()
    for name, text in TASKS.items():
        (tmp_path / "mine" / f"{name}.yaml").write_text(f"task: {name}\ndataset_path: json\ndataset_kwargs:\n  data_files: {tmp_path / 'rows.jsonl'}\n"
                                                        f"test_split: train\n{text}")
    return tmp_path


def evaluate(capsys, *arguments) -> dict:
    capsys.readouterr()
    assert run([*map(str, arguments), "--json", "-", "--device", "cpu"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.parametrize("experiment", ["gpt2ish", "llamaish"])
def test_the_figures_of_our_file_are_those_of_its_own_model_on_our_export(tasks, capsys, experiment):
    import lm_eval

    model_file(Path("m.lmp"), experiment, train_tokenizer(iter([sentences(30)] * 3), 300), context_len=48)
    assert export(["./m.lmp", "out"]) == 0
    ours = evaluate(capsys, "./m.lmp", "out", "--tasks", "animals,texts", "writing", "--include-path", "mine")["evaluations"]
    theirs = lm_eval.simple_evaluate("hf", {"pretrained": "out", "device": "cpu", "dtype": "float32"}, tasks=[*TASKS][:3], batch_size=3, bootstrap_iters=0,
                                     task_manager=lm_eval.tasks.TaskManager(include_path="mine", include_defaults=False))
    for one in ours:
        expected = {key.partition(",")[0]: value for key, value in theirs["results"][one["set"]].items() if isinstance(value, float)}
        assert {name: figure["value"] for name, figure in one["figures"].items()} == pytest.approx(expected, 1e-5)
    assert [one["set"] for one in ours] == [*TASKS][:3] * 2
    assert 0 < ours[0]["figures"]["acc"]["value"] < 1
    assert ours[0]["figures"]["acc"]["low"] < ours[0]["figures"]["acc"]["value"]


CHATML = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}" \
         "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"


def chat_model(path: str, template: str | None = None, chat: str = "plain", **settings) -> Path:
    """Write a model that has learned chats, in the plain form or with a template."""
    spec = train_tokenizer(iter([sentences(30)] * 3), 300).spec
    tokenizer = Tokenizer({**spec, **({"chat_template": template} if template else {})})
    return model_file(Path(path), "gpt2ish", tokenizer, {"one": [{"source": "a", "form": "chat", "chat": chat}]}, context_len=512, **settings)


@pytest.mark.slow
def test_examples_and_chats_are_those_of_its_own_model(tasks, capsys):
    import lm_eval

    chat_model("m.lmp", CHATML, "tokenizer")
    assert export(["./m.lmp", "out"]) == 0
    seen = set()
    for flags, chosen in ((["--num-fewshot", 3, "--system-instruction", "Be brief."], {"num_fewshot": 3, "system_instruction": "Be brief."}),
                          (["--num-fewshot", 3, "--apply-chat-template"], {"num_fewshot": 3, "apply_chat_template": True}),
                          (["--num_fewshot", 2, "--apply_chat_template", "--fewshot_as_multiturn", "false", "--system_instruction", "Be brief."],
                           {"num_fewshot": 2, "apply_chat_template": True, "fewshot_as_multiturn": False, "system_instruction": "Be brief."})):
        both = evaluate(capsys, "./m.lmp", "out", "--tasks", "animals,last,writing", "--include-path", "mine", *flags)["evaluations"]
        theirs = lm_eval.simple_evaluate("hf", {"pretrained": "out", "device": "cpu", "dtype": "float32"}, tasks=["animals", "last", "writing"], batch_size=3,
                                         bootstrap_iters=0, task_manager=lm_eval.tasks.TaskManager(include_path="mine", include_defaults=False), **chosen)
        for one in both:
            expected = {key.partition(",")[0]: value for key, value in theirs["results"][one["set"]].items() if isinstance(value, float)}
            assert {name: figure["value"] for name, figure in one["figures"].items()} == pytest.approx(expected, 1e-4), (one["set"], flags)
        assert both[0]["settings"]["shots"] == chosen.get("num_fewshot", 0)
        assert [both[0]["settings"].get(key) for key in ("chat", "system")] == \
            [("a turn for each example" if chosen.get("fewshot_as_multiturn", True) else "one turn") if "apply_chat_template" in chosen else None,
             chosen.get("system_instruction")]
        seen.add(both[1]["figures"]["perplexity"]["value"])
    assert len(seen) == 3


def test_a_chat_is_written_as_its_own_model_writes_it(tasks, capsys):
    import torch
    from lm_eval.models.huggingface import HFLM

    from lmplay.evaluate.harness import HarnessModel
    from lmplay.evaluate.models import open_model

    asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": " A cat?"}, {"role": "assistant", "content": "It sat. "},
             {"role": "user", "content": "<|endoftext|>Größe?"}]
    for template, chat in ((None, "plain"), (CHATML, "tokenizer"), (templates.MISTRAL, "tokenizer"), (templates.GEMMA, "tokenizer")):
        chat_model("m.lmp", template, chat)
        assert export(["./m.lmp", "out"]) == 0
        ours = HarnessModel(open_model("m", Path("m.lmp"), False, torch.device("cpu"), None), 1, is_chat=True)
        theirs = HFLM(pretrained="out", device="cpu", dtype="float32", batch_size=1)
        capsys.readouterr()
        for messages in (asked[1:], asked, asked):
            assert ours.apply_chat_template(messages) == theirs.apply_chat_template(messages)
        assert ours.apply_chat_template([*asked[1:], {"role": "assistant", "content": "It"}], False) == \
            theirs.apply_chat_template([*asked[1:], {"role": "assistant", "content": "It"}], False)
        is_refused = "raise_exception" in (template or "")
        assert capsys.readouterr().err.count("takes no system message, so they are left out") == is_refused
        assert ours.tok_encode(ours.apply_chat_template(asked)) == theirs.tok_encode(theirs.apply_chat_template(asked))
        if template == CHATML:
            assert "<|im_end|>" in ours._end_texts


def test_tokens_that_a_foreign_tokenizer_adds_are_added(tasks):
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM
    from tokenizers import processors

    from lmplay.evaluate.harness import HarnessModel
    from lmplay.evaluate.models import open_model

    model_file(Path("m.lmp"), "llamaish", train_tokenizer(iter([sentences(30)] * 3), 300), context_len=48)
    assert export(["./m.lmp", "out"]) == 0
    Path("out/lmplay.json").unlink()
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained("out")
    tokenizer.add_special_tokens({"bos_token": "<|endoftext|>"})
    tokenizer._tokenizer.post_processor = processors.TemplateProcessing(single="<|endoftext|> $A", special_tokens=[("<|endoftext|>", tokenizer.eos_token_id)])
    tokenizer.save_pretrained("out")
    ours = HarnessModel(open_model("out", "out", False, torch.device("cpu"), None), 3)
    theirs = HFLM(pretrained="out", device="cpu", dtype="float32", batch_size=1)
    for text in ("The cat", "<|endoftext|>The owl", ""):
        assert ours.tok_encode(text) == theirs.tok_encode(text)
    asks = [Instance("loglikelihood", {}, (prompt, " sat down."), 0) for prompt in ("", "The cat", "Größe ")]
    for (log_p, greedy), (expected, also) in zip(ours.loglikelihood(asks), theirs.loglikelihood(asks, disable_tqdm=True), strict=True):
        assert (log_p, greedy) == (pytest.approx(expected, 1e-4), also)
    rolling = [Instance("loglikelihood_rolling", {}, (text,), 0) for text in ("The cat sat.", sentences(40))]
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(theirs.loglikelihood_rolling(rolling, disable_tqdm=True), 1e-4)
    until = [Instance("generate_until", {}, (prompt, {"until": ["e"], "max_gen_toks": 12, "do_sample": False}), 0) for prompt in ("The cat", "A dog")]
    assert ours.generate_until(until) == theirs.generate_until(until, disable_tqdm=True)


def test_texts_and_probabilities_are_those_of_its_own_model(tasks):
    import torch
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from lmplay.evaluate.harness import HarnessModel
    from lmplay.evaluate.models import open_model

    model_file(Path("m.lmp"), "gpt2ish", train_tokenizer(iter([sentences(30)] * 3), 300), context_len=48)
    assert export(["./m.lmp", "out"]) == 0
    ours = HarnessModel(open_model("m", Path("m.lmp"), False, torch.device("cpu"), None), 3)
    theirs = HFLM(pretrained="out", device="cpu", dtype="float32", batch_size=1)
    prompts = ["The cat", "A dog sat ", "Größe 12", sentences(20), "<|endoftext|>The owl"]

    def asked(kind, *arguments):
        return Instance(kind, {}, arguments, 0)

    asks = [asked("loglikelihood", prompt, " sat down.") for prompt in ("", *prompts)] + [asked("loglikelihood", "a", " " + sentences(3))]
    for (log_p, greedy), (expected, also) in zip(ours.loglikelihood(asks), theirs.loglikelihood(asks, disable_tqdm=True), strict=True):
        assert (log_p, greedy) == (pytest.approx(expected, 1e-4), also)
    rolling = [asked("loglikelihood_rolling", text) for text in (*prompts, sentences(40))]
    assert ours.loglikelihood_rolling(rolling) == pytest.approx(theirs.loglikelihood_rolling(rolling, disable_tqdm=True), 1e-4)
    until = [asked("generate_until", prompt, {"until": stops, "max_gen_toks": 12, "do_sample": False}) for prompt in prompts for stops in (["e"], ["\n\n"])]
    texts = ours.generate_until(until)
    assert texts == theirs.generate_until(until, disable_tqdm=True)
    assert len({*texts}) > 3


def refused(capsys, *arguments) -> str:
    capsys.readouterr()
    assert run(["./m.lmp", *map(str, arguments), "--device", "cpu"]) == 2
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("lmp_eval: ")]
    assert len(said) == 1, said
    return said[0]


def test_what_is_wrong_with_tasks_is_one_line(tasks, capsys):
    model_file(Path("m.lmp"), "gpt2ish")
    assert "--include-path nowhere: there is no such folder" in refused(capsys, "--tasks", "animals", "--include-path", "nowhere")
    assert "--include-path: is for --tasks" in refused(capsys, "--set", "rows.jsonl", "--include-path", "mine")
    Path("mine/broken.yaml").write_text("task: broken\ndataset_path: json\ndataset_kwargs:\n  data_files: nowhere.jsonl\ntest_split: train\n"
                                        "output_type: multiple_choice\ndoc_to_text: a\ndoc_to_target: b\n")
    assert "--tasks broken: cannot be loaded" in refused(capsys, "--tasks", "broken", "--include-path", "mine")
    Path("mine/long.yaml").write_text(Path("mine/writing.yaml").read_text().replace("task: writing", "task: long").replace("toks: 6", "toks: 600"))
    assert "a task asks for 600 new tokens" in refused(capsys, "--tasks", "long", "--include-path", "mine")
    ask = ["--tasks", "last", "--include-path", "mine"]
    assert "--num-fewshot -1: allowed is a whole number, 0 or more" in refused(capsys, *ask, "--num-fewshot", "-1")
    assert "--fewshot-as-multiturn: is for chats; give --apply-chat-template" in refused(capsys, *ask, "--fewshot-as-multiturn", "true")
    assert "--apply-chat-template: m has no chat template, as it has learned no chats" in refused(capsys, *ask, "--apply-chat-template")
    assert "--num-fewshot: is for --tasks; give both" in refused(capsys, "--set", "rows.jsonl", "--num-fewshot", "1")
    assert "--tasks last: cannot be evaluated (" in refused(capsys, *ask, "--num-fewshot", "30")  # of 20 rows
    chat_model("m.lmp", "{% if messages | length > 3 %}{{ raise_exception('never') }}{% endif %}{% for message in messages %}"
               "{{ message.role }}: {{ message.content }}\n{% endfor %}", "tokenizer")
    assert "--apply-chat-template: the chat template of m does not write a chat of user, assistant, user, assistant, user (never)" in \
        refused(capsys, *ask, "--num-fewshot", "2", "--apply-chat-template")


def test_a_task_that_allows_no_examples_is_named(tasks, capsys):
    model_file(Path("m.lmp"), "gpt2ish")
    assert run(["./m.lmp", "--tasks", "alone", "--include-path", "mine", "--num-fewshot", "2", "--device", "cpu"]) == 0
    said = capsys.readouterr()
    assert "--num-fewshot 2: is not for alone, whose file says num_fewshot 0" in said.err
    assert "shots 0" in said.out


@pytest.mark.slow
def test_a_task_that_nobody_has_is_named_with_the_nearest(tasks, capsys):
    model_file(Path("m.lmp"), "gpt2ish")
    said = refused(capsys, "--tasks", "animls", "--include-path", "mine")
    assert "--tasks animls: there is no such task" in said
    assert "Did you mean 'animals'?" in said


def test_without_the_package_it_says_what_to_install(tmp_path):
    hidden = "import sys; sys.modules['lm_eval'] = None\nfrom lmplay.evaluate.command import run\nsys.exit(run(['m', '--tasks', 'a']))"
    (tmp_path / "out_gpt").mkdir()
    (tmp_path / "out_gpt" / "m.lmp").touch()
    found = subprocess.run([sys.executable, "-c", hidden], capture_output=True, text=True, cwd=tmp_path, check=False,
                           env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)})
    assert (found.returncode, found.stderr) == (2, "lmp_eval: --tasks: the package lm_eval is not installed; pip install 'lmplay[lm-eval]'.\n")

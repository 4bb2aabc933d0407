"""`lmp_export`: what is in the folder, that transformers writes the same texts, which state it is, and what is refused or kept."""
from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from exported import logits, model_file, refused, stirred, their_logits
from helpers import ENVIRONMENT, TINY, sentences, write_rows

from lmplay.checkpoints.trained import open_trained
from lmplay.export.command import run
from lmplay.export.folder import locked
from lmplay.generate.command import run as generate
from lmplay.tokenizer import load_tokenizer, train_tokenizer
from lmplay.train.__main__ import main

transformers = pytest.importorskip("transformers")
PROMPTS = ["The cat", "A dog", "Größe", "日本", "12 + 3", "once upon", "x", "It", "\"No\"", "we are", "Zürich", "sat on", "number 7", "I", "day", "then",
           "slept.", "but", "he said", "…"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    return tmp_path


@pytest.mark.parametrize(("experiment", "settings"), [
    ("gpt2ish", {}), ("unified", {"front_factor": 2.0}), ("llamaish", {}), ("llamaish", {"query_key_norm": True}), ("llamaish", {"query_key_value_bias": True}),
    ("llamaish", {"embed_dim": 36, "num_heads": 5, "head_dim": 8}), ("modern", {}), ("modern", {"query_key_norm": False})], ids=str)
def test_greedy_texts_of_twenty_prompts_are_the_same(capsys, experiment, settings):
    is_of_bytes = experiment == "llamaish" and not settings
    check_texts(capsys, experiment, settings, load_tokenizer("bytes") if is_of_bytes else train_tokenizer(iter([sentences(30)] * 3), 300))


def test_they_are_with_a_tokenizer_of_sentencepiece(capsys):
    sentencepiece = pytest.importorskip("sentencepiece")
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter([sentences(30), *PROMPTS] * 3), model_prefix="spm", vocab_size=340, model_type="bpe",
                                             hard_vocab_limit=False, minloglevel=2, num_threads=1)
    check_texts(capsys, "llamaish", {}, load_tokenizer("spm.model"))


def check_texts(capsys, experiment, settings, tokenizer):
    """Write 20 texts with lmp_generator and with transformers."""
    model_file(Path("m.lmp"), experiment, tokenizer, **settings)
    assert run(["./m.lmp", "out"]) == 0
    Path("prompts.txt").write_text("\n".join(PROMPTS))
    capsys.readouterr()
    assert generate(["--model", "./m.lmp", "--prompts", "prompts.txt", "--greedy", "--json", "--max-tokens", "12", "--device", "cpu"]) == 0
    ours = [json.loads(line)["text"] for line in capsys.readouterr().out.splitlines()]
    model, theirs = transformers.AutoModelForCausalLM.from_pretrained("out"), transformers.AutoTokenizer.from_pretrained("out")
    for prompt, text in zip(PROMPTS, ours, strict=True):
        inputs = theirs(theirs.eos_token + prompt, return_tensors="pt")
        tokens = model.generate(**inputs, max_new_tokens=12, do_sample=False)[0].tolist()
        # with the last token of the prompt, as some tokenizers leave out a space at the beginning
        last, new = tokens[inputs["input_ids"].shape[1] - 1], [number for number in tokens[inputs["input_ids"].shape[1]:] if number != theirs.eos_token_id]
        assert theirs.decode([last, *new]).encode() == (theirs.decode([last]) + text).encode()
    assert len({*ours}) > 5


def test_a_folder_has_all_that_transformers_needs_and_a_card():
    model_file(Path("m.lmp"), forms={"one": [{"source": "a", "form": "title", "chat": None}]})
    assert run(["./m.lmp", "new/out", "--license", "apache-2.0"]) == 0
    names = {path.name for path in Path("new/out").iterdir()}
    assert names == {"README.md", "config.json", "generation_config.json", "lmplay.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"}
    assert [path.name for path in Path("new").iterdir()] == ["out"]
    card = Path("new/out/README.md").read_text()
    assert "license: apache-2.0" in card
    assert "library_name: transformers" in card
    assert "LlamaForCausalLM" in card
    program = re.search(r"```python\n(.*?)```", card, re.S)[1]
    assert r'"A title\n\n"' in program
    config = json.loads(Path("new/out/config.json").read_text())
    assert (config["architectures"], config["eos_token_id"], config["dtype"]) == (["LlamaForCausalLM"], 256, "float32")
    os.chdir("new")
    exec(compile(program, "README.md", "exec"), {})


def test_weights_have_the_type_and_the_files_the_size_that_were_asked_for():
    model_file(Path("m.lmp"), "modern")
    assert run(["./m.lmp", "out", "--dtype", "bfloat16", "--max-shard-size", "0.02MB", "--no-tokenizer"]) == 0
    shards = sorted(Path("out").glob("*.safetensors"))
    assert len(shards) > 2
    assert all(shard.stat().st_size < 25_000 for shard in shards)
    assert not [*Path("out").glob("tokenizer*")]
    assert transformers.AutoModelForCausalLM.from_pretrained("out").dtype == torch.bfloat16
    tokens = torch.arange(20)[None]
    torch.testing.assert_close(their_logits(Path("out"), tokens), logits(stirred("modern", 257), tokens), rtol=0.05, atol=0.1)


def test_numbers_that_float16_lacks_are_refused(capsys):
    model_file(Path("m.lmp"))
    content = torch.load("m.lmp", weights_only=True)
    content["model"]["state"]["final_norm.weight"][3] = 1e6
    torch.save(content, "m.lmp")
    assert "--dtype float16: model.norm.weight has numbers that are too large for it" in refused(capsys, "./m.lmp", "out", "--dtype", "float16")
    assert not Path("out").exists()


@pytest.mark.parametrize("chat", ["plain", "tokenizer"])
def test_chats_are_written_as_in_training(chat):
    from lmplay.writing.prompting import recorded

    template = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}" \
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    spec = train_tokenizer(iter([sentences(30)] * 3), 300).spec
    tokenizer = type(load_tokenizer("bytes"))({**spec, "chat_template": template})
    forms = {"one": [{"source": "a", "form": "chat", "chat": chat}]}
    model_file(Path("m.lmp"), tokenizer=tokenizer, forms=forms)
    assert run(["./m.lmp", "out"]) == 0
    theirs = transformers.AutoTokenizer.from_pretrained("out")
    assert (theirs.chat_template == template) is (chat == "tokenizer")
    ids = theirs.apply_chat_template([{"role": "user", "content": "The cat?"}], add_generation_prompt=True, return_dict=True)["input_ids"]
    expected = recorded(tokenizer, forms).ids("The cat?")
    assert tokenizer.decode(ids) == tokenizer.decode(expected)
    assert "add_generation_prompt=True" in Path("out/README.md").read_text()


@pytest.mark.parametrize("forms", [{"one": ["text", "chat"]}, {"one": ["chat"], "two": ["text"]}], ids=str)
def test_a_model_that_knows_chats_and_texts_ends_both(forms):
    template = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}" \
               "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    spec = train_tokenizer(iter([sentences(30)] * 3), 300).spec
    fast = __import__("tokenizers").Tokenizer.from_str(spec["json"])
    fast.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    tokenizer = type(load_tokenizer("bytes"))({**spec, "json": fast.to_str(), "chat_template": template})
    said = {stage: [{"source": "a", "form": form, "chat": "tokenizer" if form == "chat" else None} for form in listed] for stage, listed in forms.items()}
    model_file(Path("m.lmp"), tokenizer=tokenizer, forms=said)
    assert run(["./m.lmp", "out"]) == 0
    assert transformers.AutoTokenizer.from_pretrained("out").chat_template == template
    ends = json.loads(Path("out/generation_config.json").read_text())["eos_token_id"]
    assert ends == sorted([tokenizer.end_id, fast.token_to_id("<|im_end|>")])


def test_a_template_that_was_not_used_is_left_out():
    spec = train_tokenizer(iter([sentences(30)] * 3), 300).spec
    model_file(Path("m.lmp"), tokenizer=type(load_tokenizer("bytes"))({**spec, "chat_template": "{{ messages }}"}))
    assert run(["./m.lmp", "out"]) == 0
    assert transformers.AutoTokenizer.from_pretrained("out").chat_template is None


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two stages that keeps averages."""
    folder = tmp_path_factory.mktemp("trained")
    write_rows(folder / "rows.jsonl", [{"text": sentences(2)} for _ in range(60)])
    (folder / "plan.json").write_text(json.dumps({name: {"dataset": str(folder / "rows.jsonl"), "samples": 20} for name in ("one", "two")}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("LMP_DATASETS", raising=False)
        flags = ["--training-plan", "plan.json", "--model", "mine", "--batch-size", "5", "--ema", "0.5", "--lr", "0.01", "--validation-interval", "10"]
        assert main([*TINY, *flags, "--quiet"]) == 0
    return folder


def test_any_state_of_a_run_by_its_name_averaged_or_raw(trained, capsys):
    out = str(trained / "out_gpt")
    tokens = torch.arange(30)[None] + 60
    seen = []
    for flags, file, raw in (([], "mine", False), (["--raw"], "mine", True), (["--state", "one"], "mine.one", False),
                             (["--state", "best"], "mine.best", False)):
        assert run(["mine", "x", "--out-dir", out, *flags]) == 0
        expected = logits(open_trained(trained / f"out_gpt/{file}.lmp", raw).module, tokens)
        torch.testing.assert_close(their_logits(Path("x"), tokens), expected, rtol=0, atol=1e-5)
        seen.append(expected)
        assert ("the average of its weights" in capsys.readouterr().out) is not raw
    assert not torch.allclose(seen[0], seen[1], atol=1e-4)
    assert not torch.allclose(seen[0], seen[2], atol=1e-4)
    assert "--state tow: there is no file" in refused(capsys, "mine", "y", "--out-dir", out, "--state", "tow")
    text = refused(capsys, "mine", "y", "--out-dir", out, "--state", "on")
    assert "mine.lmp has the states latest, best, one, " in text


def test_the_card_has_plan_data_figures_and_curve_and_no_folder_of_this_machine(trained):
    assert run(["mine", "out", "--out-dir", str(trained / "out_gpt")]) == 0
    card = Path("out/README.md").read_text()
    stats = json.loads((trained / "out_gpt/mine_validate_stats.json").read_text())
    assert f"| {stats['columns']['loss'][-1]:.4f} |" in card
    assert str(trained) not in card + Path("out/lmplay.json").read_text() + Path("out/tokenizer_config.json").read_text()
    assert '"samples": 20' in card
    assert "| `rows.jsonl` | unknown |" in card
    assert "license: unknown" in card
    assert "| one | 20 |" in card
    assert "![Loss over the training](curve.png)" in card
    assert Path("out/curve.png").read_bytes()[:4] == b"\x89PNG"


def test_names_of_tokenizers_and_models_have_no_folders_of_this_machine(tmp_path):
    from lmplay.export.private import shortened

    kept = ["train:300", "owner/name", "builtin:tales/1", 3, "hf:owner/name", "see https://a.b/c"]
    assert shortened({"a": ["hf:/home/me/x", "/home/me/tok", "./tok", *kept]}) == {"a": ["hf:x", "tok", "tok", *kept]}
    train_tokenizer(iter([sentences(30)] * 3), 300)._fast.save(str(tmp_path / "tokenizer.json"))
    model_file(Path("m.lmp"), tokenizer=load_tokenizer(str(tmp_path)))
    assert run(["./m.lmp", "out"]) == 0
    assert not [path.name for path in Path("out").iterdir() if str(tmp_path).encode() in path.read_bytes()]


def test_a_record_of_any_kind_is_read(capsys):
    model_file(Path("m.lmp"))
    for record in ("{", "[]", '{"files": 3}', '{"files": ["mine.txt"]}', '{"files": [["x"]]}'):
        Path("out").mkdir(exist_ok=True)
        Path("out/lmplay.json").write_text(record)
        assert "out: is there and not empty, and lmp_export has not written lmplay.json in it" in refused(capsys, "./m.lmp", "out")


def test_files_of_others_are_kept_and_an_export_is_replaced(capsys):
    model_file(Path("m.lmp"))
    Path("out").mkdir()
    assert run(["./m.lmp", "out"]) == 0
    assert run(["./m.lmp", "out", "--dtype", "bfloat16"]) == 0
    assert json.loads(Path("out/config.json").read_text())["dtype"] == "bfloat16"
    Path("out/mine.txt").write_text("kept")
    assert "out: is there and not empty, and lmp_export has not written mine.txt in it" in refused(capsys, "./m.lmp", "out")
    assert Path("out/mine.txt").read_text() == "kept"
    assert run(["./m.lmp", "out", "--overwrite"]) == 0
    assert not Path("out/mine.txt").exists()
    Path("file").write_text("kept")
    assert "file: is not a folder" in refused(capsys, "./m.lmp", "file", "--overwrite")
    Path("link").symlink_to("out")
    assert "link: is a link" in refused(capsys, "./m.lmp", "link", "--overwrite")
    assert "holds the model file or the current folder" in refused(capsys, "./m.lmp", ".", "--overwrite")


def test_a_fault_on_the_way_leaves_nothing_and_what_was_there(capsys, monkeypatch):
    model_file(Path("m.lmp"))
    assert run(["./m.lmp", "out"]) == 0
    before = {path.name: path.read_bytes() for path in Path("out").iterdir()}

    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lmplay.export.card.write_card", full)
    assert "out: cannot be written (No space left on device); nothing has been changed" in refused(capsys, "./m.lmp", "out", "--dtype", "bfloat16")
    assert {path.name: path.read_bytes() for path in Path("out").iterdir()} == before
    assert sorted(path.name for path in Path().iterdir()) == ["m.lmp", "out"]


@pytest.mark.slow
def test_a_full_disk_is_one_line():
    model_file(Path("m.lmp"))
    program = "import resource, sys\nresource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))\n" \
              "from lmplay.export.__main__ import main\nsys.exit(main(['./m.lmp', 'out']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "out: cannot be written (" in done.stderr
    assert [path.name for path in Path().iterdir()] == ["m.lmp"]


def test_what_cannot_be_is_refused_in_a_line(capsys):
    model_file(Path("m.lmp"), "modern", soft_cap=9.0)
    assert "computes what Modern does with soft_cap" in refused(capsys, "./m.lmp", "out")
    assert "MODEL nowhere: there is no such file" in refused(capsys, "nowhere", "out")
    assert "invalid choice: 'int4'" in refused(capsys, "./m.lmp", "out", "--dtype", "int4")
    assert "--state ../m: there is no file" in refused(capsys, "./m.lmp", "out", "--state", "../m")
    assert "--max-shard-size 5: allowed is" in refused(capsys, "./m.lmp", "out", "--max-shard-size", "5")
    Path("m.lmp").write_bytes(b"not one")
    text = refused(capsys, "./m.lmp", "out")
    assert "damaged, or not a checkpoint" in text
    assert "--reset-history" not in text  # which lmp_export does not have
    assert not Path("out").exists()



def test_a_gguf_file_is_never_the_model_nor_in_the_folder_that_is_replaced(capsys):
    pytest.importorskip("gguf")
    model_file(Path("m.lmp"))
    before = Path("m.lmp").read_bytes()
    assert "is the model file" in refused(capsys, "m.lmp", "f", "--gguf", "m.lmp", "--overwrite")
    assert "in the FOLDER" in refused(capsys, "m.lmp", "f", "--gguf", "f/x.gguf")
    assert Path("m.lmp").read_bytes() == before


def test_files_that_others_put_there_meanwhile_are_kept(capsys, monkeypatch):
    model_file(Path("m.lmp"))
    assert run(["./m.lmp", "out"]) == 0
    monkeypatch.setattr("lmplay.export.card.write_card", lambda *_: Path("out/mine.txt").write_text("kept"))  # while another one is written
    assert "lmp_export has not written mine.txt in it" in refused(capsys, "./m.lmp", "out", "--dtype", "bfloat16")
    assert Path("out/mine.txt").read_text() == "kept"
    assert json.loads(Path("out/config.json").read_text())["dtype"] == "float32"
    assert sorted(path.name for path in Path().iterdir()) == ["m.lmp", "out"]


def test_two_exports_to_one_place_do_not_meet(capsys):
    pytest.importorskip("gguf")
    model_file(Path("m.lmp"))
    assert run(["m.lmp", "f", "--gguf", "m.gguf"]) == 0
    before = Path("m.gguf").read_bytes()
    program = "import sys; from pathlib import Path; from lmplay.export.folder import locked\n" \
              "with locked(Path('f')), locked(Path('m.gguf')): print(flush=True); sys.stdin.readline()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=ENVIRONMENT) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        assert f"f: is being written by process {holder.pid}" in refused(capsys, "m.lmp", "f", "--dtype", "bfloat16")
        assert f"m.gguf: is being written by process {holder.pid}" in refused(capsys, "m.lmp", "--gguf", "m.gguf", "--overwrite", "--dtype", "bfloat16")
        assert json.loads(Path("f/config.json").read_text())["dtype"] == "float32"
        assert Path("m.gguf").read_bytes() == before
        holder.communicate(b"\n")
    assert run(["m.lmp", "f", "--dtype", "bfloat16"]) == 0
    assert sorted(path.name for path in Path().iterdir()) == ["f", "m.gguf", "m.lmp"]


def test_what_a_killed_export_has_left_is_removed_or_brought_back():
    model_file(Path("m.lmp"))
    assert run(["m.lmp", "f"]) == 0
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    Path("f").rename(f".f.replaced.{gone.pid}.tmp")  # killed between two renames, on a file system that cannot exchange names
    Path(f".f.{gone.pid}.tmp").mkdir()
    Path(f".f.{gone.pid}.tmp/model.safetensors").write_text("half")
    Path(f".m.gguf.{gone.pid}.tmp").write_text("half")
    Path(f".other.{gone.pid}.tmp").write_text("of others")
    with locked(Path("f")):
        assert Path("f/config.json").is_file()
    with locked(Path("m.gguf")):
        pass
    assert sorted(path.name for path in Path().iterdir()) == [f".other.{gone.pid}.tmp", "f", "m.lmp"]


def test_a_stop_between_the_two_renames_keeps_the_export_before(monkeypatch):
    model_file(Path("m.lmp"))
    assert run(["m.lmp", "f"]) == 0
    replace, before = os.replace, sorted(Path("f").iterdir())

    def stopped(path, target):
        if Path(target) == Path("f") and not Path("f").exists() and "replaced" not in str(path):
            raise KeyboardInterrupt
        return replace(path, target)

    monkeypatch.setattr("lmplay.files._exchange", lambda *_: False)  # as on a file system that cannot
    monkeypatch.setattr(os, "replace", stopped)
    with suppress(KeyboardInterrupt):
        assert run(["m.lmp", "f"]) != 0
    assert sorted(Path("f").iterdir()) == before
    assert sorted(path.name for path in Path().iterdir()) == ["f", "m.lmp"]


def test_a_home_that_nobody_has_is_one_line(capsys):
    assert "~nobody-here" in refused(capsys, "~nobody-here/m.lmp", "out")


@pytest.mark.parametrize(("flags", "words"), [
    (["--gguf", "m.gguf", "--license", "mit"], "--license: only for a FOLDER"),
    (["--gguf", "m.gguf", "--license", "mit", "--max-shard-size", "1GB"], "--license and --max-shard-size: only for a FOLDER"),
    (["--adapter-only", "a", "--dtype", "float16"], "leave --dtype out"), (["--adapter-only", "a", "--max-shard-size", "1XB"], "leave --max-shard-size out"),
    (["--adapter-only", "a", "--license", "mit", "--no-tokenizer"], "leave --license and --no-tokenizer out")])
def test_flags_that_would_do_nothing_are_refused(capsys, flags, words):
    model_file(Path("m.lmp"))
    assert words in refused(capsys, "./m.lmp", *flags)

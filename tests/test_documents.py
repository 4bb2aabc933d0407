"""Plans and settings files of strangers: what is too large, too deep or said twice is refused in a line, before it is built."""
import json
import os

import pytest

from lmplay.train.__main__ import main

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(f"{c}: &{c} [{', '.join([f'*{b}'] * 9)}]\n" for b, c in zip("abcdefghijkl", "bcdefghijklm", strict=True))
MERGES = "a: &a {x: 1}\n" + "".join(f"{c}: &{c} {{<<: [{', '.join([f'*{b}'] * 9)}]}}\n" for b, c in zip("abcdefghijkl", "bcdefghijklm", strict=True))
# What is in the file, and what is said of it.
HOSTILE = {
    "bomb.yaml": (BOMB, "aliases written out"),
    "merges.yaml": (MERGES, "aliases written out"),
    "many.json": (json.dumps({"a": [0] * 200_000}), "more than 100,000 values"),
    "many.yaml": ("a: [" + "0, " * 200_000 + "]", "more than 100,000 values"),
    "long.json": (json.dumps({"$description": "x" * (5 << 20)}), "bytes, allowed are 4,194,304"),
    "long.yaml": ("$description: " + "x" * (5 << 20), "bytes, allowed are 4,194,304"),
    "deep.json": ("[" * 100_000, "within each other"),
    "deeper.json": ('{"a":' * 500 + "1" + "}" * 500, "within each other"),
    "deep.yaml": ("[" * 20_000, "within each other"),
    "steps.yaml": ("- " * 20_000 + "1", "within each other"),
    "digits.json": ('{"a": {"samples": ' + "9" * 5000 + "}}", "not valid JSON (a whole number of more than 4,300 digits)"),
    "digits.yaml": ("a: {samples: " + "9" * 5000 + "}", "not valid YAML (a whole number of more than 4,300 digits)"),
    "twins.json": ('{"one": {"dataset": "wikitext"}, "one": {"dataset": "wikitext"}}', "'one' stands twice"),
    "twins.yaml": ("one: {dataset: wikitext}\none: {dataset: wikitext}\n", "'one' stands twice"),
    "quoted.yaml": ("1: {dataset: wikitext}\n'1': {dataset: wikitext}\n", "'1' stands twice"),
    "itself.yaml": ("a: &a [*a]\n", "alias 'a'"),
    "nothing.yaml": ("a: *b\n", "alias 'b'"),
    "date.yaml": ("a: {dataset: 2020-13-45}\n", "not valid YAML"),
    "tag.yaml": ("a: !!int x\n", "not valid YAML"),
    "bool.yaml": ("a: !!bool x\n", "not valid YAML"),
    "code.yaml": ("a: !!python/object/apply:os.system [false]\n", "not valid YAML"),
    "key.yaml": ("? [a]\n: b\n", "not valid YAML"),
}


@pytest.mark.parametrize("flag", ["--training-plan", "--use-config"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_document_is_refused_in_a_line(tmp_path, capsys, name, flag):
    text, complaint = HOSTILE[name]
    (tmp_path / name).write_text(text)
    assert main([flag, str(tmp_path / name), "--dump-config", str(tmp_path / "out.json")] if flag == "--use-config" else [flag, str(tmp_path / name)]) == 2
    said = capsys.readouterr().err
    assert complaint in said
    assert name in said
    assert len(said.splitlines()) == 1
    assert len(said) < 500
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize(("flag", "content"), [
    ("--training-plan", {f"stage{number}": {"datset": 1, "lr": "x", "epohcs": number} for number in range(10_000)}),
    ("--training-plan", {"one": {f"key{number}": 1 for number in range(90_000)}}),
    ("--training-plan", {"one": {"dataset": [f"missing{number}.txt" for number in range(90_000)]}}),
    ("--use-config", {f"key{number}": 1 for number in range(90_000)}),
])
def test_of_very_many_faults_the_first_are_told(tmp_path, capsys, flag, content):
    path = tmp_path / "faults.json"
    path.write_text(json.dumps(content))
    assert main([flag, str(path)]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 51
    assert "more faults" in said[-1]


def test_a_fault_of_a_very_long_key_is_cut(tmp_path, capsys):
    path = tmp_path / "key.json"
    path.write_text(json.dumps({"x" * 4_000_000: 1}))
    assert main(["--training-plan", str(path)]) == 2
    assert len(capsys.readouterr().err) < 10_000


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes of Unix")
@pytest.mark.parametrize("flag", ["--training-plan", "--use-config"])
def test_what_could_go_on_for_ever_is_no_document(tmp_path, capsys, flag):
    os.mkfifo(tmp_path / "pipe.json")
    for path in (tmp_path / "pipe.json", "/dev/zero"):
        assert main([flag, str(path)]) == 2
        assert "not a regular file" in capsys.readouterr().err
    assert main([flag, str(tmp_path)]) == 2


def test_aliases_and_merges_of_a_usual_size_are_read(tmp_path, capsys):
    path = tmp_path / "plan.yaml"
    path.write_text("x: &x {dataset: a/b, lr: 1.0e-3}\ny: {<<: *x, lr: 2.0e-3}\nz: *x\n")
    assert main(["--training-plan", str(path), "--exp", "nonsense"]) == 2  # the plan is right, and what is wrong comes after it
    assert "nonsense" in capsys.readouterr().err


@pytest.mark.parametrize(("flag", "content"), [
    *(("--training-plan", {"one": {"dataset": "wikitext", key: 10**400}}) for key in ("samples", "tokens", "epochs", "batch_size", "context_len", "lr")),
    *(("--use-config", {key: 10**400}) for key in ("num_blocks", "batch_size", "mini_batch_tokens", "max_steps", "lr", "dropout", "seed")),
])
def test_a_number_beyond_all_use_is_refused(tmp_path, capsys, flag, content):
    path = tmp_path / "numbers.json"
    path.write_text(json.dumps(content))
    assert main([flag, str(path)]) == 2
    assert "allowed" in capsys.readouterr().err

"""`lmp_generator --chat`, `--ask` and `--stop`."""
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
from helpers import ENVIRONMENT
from helpers import generate as run
from hypothesis import given
from hypothesis import strategies as st

from lmplay.data.samples import choose_reading
from lmplay.writing.stops import cut_at_stops


def test_one_question_gets_its_answer_and_nothing_else(capsys, trained):
    code, out, err = run(capsys, "--out-dir", trained, "--ask", "Who?", "--greedy")
    assert (code, out) == (0, "A cat.\n")
    assert "no chats" not in err


def talk(capsys, monkeypatch, trained, lines, *more):
    monkeypatch.setattr("sys.stdin", io.StringIO("".join(line + "\n" for line in lines)))
    return run(capsys, "--out-dir", trained, "--chat", "--greedy", *more)


def test_a_conversation_remembers_forgets_and_is_saved_as_training_data(capsys, monkeypatch, trained, tmp_path):
    file = tmp_path / "c.jsonl"
    lines = ["Who?", "", "Where?", f"/save {file}", f"/save {file}", "/nonsense", "/reset", "/save x", "/system Be kind.", "Who?",
             f"/save {tmp_path}/d.jsonl", "/quit", "Who?"]
    code, out, err = talk(capsys, monkeypatch, trained, lines)
    assert code == 0
    assert out.startswith("A cat.\nHere.\n")
    assert out.count("\n") == 3
    for words in ("4 messages", "is not overwritten", "/nonsense: there is no such command", "forgotten", "nothing has been said"):
        assert words in err
    row = json.loads(file.read_text())
    assert [message["content"] for message in row["messages"]] == ["Who?", "A cat.", "Where?", "Here."]
    assert len(choose_reading("c", row, None)(row).turns) == 4
    assert json.loads((tmp_path / "d.jsonl").read_text())["messages"][0] == {"role": "system", "content": "Be kind."}


def test_what_no_longer_fits_is_told(capsys, monkeypatch, trained):
    _, _, err = talk(capsys, monkeypatch, trained, ["Who?"] * 8, "--max-tokens", "8")
    assert "no longer fit" in err


def test_a_question_that_does_not_fit_is_told(capsys, trained):
    assert "only its end is read" in run(capsys, "--out-dir", trained, "--ask", "Who? " * 60, "--greedy", "--max-tokens", 4)[2]


def test_a_stop_text_ends_a_text_before_it(capsys, trained):
    flags = ["--out-dir", trained, "--greedy"]
    assert run(capsys, *flags, "--ask", "Who?", "--stop", "zzz", "--stop", "at")[1] == "A c\n"
    assert run(capsys, *flags, "--prompt", "Who?", "--stop", ".", "--json")[1] == '{"prompt": "Who?", "title": null, "sample": 1, "text": "A cat"}\n'


texts = st.text("ab.", max_size=12)


@given(text=texts, stops=st.lists(st.text("ab.", min_size=1, max_size=3), max_size=3))
def test_what_has_been_shown_is_never_taken_back(text, stops):
    expected, _ = cut_at_stops(text, stops, is_whole=True)
    assert not any(stop in expected for stop in stops)
    assert expected == text or any(text.startswith(expected + stop) for stop in stops)
    for length in range(len(text) + 1):
        shown, stopped = cut_at_stops(text[:length], stops, is_whole=False)
        assert expected.startswith(shown)
        assert not stopped or shown == expected


@pytest.mark.parametrize(("arguments", "words"), [
    (["--chat", "--ask", "a"], "--chat and --ask together"), (["--chat", "--json"], "--json"), (["--ask", "a", "--title", "t"], "--title"),
    (["--prompt", "a", "--system", "s"], "--system"), (["--chat", "--stop", ""], "--stop"), (["--chat", "--prompt", "a"], "--prompt and --chat together"),
    (["--ask", "", "--prompt", "a"], "--prompt and --ask together")])
def test_what_does_not_go_together_is_told(capsys, trained, arguments, words):
    code, out, err = run(capsys, "--out-dir", trained, *arguments)
    assert (code, out) == (2, "")
    assert words in err


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="terminals of Unix")
def test_ctrl_c_ends_an_answer_and_then_the_program(trained):
    import pty

    screen, terminal = pty.openpty()
    command = [sys.executable, "-m", "lmplay.generate", "--out-dir", str(trained), "--chat", "--temperature", "9", "--max-tokens", "100000", "--device", "cpu"]
    with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT, start_new_session=True) as run:
        assert b"Type a question" in run.stderr.readline() + run.stderr.readline()
        for _ in range(2):
            os.write(screen, b"Who?\n")
            assert run.stdout.read(30)
            run.send_signal(signal.SIGINT)
            time.sleep(0.3)
        assert run.poll() is None
        os.write(screen, b"/quit\n")
        _, complaints = run.communicate(timeout=60)
    os.close(screen)
    os.close(terminal)
    assert run.returncode == 0, complaints
    assert b"Traceback" not in complaints


def test_a_line_that_is_no_text_does_not_end_a_conversation(capsys, monkeypatch, trained):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9\nWho?\n/save ~nobody-here/c.jsonl\nWhere?\n"), encoding="utf-8"))
    code, out, err = run(capsys, "--out-dir", trained, "--chat", "--greedy")
    assert code == 0
    assert out.count("\n") == 3
    assert "~nobody-here/c.jsonl cannot be written" in err


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_a_prompt_that_is_no_text_is_one_line(capsys, monkeypatch, trained, errors):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"caf\xe9"), encoding="utf-8", errors=errors))
    code, _, err = run(capsys, "--out-dir", trained)
    assert (code, err.splitlines()[-1]) == (2, "lmp_generator: standard input: it is no UTF-8 text.")
    for flag in ("--prompt", "--ask", "--system"):
        code, _, err = run(capsys, "--out-dir", trained, flag, "caf\udce9", *["--chat"] * (flag == "--system"))
        assert (code, err.splitlines()[-1]) == (2, f"lmp_generator: {flag}: it is no UTF-8 text.")


def test_prompts_are_lines_of_a_file_and_answers_are_lines_of_json(capsys, trained, tmp_path):
    (tmp_path / "p.jsonl").write_text('"a\u2028b\x85c"\r\n"\\u2028"\n', encoding="utf-8")
    code, out, _ = run(capsys, "--out-dir", trained, "--prompts", tmp_path / "p.jsonl", "--json", "--greedy", "--max-tokens", 1)
    assert code == 0
    assert [json.loads(line)["prompt"] for line in out.splitlines()] == ["a\u2028b\x85c", "\u2028"]
    (tmp_path / "p.jsonl").write_text('"\\ud800"\n')
    code, _, err = run(capsys, "--out-dir", trained, "--prompts", tmp_path / "p.jsonl")
    assert code == 2
    assert "prompt 1: allowed is a JSON string" in err

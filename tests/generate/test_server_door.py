"""`lmp_generator --serve` from the command line: what is refused, and how it ends."""
import contextlib
import http.client
import shutil
import signal
import socket
import subprocess
import sys
import time

import pytest
import warm
from helpers import ENVIRONMENT
from helpers import generate as run

pytest.importorskip("uvicorn")
from served import port_of, served


@pytest.mark.parametrize(("arguments", "words"), [
    (["--serve", "nowhere.invalid:80"], "no such address as nowhere.invalid"), (["--serve", "127.0.0.1:99999"], "a port up to 65535"),
    (["--serve", "127.0.0.1:x"], "allowed is HOST:PORT"), (["--serve", "::1"], "allowed is HOST:PORT"), (["--serve", ""], "allowed is HOST:PORT"),
    (["--serve", "a" * 300 + ":1"], "no such address"), (["--serve", "203.0.113.7:0", "--token", "t"], "no such address; give one that it has"),
    (["--serve", "0.0.0.0:0"], "needs a token"), (["--serve", "[::]:0"], "needs a token"), (["--serve", "--token", "a b"], "without spaces"),
    (["--serve", "--token", ""], "the value is empty"), (["--serve", "--prompt", "a"], "--prompt and --serve together"),
    (["--serve", "--chat"], "--chat and --serve together"), (["--serve", "--seed", "1"], "requests have `seed`"),
    (["--serve", "--samples", "2"], "requests have `n`"), (["--serve", "--limit-queue", "-1"], "--limit-queue -1: allowed is a number from 0"),
    (["--prompt", "a", "--token", "t"], "--token: only with --serve"), (["--prompt", "a", "--grace", "1"], "--grace: only with --serve"),
    (["--prompt", "a", "--model", "a", "--model", "b"], "several models are for --serve"), (["--serve", "--model", "missing"], "no such file"),
    (["--serve", "--model", "gpt2ish_model", "--model", "gpt2ish_model.lmp"], "two models with the name")])
def test_what_is_wrong_is_said_in_a_line(capsys, monkeypatch, trained, arguments, words):
    monkeypatch.delenv("LMP_TOKEN", raising=False)
    code, out, err = run(capsys, "--out-dir", trained, *arguments)
    assert (code, out) == (2, "")
    assert words in err
    assert len(err.splitlines()) == 1


def test_a_port_in_use_and_a_damaged_model(capsys, trained, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, _, err = run(capsys, "--out-dir", trained, "--serve", f"127.0.0.1:{taken.getsockname()[1]}")
        assert (code, len(err.splitlines())) == (2, 1)
        assert "is in use by another program" in err
    content = (trained / "gpt2ish_model.lmp").read_bytes()
    (tmp_path / "damaged.lmp").write_bytes(content[:len(content) // 2] + bytes(100) + content[len(content) // 2 + 100:])
    code, _, err = run(capsys, "--model", tmp_path / "damaged.lmp", "--serve", "127.0.0.1:0")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "damaged.lmp" in err


def test_without_the_packages_it_says_what_to_install(capsys, trained, monkeypatch):
    for name in [name for name in sys.modules if name.startswith(("lmplay.web.guard", "lmplay.web.serving", "lmplay.generate.server"))]:
        monkeypatch.delitem(sys.modules, name)
        monkeypatch.delattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2], raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    code, _, err = run(capsys, "--out-dir", trained, "--serve")
    assert (code, err) == (2, "lmp_generator: --serve: the package uvicorn is not installed; pip install 'lmplay[serve]'.\n")


def test_two_models_side_by_side(trained, tmp_path):
    shutil.copy(trained / "gpt2ish_model.lmp", tmp_path / "other.lmp")
    with served("--model", trained / "gpt2ish_model.lmp", "--model", tmp_path / "other.lmp", "--greedy", "--device", "cpu") as client:
        assert [model["id"] for model in client.ask("/v1/models")[1]["data"]] == ["gpt2ish_model", "other"]
        for name in ("gpt2ish_model", "other"):
            status, answer = client.ask("/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Who?"}]})
            assert (status, answer["model"], answer["choices"][0]["message"]["content"]) == (200, name, "A cat.")
        assert client.ask("/v1/completions", {"prompt": "a"})[0] == 400


def until_closed(port):
    """Wait until a server takes no more connections: it has heard."""
    with contextlib.suppress(OSError):
        while True:
            socket.create_connection(("127.0.0.1", port)).close()
            time.sleep(0.05)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_request_to_stop_ends_it_and_frees_the_port(trained, number, code):
    command = ["-m", "lmplay.generate", "--out-dir", str(trained), "--serve", "127.0.0.1:0", "--as", "text", "--device", "cpu"]
    with warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        port = port_of(process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions", b'{"prompt": "Who", "max_tokens": 60, "stream": true, "temperature": 2}')
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: {")
        process.send_signal(number)
        assert answer.read().endswith(b"data: [DONE]\n\n")  # what is being written is written to its end
        _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints.strip()) == (code, "")
    socket.create_server(("127.0.0.1", port)).close()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize(("numbers", "code"), [([signal.SIGINT, signal.SIGINT], 130), ([getattr(signal, "SIGHUP", None)], 143)])
def test_what_is_cut_off_at_the_end_makes_no_noise(trained, numbers, code):
    command = ["-m", "lmplay.generate", "--out-dir", str(trained), "--serve", "127.0.0.1:0", "--as", "text", "--device", "cpu", "--limit-tokens", "1000000",
               "--grace", "0" if len(numbers) == 1 else "60"]
    with warm.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT) as process:
        port = port_of(process.stdout.readline())
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("POST", "/v1/completions", b'{"prompt": "Who", "max_tokens": 1000000, "n": 16, "stream": true, "temperature": 2}')
        answer = connection.getresponse()
        for number in numbers:
            assert answer.readline()
            process.send_signal(number)
            until_closed(port)
        _, complaints = process.communicate(timeout=60)
    assert (process.returncode, complaints.strip()) == (code, "")

"""Signals in the first moments of the programs: the documented exit codes, and no traceback."""
import os
import signal
import subprocess
import sys
import time

import pytest
from curves import make_run
from helpers import ENVIRONMENT, TINY

pytestmark = pytest.mark.skipif(os.name == "nt", reason="signals of Unix")
CODES = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143), (signal.SIGUSR2, 75)]
# What is imported first by each program after its door; a signal comes while it is imported.
PROGRAMS = [(room, number, code) for room in ("train", "generate", "plotstats") for number, code in CODES]


@pytest.mark.parametrize(("room", "number", "code"), PROGRAMS)
def test_a_signal_that_comes_before_the_first_import_of_the_program_ends_it_as_documented(tmp_path, room, number, code):
    """The door's own import of its program is what sends it."""
    program = ("import os, sys, importlib.abc\n"
               "class Send(importlib.abc.MetaPathFinder):\n"
               "    def find_spec(self, name, path, target=None):\n"
               f"        if name == 'lmplay.{room}.command':\n"
               f"            os.kill(os.getpid(), {int(number)})\n"
               f"from lmplay.{room}.__main__ import main\n"
               "sys.meta_path.insert(0, Send())\n"
               "sys.exit(main())\n")
    done = subprocess.run([sys.executable, "-c", program, "--help"], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, check=False)
    assert done.returncode == code, done.stderr
    assert f"lmp_{ {'train': 'trainer', 'generate': 'generator'}.get(room, room)}: stopped" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("room", ["train", "generate", "plotstats"])
def test_the_door_imports_nothing_before_it_hears(tmp_path, room):
    """Whatever it imports takes time, in which a signal has the effect it has on any program."""
    program = (f"import lmplay.{room}.__main__, sys\n"
               "print(*sorted(name for name in sys.modules if name.startswith('lmplay') or name in ('argparse', 'json', 'dataclasses', 'numpy', 'torch')))")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, check=True)
    assert set(done.stdout.split()) == {"lmplay", f"lmplay.{room}", f"lmplay.{room}.__main__", "lmplay.signals"}


def test_a_request_to_save_before_there_is_anything_changes_nothing(tmp_path):
    program = ("import os, signal, sys\nfrom lmplay.signals import listen\nlisten('lmp_trainer')\nos.kill(os.getpid(), signal.SIGUSR1)\n"
               "from lmplay.train.__main__ import main\nsys.exit(main())")
    done = subprocess.run([sys.executable, "-c", program, "--exp", "list"], capture_output=True, text=True, env=ENVIRONMENT, cwd=tmp_path, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_signal_while_a_compiled_module_is_imported_ends_the_program_as_documented(tmp_path, number, code):
    """Such a module turns an exception that comes meanwhile into an error of its own."""
    (tmp_path / "sent.py").write_text("import sys\n"
                                      "class Send:\n"
                                      "    def find_spec(self, name, path, target=None):\n"
                                      "        if name == 'pydantic_core':\n"
                                      "            import os\n"
                                      f"            os.kill(os.getpid(), {int(number)})\n"
                                      "sys.meta_path.insert(0, Send())\n"
                                      "from lmplay.train.__main__ import main\n")
    done = subprocess.run([sys.executable, "-c", "from sent import main; main()", "--dataset", "builtin:tales", "--describe"], capture_output=True, text=True,
                          env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}, cwd=tmp_path, check=False)
    assert done.returncode == code
    assert done.stderr.strip() == "lmp_trainer: stopped before training began; nothing has been changed, and the same command goes on."


@pytest.mark.slow
@pytest.mark.parametrize(("room", "number", "code"), PROGRAMS)
def test_signals_in_the_first_second(tmp_path, room, number, code):
    """From the first line of its own on; how long Python itself takes to start depends on the machine."""
    arguments = {"train": ["--dataset", "builtin:tales", "--tokenizer", "bytes", "--describe"], "generate": ["--prompt", "a"], "plotstats": []}[room]
    program = ("import sys\nfrom lmplay import signals\nlisten = signals.listen\n"
               "def say(*arguments):\n    listen(*arguments)\n    print('listening', flush=True)\n"
               f"signals.listen = say\nfrom lmplay.{room}.__main__ import main\nsys.exit(main())")
    for wait in (0, 0.05, 0.1, 0.2, 0.4, 0.8):
        run = subprocess.Popen([sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT,
                               cwd=tmp_path)
        assert run.stdout.readline() == "listening\n"
        time.sleep(wait)
        run.send_signal(number)
        _, complaints = run.communicate(timeout=60)
        assert run.returncode in (code, 0, 2), complaints  # 0, 2: it had ended before
        assert "Traceback" not in complaints


@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_picture_that_is_not_done_leaves_nothing_behind(tmp_path, number, code):
    make_run(tmp_path, "a")
    program = ("import os, sys\nfrom lmplay.plotstats.__main__ import main\nsync = os.fsync\n"
               f"os.fsync = lambda handle: (os.kill(os.getpid(), {int(number)}), sync(handle))\nsys.exit(main())")
    before = sorted(tmp_path.iterdir())
    done = subprocess.run([sys.executable, "-c", program, "--out-dir", str(tmp_path)], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert (done.returncode, done.stderr.strip()) == (code, "lmp_plotstats: stopped.")
    assert sorted(tmp_path.iterdir()) == before


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    out = tmp_path_factory.mktemp("trained")
    arguments = [*TINY, "--dataset", "builtin:tales", "--max-steps", "1", "--out-dir", str(out)]
    assert subprocess.run([sys.executable, "-m", "lmplay.train", *arguments], capture_output=True, env=ENVIRONMENT, check=False).returncode == 75
    return out


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), CODES)
def test_a_text_that_is_not_done_ends_in_a_line(trained, number, code):
    before = sorted(trained.iterdir())
    command = [sys.executable, "-m", "lmplay.generate", "--out-dir", str(trained), "--prompt", "abc", "--max-tokens", "1000000"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=ENVIRONMENT) as run:
        assert run.stdout.read(3) == b"abc"
        run.send_signal(number)
        _, complaints = run.communicate(timeout=60)
    assert run.returncode == code, complaints
    assert b"Traceback" not in complaints
    assert sorted(trained.iterdir()) == before

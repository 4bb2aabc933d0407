"""Whole runs that read from the hub: it goes away, is waited for, or is not needed."""
import signal
import subprocess
from types import SimpleNamespace

import pytest
import warm
from helpers import ENVIRONMENT, TINY, compare_runs, trainer, write_plan, write_rows


@pytest.fixture
def plan():
    return [SimpleNamespace(path=f"o/{name}", config=None, split=None, revision=None, streaming=None) for name in ("plain", "lines")]


@pytest.fixture
def texts(hub_root):
    """A data set of many small files: a block of rows is made of several."""
    for number in range(10):
        folder = hub_root / "o/texts"
        folder.mkdir(exist_ok=True)
        rows = [{"text": f"The cat number {i} sat down. The dog {i * 7} did not."} for i in range(number * 32, number * 32 + 32)]
        write_rows(folder / f"train-{number}.jsonl", rows)
    (hub_root / "o/texts/README.md").write_text("""---
dataset_info:
  features: [{name: text, dtype: string}]
  splits: [{name: train, num_bytes: 1, num_examples: 320}]
---
""")


@pytest.fixture
def run(server, texts, tmp_path):
    """Run `lmp_trainer` as a user does, over 1.5 epochs of the data set."""
    plan = write_plan(tmp_path, {"s": {"dataset": "o/texts", "epochs": 1.5, "shuffle": {"buffer": 50}}})
    arguments = ["--training-plan", plan, *TINY, "--batch-size", "8", "--save-interval", "1000", "--validation-interval", "24"]

    def run(out, *more, run=trainer, **keys):
        environment = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": server.url, "HF_HOME": str(tmp_path / "home"), **keys}
        return run(*arguments, *more, "--out-dir", out, env=environment)

    return run


@pytest.mark.slow
def test_a_run_ends_when_the_hub_stays_away_and_goes_on_as_if_nothing_had_been(server, run, tmp_path):
    whole = run(tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr
    reads = server.asked("train-")
    assert reads > 15
    server.fault("train-", status=502, times=None, after=int(0.7 * reads))
    ended = run(tmp_path / "parts", LMP_HUB_PATIENCE="2")
    server.faults.clear()
    assert ended.returncode == 75, ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout.count("source o/texts: the hub does not answer (HTTP 502), trying again in 1 s; the position is kept") == 1
    assert "the hub does not answer (HTTP 502), after" in ended.stderr
    assert "The state is saved; to go on when it is back:\n  lmp_trainer --training-plan" in ended.stderr
    assert run(tmp_path / "parts").returncode == 0
    assert compare_runs(tmp_path / "whole", tmp_path / "parts") == []


@pytest.mark.slow
def test_ctrl_c_is_heard_while_the_hub_is_waited_for(server, run, tmp_path):
    server.fault("train-", status=429, headers={"Retry-After": "500"}, times=None, after=24)
    process = run(tmp_path / "out", run=lambda *arguments, env: warm.Popen(
        ["-m", "lmplay.train", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**ENVIRONMENT, **env}))
    said = []
    for line in process.stdout:
        said.append(line)
        if "trying again in 500 s" in line:
            process.send_signal(signal.SIGINT)
            break
    out, error = process.communicate(timeout=60)
    assert process.returncode == 130, (said, out, error)
    assert "Traceback" not in error
    assert list((tmp_path / "out").glob("*.lmp"))


@pytest.mark.slow
def test_a_plan_that_has_been_saved_needs_no_hub(server, run, tmp_path):
    saved = run(tmp_path / "out", "--save-datasets")
    assert saved.returncode == 0, saved.stderr
    assert "o/texts: saved 320 rows in" in saved.stdout
    server.stop()
    done = run(tmp_path / "out")
    assert done.returncode == 0, done.stderr

"""The package of docs/experiments.md, installed as it stands there, trains, goes on, and writes."""
import json
import re
import subprocess
import sys

import pytest
from helpers import ENVIRONMENT, ROOT, load, trainer, write_plan


def block(language):
    [found] = re.findall(rf"```{language}\n(.*?)```", (ROOT / "docs" / "experiments.md").read_text(encoding="utf-8"), re.DOTALL)
    return found


@pytest.mark.slow
def test_the_package_of_the_docs(tmp_path):
    pytest.importorskip("setuptools")
    source, site, out = tmp_path / "source", tmp_path / "site", tmp_path / "out"
    (source / "looped").mkdir(parents=True)
    (source / "looped" / "__init__.py").touch()
    (source / "looped" / "model.py").write_text(block("python"))
    (source / "pyproject.toml").write_text(block("toml"))
    assert len(block("python").splitlines()) <= 30
    subprocess.run([sys.executable, "-m", "pip", "install", "-q", "--no-build-isolation", "--no-deps", "--no-index", "--disable-pip-version-check",
                    "--target", site, source], check=True, cwd=tmp_path, timeout=120)
    env = {"PYTHONPATH": f"{site}:{ENVIRONMENT.get('PYTHONPATH', ROOT)}"}
    assert "looped 1.0" in trainer("--exp", "list", env=env, cwd=tmp_path).stdout
    plan = write_plan(tmp_path, {"$model": {"settings": {"loops": 3}}, "a": {"dataset": "builtin:tales", "samples": 12}})
    flags = ("--exp", "looped", "--training-plan", plan, "--out-dir", out, "--batch-size", "8", "--context-len", "48", "--tokenizer", "bytes",
             "--device", "cpu", "--embed-dim", "16", "--activation-checkpointing", "on", "--pack", "on", "--validation-interval", "0")
    stopped = trainer(*flags, "--max-steps", "2", env=env, cwd=tmp_path)
    assert stopped.returncode == 75, stopped.stderr
    done = trainer(*flags, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    model = load(out / "looped_model.lmp")["model"]
    assert model["state_args"]["experiment"] == "looped"
    assert model["state_args"]["args"] == {"num_blocks": 2, "embed_dim": 16, "num_heads": 4, "context_len": 48, "loops": 3}
    losses = json.loads((out / "looped_model_train_stats.json").read_text())["columns"]["loss"]
    assert losses[-1] < losses[0]
    wrong = trainer(*flags, "--embed-dim", "20", "--model", "other", env=env, cwd=tmp_path)
    assert wrong.returncode == 2
    assert "a head of width 5 has an odd number" in wrong.stderr

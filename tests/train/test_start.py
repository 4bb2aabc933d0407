"""The start of a run: what it imports and what it doesn't."""
import subprocess
import sys

import pytest
from helpers import ENVIRONMENT, TINY, sentences, write_rows

# Ends the process after its first step, with the names of the heavy libraries that have been imported, but for those that torch itself needs.
WATCH = """
import subprocess, sys
from lmplay.track.callback import Callback
HEAVY = ("torch._dynamo", "torch._inductor", "sympy", "transformers", "datasets", "pandas", "pyarrow", "matplotlib", "huggingface_hub")

class Watch(Callback):
    def train(self, figures):
        print(*(set(HEAVY) & set(sys.modules)), file=sys.stderr, flush=True)
        import os
        os._exit(33)
"""


def loaded_by(program: list, folder, *arguments) -> set:
    done = subprocess.run([sys.executable, *program, *map(str, arguments)], capture_output=True, text=True, check=False, cwd=folder, env=ENVIRONMENT)
    assert done.returncode == 33, done.stderr
    return set(done.stderr.split())


@pytest.mark.parametrize(("tokenizer", "flags"), [("bytes", ["--recipe", "modern", "--exp", "modern"]), ("train:300", [])])
def test_the_first_step_needs_no_compiler_and_no_library_of_models_or_data(tmp_path, tokenizer, flags):
    (tmp_path / "watch.py").write_text(WATCH)
    write_rows(tmp_path / "texts.jsonl", [{"text": sentences(4)} for _ in range(30)])
    by_torch = loaded_by(["-c", "import torch, watch; watch.Watch().train({})"], tmp_path)
    by_run = loaded_by(["-m", "lmplay.train"], tmp_path, *TINY, *flags, "--tokenizer", tokenizer, "--dataset", "texts.jsonl", "--callback", "watch:Watch")
    assert by_run - by_torch == set()

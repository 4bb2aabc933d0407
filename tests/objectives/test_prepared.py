"""What is sent of an objective to the processes that prepare data."""
import pickle
import subprocess
import sys
from functools import partial

from helpers import ENVIRONMENT
from texts import BYTES

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.objectives import load_objective
from lmplay.plan.names import OBJECTIVES

GIVEN = {"distill": {"teacher": "mine"}, "sft": {"per": "sample"}, "grpo": {"answer_tokens": 9}}
PROCESS = """
import pickle, sys
for prepare, sample, expected in pickle.load(sys.stdin.buffer):
    assert [(piece.tokens.tolist(), piece.weight, piece.preferred) for piece in prepare(sample)] == expected
print(sorted({"torch", "numpy", "lmplay.objectives"} & sys.modules.keys()))
"""


def test_a_process_that_prepares_data_needs_no_torch_whatever_the_objective():
    """Each would take memory and a second to start."""
    sent = []
    for name in OBJECTIVES:
        objective = load_objective(name, GIVEN.get(name, {}))
        answers = {"rejected": Sample("a question\n\n", "no. ")} if objective.reads_pairs else {}
        sample, prepare = Sample("a question\n\n", "abcde. " * 30, **answers), partial(objective.prepare, cutter=Cutter(BYTES, 64))
        pieces = prepare(sample)
        assert pieces
        sent.append((prepare, sample, [(piece.tokens.tolist(), piece.weight, piece.preferred) for piece in pieces]))
    done = subprocess.run([sys.executable, "-c", PROCESS], input=pickle.dumps(sent), env=ENVIRONMENT, capture_output=True, check=False)
    assert (done.stdout.decode().split(), done.returncode) == (["['numpy']"], 0), done.stderr.decode()

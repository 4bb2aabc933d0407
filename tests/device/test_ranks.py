"""Ranks that train together: each has its share, and their sums are those of a single process."""
import json

import pytest
import several
import torch
from hypothesis import given
from hypothesis import strategies as st

from lmplay.device.ranks import Ranks
from lmplay.device.runtime import Runtime, choose_device_of_rank
from lmplay.errors import UserError
from lmplay.launch import Launch, launch
from lmplay.plan.settings import Settings


class Member(Ranks):
    """One of several ranks; it does nothing together with the others."""

    def __init__(self, rank: int, size: int):
        self.rank, self.size = rank, size


@given(st.lists(st.integers(1, 100), max_size=20), st.integers(1, 9))
def test_shares_are_all_items_once_and_about_as_costly(costs, size):
    costs.sort(reverse=True)
    shares = [list(Member(rank, size).share(costs, float)) for rank in range(size)]
    assert sorted(number for share in shares for number, _ in share) == list(range(len(costs)))
    assert all(costs[number] == cost for share in shares for number, cost in share)
    totals = [sum(cost for _, cost in share) for share in shares]
    assert max(totals) <= max([sum(costs) / size * 4 / 3 + max(costs, default=0) / 3, *costs[:1]])
    assert max(totals) - min(totals) <= max(costs, default=0)
    assert [Member(rank, size).is_main for rank in range(size)] == [True] + [False] * (size - 1)


def test_a_single_process_changes_nothing():
    ranks = Runtime(Settings(device="cpu")).ranks
    tensor, items = torch.tensor([0.1, float("nan"), -0.0]), [3, 1, 2]
    assert ranks.sum([tensor])[0] is tensor
    weight = torch.nn.Parameter(torch.zeros(3))
    weight.grad = tensor
    with ranks.summing([weight, torch.nn.Parameter(torch.zeros(2))]):
        pass
    assert weight.grad is tensor
    assert list(ranks.share(items, float)) == list(enumerate(items))
    random = torch.get_rng_state()
    with ranks.random_numbers() as begin:
        begin(7)
    assert torch.equal(random, torch.get_rng_state())
    assert (ranks.is_main, ranks.rank, ranks.size) == (True, 0, 1)


def test_the_place_of_a_process_is_what_the_launcher_says():
    place = {"RANK": "5", "WORLD_SIZE": "8", "LOCAL_RANK": "1", "MASTER_ADDR": "one", "MASTER_PORT": "29500"}
    assert launch(place) == Launch(5, 8, 1)
    for alone in ({}, {"WORLD_SIZE": "4"}, {**place, "WORLD_SIZE": "1", "RANK": "0"}):
        assert launch(alone) == Launch()
    for wrong, word in (({"RANK": "8"}, "RANK is 8"), ({"RANK": "-1"}, "'-1'"), ({"LOCAL_RANK": "x"}, "LOCAL_RANK"), ({"MASTER_PORT": ""}, "MASTER_PORT")):
        with pytest.raises(UserError, match=word):
            launch({**place, **wrong})


def test_each_process_has_a_gpu_of_its_own(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    assert choose_device_of_rank(None, 2) == choose_device_of_rank("cuda", 2) == torch.device("cuda:2")
    assert choose_device_of_rank("cpu", 2) == torch.device("cpu")
    for name, local_rank, word in (("cuda:1", 0, "--device cuda:1"), ("mps", 0, "--device mps"), (None, 4, "4 GPUs here, and at least 5 processes")):
        with pytest.raises(UserError, match=word):
            choose_device_of_rank(name, local_rank)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)  # SLURM shows each process its own
    assert choose_device_of_rank(None, 3) == torch.device("cuda:0")


WORK = """
import json, sys, torch
from torch import nn
from lmplay.device.processes import Processes
from lmplay.device.gradients import GradientSums
from lmplay.launch import launch

place = launch()
ranks = Processes(place)
torch.manual_seed(place.rank)
model = nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 2), nn.Linear(2, 1))
model[1].bias.requires_grad = False
ranks.begin(torch.device("cpu"), model)
found = {"votes": [], "weights": [p.flatten().tolist() for p in model.parameters()]}
for step in range(3):
    ranks.begin_vote([float(step == ranks.rank), 0.0])
    found["votes"].append(ranks.end_vote())
found["exchanged"] = ranks.exchange({"rank": ranks.rank, "more": "x" * 3 ** ranks.rank})
total, ids = ranks.sum([torch.tensor([1.5, ranks.rank]), torch.tensor([[2 ** 40 + ranks.rank]])])
found["sums"] = [total.tolist(), ids.tolist(), str(ids.dtype)]
for number, bucket in enumerate((16, 1 << 20)):
    model.zero_grad()
    with GradientSums(model.parameters(), ranks._data, ranks._most, bucket):
        if ranks.rank:  # rank 0 has no backward pass; no rank uses the last layer
            model[1](model[0](torch.full((1, 3), float(ranks.rank)))).sum().backward()
    found[f"gradients {number}"] = [None if p.grad is None else p.grad.flatten().tolist() for p in model.parameters()]
ranks.place = (3, 7)
before, found["random"] = torch.get_rng_state(), []
with ranks.random_numbers() as begin:
    for number in range(4):
        begin(number)
        found["random"].append(float(torch.rand(())))
found["random kept"] = torch.equal(before, torch.get_rng_state())
print(json.dumps(found))
ranks.begin_vote([0.0])
ranks.end_vote()
ranks.leave()
"""


def test_three_processes_vote_exchange_and_sum():
    codes, outputs, complaints = several.run(3, "-c", WORK)
    assert codes == [0, 0, 0], complaints
    first, *others = map(json.loads, outputs)
    assert all(other == first for other in others)
    assert first["votes"] == [[1.0, 0.0]] * 3
    assert [one["rank"] for one in first["exchanged"]] == [0, 1, 2]
    assert first["sums"] == [[4.5, 3.0], [[3 * 2**40 + 3]], "torch.int64"]
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2), torch.nn.Linear(2, 1))
    assert first["weights"] == [parameter.flatten().tolist() for parameter in model.parameters()]  # those of rank 0
    (model[1](model[0](torch.full((1, 3), 1.0))).sum() + model[1](model[0](torch.full((1, 3), 2.0))).sum()).backward()
    expected = [None if parameter.grad is None else parameter.grad.flatten().tolist() for parameter in model.parameters()]
    expected[3] = expected[4] = expected[5] = None
    for number in range(2):
        assert [one is None for one in first[f"gradients {number}"]] == [one is None for one in expected]
        for one, two in zip(first[f"gradients {number}"], expected, strict=True):
            assert one == pytest.approx(two, rel=1e-5) if two is not None else one is None
    assert len(set(first["random"])) == 4
    assert first["random kept"]


@given(st.lists(st.integers(1, 100), min_size=1, max_size=20), st.integers(1, 9))
def test_ranks_with_parts_of_a_model_all_have_the_same_number_of_rounds(costs, size):
    members = [Member(rank, size) for rank in range(size)]
    for member in members:
        assert list(member.rounds(costs, float)) == [(number, item, True) for number, item in member.share(costs, float)]
        member.shards = True
    rounds = [list(member.rounds(costs, float)) for member in members]
    assert {len(one) for one in rounds} == {max(len(list(member.share(costs, float))) for member in members)}
    assert sorted(number for one in rounds for number, _, counts in one if counts) == list(range(len(costs)))
    assert all(item == (costs[number] if counts else min(costs)) for one in rounds for number, item, counts in one)


STUCK = """
import os, threading, time
from lmplay.device.processes import Processes
from lmplay.launch import launch

ranks = Processes(launch())
if ranks.rank:
    os.kill(os.getpid(), 9)
threading.Thread(target=lambda: ranks.swap([b"", b""]), daemon=True).start()
time.sleep(60)  # as a GPU that waits for the one that is gone
os._exit(5)
"""


def test_a_process_that_waits_for_a_device_ends_when_its_reading_thread_finds_that_another_has_gone():
    codes, _, complaints = several.run(2, "-c", STUCK)
    assert codes == [1, -9], complaints
    assert "rank 1" in complaints[0]
    assert "gone" in complaints[0]


CUT_OFF = """
import sys, threading, time
from lmplay.device.processes import Processes
from lmplay.launch import launch

ranks = Processes(launch())

class Silent:  # as a connection to another machine whose cable has been cut: no answer, no error
    def __getattr__(self, name):
        return lambda *arguments: threading.Event().wait()

def other_host(members):
    return [("left", pid) if not rank else ("right", pid) for rank, (_, pid) in enumerate(members)]

import socket
socket.gethostname = lambda: "right" if ranks.rank else "left"
ranks.members = other_host(ranks.members)
if ranks.rank:
    ranks._store = Silent()
    ranks.report("never heard", 1)
    lost = ranks.find_lost()
    print(lost.is_told_here, lost)
sys.stdout.flush()
ranks.begin_vote([0.0])
ranks.end_vote()
ranks.leave()
"""


def test_a_machine_that_nothing_comes_back_from_is_named_once_on_each_other_machine():
    codes, outputs, complaints = several.run(3, "-c", CUT_OFF)
    assert codes == [0, 0, 0], complaints
    assert [said.split()[:1] for said in outputs] == [[], ["True"], ["False"]]
    assert all("rank 0 (process " in said and " on left) has gone, or its machine, or the connection to it (127.0.0.1:" in said for said in outputs[1:])


SILENT_SAVE = """
import sys, threading
from lmplay.device.processes import Processes
from lmplay.launch import launch

ranks = Processes(launch())

class Silent:  # as a connection over a cable that has been cut
    def __getattr__(self, name):
        return lambda *arguments: threading.Event().wait()

store, ranks._store = ranks._store, Silent()
threading.Timer(0.5, ranks.knows.set).start()  # the main thread finds out
for ask in (lambda: ranks.post("save 1", "mine"), lambda: ranks.posted("save 1")):
    try:
        ask()
    except OSError as error:
        print(error.strerror)
sys.stdout.flush()
ranks._store = store
ranks.begin_vote([0.0])
ranks.end_vote()
ranks.leave()
"""


def test_a_save_whose_messages_get_no_answer_ends_once_the_others_are_known_to_have_gone():
    codes, outputs, complaints = several.run(2, "-c", SILENT_SAVE, timeout=60)
    assert codes == [0, 0], complaints
    assert list(outputs) == ["other processes have gone\n" * 2] * 2


LATE = """
import os, socket, sys, time
from lmplay.device.processes import Processes
from lmplay.launch import launch

place = launch()
socket.gethostname = lambda: f"machine {place.rank}"
Processes._watch = lambda ranks: ranks._closing.wait()  # none notices by itself
ranks = Processes(place)
if place.rank == 2:
    os.kill(os.getpid(), 9)
if place.rank == 1:
    time.sleep(7)  # a long step
else:
    print(ranks.find_lost())
sys.stdout.flush()
os._exit(0)
"""


def test_a_machine_that_has_not_noticed_yet_is_not_named_as_gone():
    codes, outputs, complaints = several.run(3, "-c", LATE, timeout=60)
    assert codes == [0, 0, -9], complaints
    assert "rank 2 (process" in outputs[0]
    assert "on machine 2) has gone" in outputs[0]
    assert "rank 1" not in outputs[0]

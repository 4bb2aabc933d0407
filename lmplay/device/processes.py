"""Several processes that train together, by torch.distributed: gloo on a CPU and for what is decided together, nccl for tensors on GPUs of NVIDIA.

Imports torch, and the ground. The processes are started by torchrun, or by anything else that sets its variables (:mod:`lmplay.launch`).
"""
from __future__ import annotations

import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..data.permutation import hash64
from ..errors import ElsewhereError, UserError
from ..launch import Launch
from ..modules.sharded import is_sharded, parts_of, place_of
from .gradients import GradientSums
from .random_state import restore_torch_random_state, torch_random_state
from .ranks import Ranks

# For all to start; for one operation, as the first rank may have long work that the others wait for (a save, a download): who has gone is found otherwise.
_START, _OPERATION = timedelta(minutes=10), timedelta(hours=6)
# Seconds between two signs of life, in which one must come, and that a process has to end by itself when another has gone: together less than 30.
_BEAT, _BEAT_WITHIN, _GRACE = 2.0, 18.0, 5.0
# Seconds in which the ranks that are left report, to find out which have gone; they are part of those 30, with one more.
_ROLL_CALL = 3.0
_ANSWER = 1.0  # seconds between two looks whether there is a roll call
_POLL = 0.05
_GO_ON = "What was saved is intact, and the same command continues from it."


T = TypeVar("T")


class Lost(ElsewhereError):
    """Other ranks have gone, or have reported a failure; `exit_code` is that of the failure, and the lowest rank that is left tells the user."""

    def __init__(self, text: str, exit_code: int, is_told_here: bool):
        super().__init__(text)
        self.exit_code, self.is_told_here = exit_code, is_told_here


class Processes(Ranks):
    """The ranks of processes that have been started together."""

    def __init__(self, launch: Launch):
        """Meet the others.

        :raises Lost: when they do not come.
        """
        self.rank, self.size, self.local_rank = launch.rank, launch.size, launch.local_rank
        self._vote: tuple[Tensor, Any] | None = None
        self.ask_step: Callable[[], bool] = lambda: False
        self._closing = threading.Event()
        self.reading = threading.Lock()
        self.knows = threading.Event()  # that others have gone: this process ends by itself
        self.members = [("a machine that is not known yet", 0)] * launch.size
        try:
            store, _, _ = next(dist.rendezvous("env://", launch.rank, launch.size, timeout=_START))
            store = dist.PrefixStore(f"attempt {os.environ.get('TORCHELASTIC_RESTART_COUNT', '')}", store)  # torchrun keeps what the one before knew
            dist.init_process_group("gloo", store=store, rank=launch.rank, world_size=launch.size, timeout=_START)
            self._control = dist.new_group(backend="gloo", timeout=_OPERATION)
            self._reading = dist.new_group(backend="gloo", timeout=_OPERATION)  # for the thread that makes batches
            self._beats = dist.new_group(backend="gloo", timeout=timedelta(seconds=_BEAT_WITHIN))
        except (RuntimeError, ValueError, OSError) as error:
            raise Lost(f"rank {launch.rank}: the {launch.size} processes could not be connected ({_first_line(error)})", 1, True) from error
        self._data: Any = None
        self._copies: Any = None  # with --shard node: those that have the same part of the model
        self.place = (0, 0)  # the run's seed, and the number of the step
        self._store = dist.PrefixStore("lmplay", store)
        self.members = [tuple(member) for member in self.exchange((socket.gethostname(), os.getpid()))]
        self._watcher = threading.Thread(target=self._watch, name="lmplay-ranks", daemon=True)
        self._watcher.start()
        threading.Thread(target=self._answer, name="lmplay-answer", daemon=True).start()

    @property
    def main_pid(self) -> int:
        """See :meth:`Ranks.main_pid`."""
        return self.members[0][1]

    def post(self, key: str, text: str) -> None:
        """See :meth:`Ranks.post`."""
        self._ask(lambda: self._store.set(f"{key}/{self.rank}", text))

    def posted(self, key: str) -> list[str] | None:
        """See :meth:`Ranks.posted`."""
        keys = [f"{key}/{rank}" for rank in range(1, self.size)]

        def take() -> list[str] | None:
            if not self._store.check(keys):
                return None
            texts = [self._store.get(one).decode() for one in keys]
            for one in keys:
                self._store.delete_key(one)
            return texts

        texts = self._ask(take)
        if texts is None and self.knows.is_set():
            raise OSError(errno.ECONNABORTED, "other processes have gone")
        return texts

    def begin(self, device: torch.device, module: nn.Module) -> None:
        """See :meth:`Ranks.begin`; of a model that is sharded, all that have the same part get that of the first of them."""
        if self._data is None:
            self._data = self._new_group(device)
        with self._together(), torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                if not is_sharded(tensor):
                    dist.broadcast(tensor.detach(), src=0, group=self._data)
                elif self._copies is not None:
                    dist.broadcast(tensor.to_local(), group_src=0, group=self._copies)  # type: ignore[attr-defined]

    @property
    def local_size(self) -> int:
        """See :attr:`Ranks.local_size`."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "0")) or [host for host, _ in self.members].count(self.members[self.rank][0])

    def part(self, per_node: bool) -> tuple[int, int]:
        """See :meth:`Ranks.part`.

        :raises UserError: when the machines have different numbers of processes.
        """
        if not per_node:
            return self.rank, self.size
        here = self.local_size
        places = self.exchange((here, self.local_rank))
        if self.size % here or places != [(here, number % here) for number in range(self.size)]:
            raise UserError("--shard node: each machine needs the same number of processes, numbered one machine after the other; take --shard.")
        return self.rank % here, here

    def shard(self, module: nn.Module, device: torch.device, per_node: bool, reduce_dtype: torch.dtype) -> None:
        """See :meth:`Ranks.shard`.

        :raises UserError: when the machines have different numbers of processes, or the model cannot be divided.
        """
        from .sharding import DeviceMesh, shard_model

        self._data, self.shards, self.saves_together = self._new_group(device), True, True
        mesh = DeviceMesh.from_group(self._data, device.type)
        if per_node:
            here = self.part(per_node=True)[1]
            nodes = [list(range(first, first + here)) for first in range(0, self.size, here)]
            parts = [self._new_group(device, ranks) for ranks in nodes][self.rank // here]
            self._copies = [self._new_group(device, list(ranks)) for ranks in zip(*nodes, strict=True)][self.rank % here]
            mesh = DeviceMesh.from_group([self._copies, parts], device.type, mesh=nodes, mesh_dim_names=("copies", "parts"))
        shard_model(module, mesh, reduce_dtype)

    def collect(self, sharded: Tensor, whole: Tensor | None) -> None:
        """See :meth:`Ranks.collect`; parts go from CPU to CPU, one after the other."""
        number, count = place_of(sharded)
        mine = sharded.to_local().detach()  # type: ignore[attr-defined]
        with self._together():
            if whole is not None:
                for rank, part in enumerate(parts_of(whole, count)):
                    if not rank:
                        part.copy_(mine)
                    elif part.numel():
                        dist.recv(part, rank, group=self._control)
            elif self.rank == number and mine.numel():  # not one of those that have copies of the same parts
                dist.send(mine.cpu().contiguous(), 0, group=self._control)

    def spread(self, sharded: Tensor, whole: Tensor | None) -> None:
        """See :meth:`Ranks.spread`."""
        number, count = place_of(sharded)
        mine = sharded.to_local().detach()  # type: ignore[attr-defined]
        with self._together():
            if whole is not None:
                for rank, part in enumerate(parts_of(whole.detach().contiguous(), count)):
                    if not rank:
                        mine.copy_(part)
                    elif part.numel():
                        dist.send(part, rank, group=self._control)
            elif self.rank == number and mine.numel():
                received = torch.empty_like(mine, device="cpu")
                dist.recv(received, 0, group=self._control)
                mine.copy_(received)

    @contextmanager
    def passing(self, module: nn.Module) -> Iterator[None]:
        """See :meth:`Ranks.passing`."""
        if not self.shards:
            yield
            return
        with self._together():
            yield
        module.reshard()  # type: ignore[operator]

    def describe(self, rank: int) -> str:
        """Name a rank: its number, its process and its machine."""
        host, pid = self.members[rank]
        return f"rank {rank} (process {pid} on {host})"

    def step_is_off(self) -> bool:
        """See :meth:`Ranks.step_is_off`; what answers is :attr:`ask_step`."""
        return self.ask_step()

    def sum(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Return the sums of tensors over all ranks, added up in float64."""
        flat = torch.cat([tensor.detach().reshape(-1).double() for tensor in tensors])
        with self._together():
            dist.all_reduce(flat, group=self._data)
        parts = flat.split([tensor.numel() for tensor in tensors])
        return [part.view_as(tensor).to(tensor.dtype) for part, tensor in zip(parts, tensors, strict=True)]

    @contextmanager
    def summing(self, parameters: Iterable[nn.Parameter]) -> Iterator[None]:
        """See :meth:`Ranks.summing`; those of sharded weights are summed in each backward pass."""
        if self.shards:
            yield
            return
        with self._together(), GradientSums(parameters, self._data, self._most):
            yield

    @contextmanager
    def random_numbers(self) -> Iterator[Callable[[int], None]]:
        """Give each mini-batch random numbers of its own, by its place: they do not depend on which rank it goes to, nor on how many there are."""
        before = torch_random_state()

        def begin(number: int) -> None:
            torch.manual_seed(hash64(*self.place, number) >> 1)

        try:
            yield begin
        finally:
            restore_torch_random_state(before)

    def begin_vote(self, flags: Sequence[float]) -> None:
        """Begin to take the maximum of each flag over all ranks, behind other work."""
        numbers = torch.tensor(flags, dtype=torch.float32)
        with self._together():
            self._vote = numbers, dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self._control, async_op=True)

    def end_vote(self) -> list[float]:
        """Wait for the result of :meth:`begin_vote`."""
        assert self._vote is not None
        (numbers, work), self._vote = self._vote, None
        with self._together():
            work.wait()
        return numbers.tolist()

    def exchange(self, value: Any) -> list[Any]:
        """Give all ranks the values of all, in order."""
        found: list[Any] = [None] * self.size
        with self._together():
            dist.all_gather_object(found, value, group=self._control)
        return found

    def swap(self, parts: Sequence[bytes] | None) -> list[bytes] | None:
        """See :meth:`Ranks.swap`; asked for before each exchange is how long the parts are."""
        lengths = torch.tensor([-1] * self.size if parts is None else [len(part) for part in parts])
        theirs = torch.empty_like(lengths)
        with self._together(ends=False) if parts is not None else nullcontext():
            dist.all_to_all_single(theirs, lengths, group=self._reading)
            if parts is None or int(theirs.min()) < 0:
                return None
            sent, received = lengths.tolist(), theirs.tolist()
            found = torch.empty(sum(received), dtype=torch.uint8)
            given = torch.frombuffer(bytearray(b"".join(parts)), dtype=torch.uint8) if any(parts) else torch.empty(0, dtype=torch.uint8)
            dist.all_to_all_single(found, given, received, sent, group=self._reading)
        return [part.numpy().tobytes() for part in found.split(received)]

    def end_alone(self) -> None:
        """See :meth:`Ranks.end_alone`."""
        self.knows.set()

    def report(self, text: str, exit_code: int) -> None:
        """Leave word why this process ends alone, for those that will miss it."""
        self.knows.set()
        self._tell("failed", json.dumps([self.rank, text, exit_code]), _ROLL_CALL)

    def leave(self) -> None:
        """End, after a last vote; afterwards nothing can be done together."""
        self._closing.set()
        self.knows.set()
        self._watcher.join(_GRACE)
        if not self._watcher.is_alive():
            dist.destroy_process_group()

    def _new_group(self, device: torch.device, ranks: list[int] | None = None) -> Any:
        """Connect the devices of some ranks (None = of all); all ranks call it."""
        with self._together():
            if device.type != "cuda":
                return dist.new_group(ranks, backend="gloo", timeout=_OPERATION)
            return dist.new_group(ranks, backend="nccl", timeout=_OPERATION, device_id=device if ranks is None else None)

    def _most(self, tensor: Tensor) -> Tensor:
        """Return the maximum of a tensor on the CPU over all ranks."""
        dist.all_reduce(tensor, dist.ReduceOp.MAX, group=self._control)
        return tensor

    @contextmanager
    def _together(self, ends: bool = True) -> Iterator[None]:
        """Turn the failure of an operation into the error that says who has gone.

        :param ends: this process ends by itself then; not so in a thread that reads, as the main thread may wait for a device.
        """
        try:
            yield
        except Lost:
            raise
        except RuntimeError as error:
            if not _is_of_connection(error):
                raise
            if ends:
                self.knows.set()
            raise self.find_lost(error) from error

    def _tell(self, key: str, text: str, seconds: float = 0.0) -> None:
        """Leave word for all, in a thread that is waited for that long: over a cable that has been cut no answer comes, not even an error."""
        def tell() -> None:
            with suppress(RuntimeError):
                self._store.set(key, text)

        telling = threading.Thread(target=tell, name="lmplay-tell", daemon=True)
        with suppress(RuntimeError):  # no more threads: the others will find this one missing
            telling.start()
            telling.join(seconds)

    def _ask(self, ask: Callable[[], T]) -> T:
        """Ask what all know; once others have gone only for a few seconds, as no answer comes over a cable that has been cut.

        :raises OSError: when no answer comes.
        """
        found: list[T] = []
        failed: list[RuntimeError] = []

        def work() -> None:
            try:
                found.append(ask())
            except RuntimeError as error:
                failed.append(error)

        asking = threading.Thread(target=work, name="lmplay-ask", daemon=True)
        try:
            asking.start()
        except RuntimeError:  # no more threads
            work()
        while asking.is_alive() and not self.knows.is_set():
            asking.join(_POLL)
        if asking.is_alive():
            asking.join(_ROLL_CALL)
        if found:
            return found[0]
        raise OSError(errno.ECONNABORTED, _first_line(failed[0]) if failed else "other processes have gone")

    def find_lost(self, error: BaseException | None = None) -> Lost:
        """Find out which ranks have gone: those that leave no word in a few seconds; a process of this machine is looked up as well.

        That is asked in a thread, too, see :meth:`_tell`.
        """
        found: list[Lost] = []
        asking = threading.Thread(target=lambda: found.append(self._call_roll(error)), name="lmplay-roll-call", daemon=True)
        try:
            asking.start()
        except RuntimeError:  # no more threads
            return self._call_roll(error)
        asking.join(_ROLL_CALL + 1)
        return found[0] if found else self._cut_off()

    def _call_roll(self, error: BaseException | None) -> Lost:
        """Ask who is there, see :meth:`find_lost`."""
        present: set[int] = {self.rank}
        try:
            self._store.set(f"present/{self.rank}", "1")
            self._store.set("roll call", "1")
            until = time.monotonic() + _ROLL_CALL
            while len(present) < self.size and time.monotonic() < until:
                if self._store.check(["failed"]):
                    rank, text, exit_code = json.loads(self._store.get("failed"))
                    return Lost(f"{self.describe(rank)}: {text}", exit_code, rank != 0 and self.rank == 0)
                for rank in range(self.size):
                    if rank not in present and time.monotonic() < until and self._store.check([f"present/{rank}"]):
                        present.add(rank)
                time.sleep(_POLL)
        except RuntimeError:  # with the process or the machine that kept what all know
            return self._cut_off()
        missing = [rank for rank in range(self.size) if rank not in present]
        gone = [rank for rank in missing if not self._lives(rank)] or missing
        if not gone:
            return Lost(f"a connection between the processes has failed ({_first_line(error)})", 1, self.rank == 0)
        names = " and ".join(self.describe(rank) for rank in gone)
        return Lost(f"{names} {'have' if len(gone) > 1 else 'has'} gone (killed, out of memory, or no connection). {_GO_ON}", 1,
                    self.rank == min(present))

    def _cut_off(self) -> Lost:
        """Make the error for when what all know is out of reach: the lowest rank that is left on each machine tells it."""
        host = self.members[self.rank][0]
        here = [rank for rank, (other, _) in enumerate(self.members) if other == host and (rank == self.rank or self._lives(rank))]
        address = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        who = f"what listens at {address}" if 0 in here else f"{self.describe(0)}"
        return Lost(f"{who} has gone, or its machine, or the connection to it{'' if 0 in here else f' ({address})'}. {_GO_ON}", 1, self.rank == min(here))

    def _lives(self, rank: int) -> bool:
        """Tell whether a process of this machine is there; False for those of others."""
        host, pid = self.members[rank]
        if host != socket.gethostname():
            return False
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] != b"Z"
        except OSError:
            return False

    def _answer(self) -> None:
        """Answer a roll call, in a thread: this process may not have noticed yet that others have gone."""
        with suppress(RuntimeError):  # what all know has gone
            while not self._closing.wait(_ANSWER):
                if self._store.check(["roll call"]):
                    self._store.set(f"present/{self.rank}", "1")
                    return

    def _watch(self) -> None:
        """Give signs of life, in a thread; end the process where others have gone and it does not notice (it waits for a device, say)."""
        try:
            while True:
                ending = torch.tensor([float(self._closing.is_set())])
                work = dist.all_reduce(ending, dist.ReduceOp.MIN, group=self._beats, async_op=True)
                while not work.is_completed():
                    time.sleep(_POLL)
                work.wait()
                if float(ending):
                    return
                self._closing.wait(_BEAT)
        except RuntimeError as error:
            self._tell(f"present/{self.rank}", "1")  # this one is there, however long its step takes
            if self._closing.is_set() or self.knows.wait(_GRACE):
                return
            lost = self.find_lost(error)
            if lost.is_told_here:
                os.write(2, f"\nlmp_trainer: {lost}\n".encode())
            os._exit(lost.exit_code)


def _first_line(error: BaseException | None) -> str:
    """Give the first line of what an error says."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def _is_of_connection(error: RuntimeError) -> bool:
    """Tell whether an error comes from the connection to other processes."""
    text = str(error).lower()
    return isinstance(error, dist.DistError) or any(sign in text for sign in ("gloo", "nccl", "connection", "timed out", "socket"))

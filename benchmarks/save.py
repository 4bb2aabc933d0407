"""What a save costs: the pause of training against a plain `torch.save` and fsync of the same state on the same disk, and the steps during the write.

    python benchmarks/save.py --folder DISK --megabytes 400 --rounds 5

The two ways of saving alternate, and so do steps with and without a write in the background; the medians are compared. Every tensor of the state is
changed before each save, as in training. The target: the pause is at most a third of the plain save.
"""
from __future__ import annotations

import argparse
import os
import shutil
import tempfile
import time
from pathlib import Path
from statistics import median

import torch
from torch import nn

from lmplay.checkpoints.format import COMPONENTS, FORMAT
from lmplay.checkpoints.saver import Saver


def state_of(module: nn.Module, optimizer: torch.optim.Optimizer) -> dict:
    """Return what a checkpoint holds."""
    empty = {"state_args": {}, "state": {}}
    return {"format": FORMAT, **dict.fromkeys(COMPONENTS, empty), "model": {"state_args": {}, "state": module.state_dict()},
            "optimizers": {"state_args": {}, "state": optimizer.state_dict()}}


def plain_save(path: Path, state: dict) -> float:
    """Save as most programs do, and sync; return the seconds."""
    started = time.perf_counter()
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    return time.perf_counter() - started


def fail(error: OSError) -> None:
    """Stop: a save that fails is no measurement."""
    raise error


def pause(saver: Saver, module: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Save as the loop does between two steps; return the seconds until the next step can begin."""
    started = time.perf_counter()
    float(nn.utils.get_total_norm(module.parameters()))
    saver.save(state_of(module, optimizer), "stage", None, before=lambda record: None, saved=lambda record, seconds: None, failed=fail)
    return time.perf_counter() - started


class Stepper:
    """Steps of another, small model: the training during the write."""

    def __init__(self, device: str):
        self.module = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 256)).to(device)
        self.optimizer = torch.optim.AdamW(self.module.parameters())
        self.rows = torch.randn(256, 256, device=device)

    def step(self) -> float:
        """Do a step; return the seconds."""
        started = time.perf_counter()
        self.optimizer.zero_grad()
        self.module(self.rows).square().mean().backward()
        self.optimizer.step()
        if self.rows.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="a folder on the disk to measure")
    parser.add_argument("--megabytes", type=int, default=400, help="size of the state: weights and two moments")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads(), help="of the steps; fewer than there are cores leave one for writing")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    width = 1024
    layers = max(1, options.megabytes * 10**6 // (3 * 4 * width * width))
    module = nn.Sequential(*(nn.Linear(width, width, bias=False) for _ in range(layers))).to(options.device)
    optimizer = torch.optim.AdamW(module.parameters(), fused=True)
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    folder = Path(tempfile.mkdtemp(dir=options.folder, prefix="lmplay-save-"))
    stepper, saver = Stepper(options.device), Saver(folder / "m.lmp", keep=2)
    plain, pauses, writes, quiet, loud = [], [], [], [], []
    try:
        for number in range(options.rounds + 1):
            optimizer.step()
            steps = [stepper.step() for _ in range(40)]
            plainly = plain_save(folder / "plain.pt", state_of(module, optimizer))
            (folder / "plain.pt").unlink()
            optimizer.step()
            paused, started = pause(saver, module, optimizer), time.perf_counter()
            beside = []
            while saver.busy:
                beside.append(stepper.step())
            saver.wait()
            if number:  # the first round allocates the buffers
                plain.append(plainly)
                pauses.append(paused)
                writes.append(time.perf_counter() - started)
                quiet += steps
                loud += beside
            else:
                print(f"state {sum(file.stat().st_size for file in folder.glob('m.lmp')) / 1e6:,.0f} MB on {options.device}, {options.threads} threads, "
                      f"{os.cpu_count()} cores; first pause {paused:.3f} s (allocates the buffers)")
    finally:
        shutil.rmtree(folder)
    print(f"plain torch.save + fsync  {median(plain):8.3f} s   (from {min(plain):.3f} to {max(plain):.3f})")
    print(f"pause of the training     {median(pauses):8.3f} s   (from {min(pauses):.3f} to {max(pauses):.3f})   ratio {median(pauses) / median(plain):.2f}, "
          "target at most 0.33")
    print(f"written meanwhile in      {median(writes):8.3f} s")
    print(f"a step, nothing written   {median(quiet) * 1000:8.3f} ms  ({len(quiet)} steps)")
    print(f"a step while writing      {median(loud) * 1000:8.3f} ms  ({len(loud)} steps)   ratio {median(loud) / median(quiet):.2f}")


if __name__ == "__main__":
    main()

"""Faults for `torture.py` but for kills: damaged files of every kind, disks that are full, read-only or without inodes, sibling names, a failing hub."""
from __future__ import annotations

import contextlib
import os
import random
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from torture_run import NAME, Row, Torture, same, whole

from lmplay.checkpoints.format import load


def damages() -> dict[str, Callable[[Path], None]]:
    """Ways to damage a file."""
    def flip(path: Path) -> None:
        data = bytearray(path.read_bytes())
        data[random.Random(len(data)).randrange(len(data))] ^= 16
        path.write_bytes(data)

    return {"flipped bit": flip, "cut in half": lambda path: os.truncate(path, path.stat().st_size // 2), "empty file": lambda path: os.truncate(path, 0),
            "last byte lost": lambda path: os.truncate(path, path.stat().st_size - 1), "deleted file": Path.unlink,
            "other bytes": lambda path: path.write_bytes(b"\x80\x04N." * 100)}


def damaged_files(torture: Torture, reference: Path, stopped: Path, folder: Path) -> Iterator[Row]:
    """Damage the newest file, and the newest two."""
    for what, damage in damages().items():
        for parts in (("",), ("", ".prev-1")):
            out = shutil.copytree(stopped, folder / "damaged")
            row = Row(f"{what}, {'newest' if len(parts) == 1 else 'newest two'}", tries=1)
            for part in parts:
                damage(out / f"{NAME}{part}.lmp")
            output = torture.finish(out, row)[1]
            row.message = next((line for line in output.splitlines() if "going on from" in line), "no message about it")
            row.lost = int(not same(reference, out))
            shutil.rmtree(out)
            yield row


@contextlib.contextmanager
def disk(folder: Path, size: int, inodes: int = 0) -> Iterator[Path]:
    """Mount a small disk (0 inodes = any number of files); raises RuntimeError where that is not allowed."""
    folder.mkdir()
    options = f"size={size},nr_inodes={inodes}"
    if subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", str(folder)], capture_output=True, check=False).returncode:
        raise RuntimeError("no permission to mount a disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def disks(torture: Torture, reference: Path, stopped: Path, folder: Path) -> Iterator[Row]:
    """Disks that are full or read-only for a while."""
    size = sum(path.stat().st_size for path in stopped.iterdir()) * 6
    with disk(folder / "small", 120_000) as place:
        row = Row("disk too small from the start", tries=1)
        code, output = torture.finish(place / "out", row)
        row.lost, row.message = int(code != 2), output.strip().splitlines()[-1]
        yield row
    for what in ("full", "read-only", "without inodes"):
        with disk(folder / what, size, 100 if what == "without inodes" else 0) as place:
            out = shutil.copytree(stopped, place / "out")
            row = Row(f"disk {what} while training", tries=1)
            process = torture.start(out)
            for line in process.stdout:
                if line.startswith("saved"):
                    break
            if what == "full":
                with contextlib.suppress(OSError), open(place / "filler", "wb") as file:
                    while True:
                        file.write(bytes(4096))
                        file.flush()
            elif what == "without inodes":
                (place / "many").mkdir()
                with contextlib.suppress(OSError):
                    for number in range(200):
                        (place / "many" / str(number)).touch()
            else:
                subprocess.run(["mount", "--bind", str(place), str(place)], check=True)  # a second mount of it, read-only
                subprocess.run(["mount", "-o", "remount,bind,ro", str(place)], check=True)
            output = process.communicate(timeout=900)[0]
            row.codes[process.returncode] += 1
            warnings = [line for line in output.splitlines() if "could not be written" in line]
            row.message = f"{len(warnings)} warnings: {warnings[0] if warnings else output.splitlines()[-1]}"
            if what == "read-only":
                subprocess.run(["umount", str(place)], check=True)
            (place / "filler").unlink(missing_ok=True)
            shutil.rmtree(place / "many", ignore_errors=True)
            kept = whole(out)
            torture.finish(out, row)
            row.lost = int(not (kept and same(reference, out)))
            yield row


def limited(torture: Torture, reference: Path, stopped: Path, folder: Path) -> Row:
    """Files that are limited to less than the size of a state."""
    out = shutil.copytree(stopped, folder / "limited")
    most = (out / f"{NAME}.lmp").stat().st_size // 2
    row = Row("files limited to half a state", tries=1)
    output = torture.finish(out, row, cold=True, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)))[1]
    row.message = next((line for line in output.splitlines() if "could not be written" in line), "no message about it")
    kept = whole(out)
    torture.finish(out, row)
    row.lost = int(not (kept and same(reference, out)))
    return row


def other_files(torture: Torture, reference: Path, stopped: Path, folder: Path) -> Iterator[Row]:
    """Damage what lies beside the checkpoints: the run goes on, and mends what it can."""
    garbage = {"empty": b"", "garbage": random.Random(0).randbytes(5000), "not finite": b'{"totals": {"total_train_samples": Infinity}}',
               "200,000 brackets": b"[" * 200_000}
    for name in (f"{NAME}_train_stats.json", f"{NAME}_step_tales_validate_stats.json", f"{NAME}_settings.json", f"{NAME}.log", f"{NAME}.tales.lmp"):
        row = Row(f"damaged {name.removeprefix(NAME)}")
        for content in garbage.values():
            out = shutil.copytree(stopped, folder / "beside")
            (out / name).unlink()  # it may be a link to another file
            (out / name).write_bytes(content)
            code, output = torture.finish(out, row)
            if name.endswith(".tales.lmp"):
                (out / name).unlink()  # the file of a stage that is done is not written again
                shutil.copy(reference / name, out / name)
            row.tries += 1
            row.lost += int(code != 0 or not same(reference, out))
            row.message = output.strip().splitlines()[-1]
            shutil.rmtree(out)
        yield row


def siblings(torture: Torture, reference: Path, folder: Path, dice: random.Random) -> Iterator[Row]:
    """Two models in one folder, one with a name that begins as the other's; and a model with the name of a stage's file, which is refused."""
    out = folder / "siblings"
    names = (NAME, f"{NAME}.sibling")
    row = Row("two models, names that begin alike")
    for _ in range(4):
        runs = [torture.start(out, "--model", out / f"{name}.lmp") for name in names]
        time.sleep(dice.uniform(1, 5))
        for process in runs:
            process.send_signal(dice.choice((signal.SIGKILL, signal.SIGTERM)))
        for process, name in zip(runs, names, strict=True):
            process.communicate(timeout=300)
            row.codes[process.returncode] += 1
            row.tries += 1
            row.lost += int(out.exists() and not whole(out, name))
    for name in names:
        torture.finish(out, row, "--model", out / f"{name}.lmp")
    moved = folder / "moved"
    moved.mkdir()
    for file in list(out.glob(f"{NAME}.sibling*")):
        file.rename(moved / file.name.replace(".sibling", "", 1))
    row.lost += int(not same(reference, out)) + int(not _same_states(reference, moved))
    yield row
    row = Row("a model with the name of a stage")
    for name, flags in ((f"{NAME}.tales", []), (f"{NAME}.tales", ["--reset-history"]), (f"{NAME}.best", []), (f"{NAME}.prev-1", [])):
        row.message = torture.finish(out, row, "--model", out / f"{name}.lmp", *flags)[1].strip().splitlines()[-1]
        row.tries += 1
    row.lost = int(not same(reference, out)) + row.codes[0]
    yield row


def _same_states(left: Path, right: Path) -> bool:
    """Compare the weights of the newest states."""
    one, other = (load(folder / f"{NAME}.lmp")["model"]["state"] for folder in (left, right))
    return all((one[key] == other[key]).all() for key in one)


def hub(torture: Torture, folder: Path, dice: random.Random, kills: int) -> Iterator[Row]:
    """A streamed data set of a hub that answers 503, cuts answers, sends web pages, and goes away, while the run is killed."""
    from helpers import write_plan, write_rows
    from hub_server import Fault, HubServer

    root = folder / "hub"
    data = root / "o" / "texts"
    data.mkdir(parents=True)
    for number in range(10):
        rows = [{"text": f"The cat number {i} sat down. The dog {i * 7} did not."} for i in range(number * 32, number * 32 + 32)]
        write_rows(data / f"train-{number}.jsonl", rows)
    (data / "README.md").write_text("---\ndataset_info:\n  features: [{name: text, dtype: string}]\n"
                                    "  splits: [{name: train, num_bytes: 1, num_examples: 320}]\n---\n")
    (folder / "streamed").mkdir()
    torture.plan = write_plan(folder / "streamed", {"one": {"dataset": {"path": "o/texts", "streaming": True}, "epochs": 0.7},
                                                    "two": {"dataset": {"path": "o/texts", "streaming": True}, "samples": 150, "shuffle": {"buffer": 50}}})
    with HubServer(root) as server:
        torture.environment |= {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": server.url, "HF_HOME": tempfile.mkdtemp(dir=folder)}
        reference, out = folder / "streamed" / "reference", folder / "streamed" / "out"
        code, output = torture.finish(reference, cold=True)
        assert code == 0, output
        row = Row("hub: 503, cuts, web pages, kills")
        for _ in range(kills):
            server.faults[:] = [dice.choice((Fault(match="train-", status=503, after=dice.randrange(3), times=dice.randint(1, 3)),
                                             Fault(match="train-", cut=dice.randrange(500), after=dice.randrange(3)),
                                             Fault(match="train-", body=b"<html>Sign in</html>", headers={"Content-Type": "text/html"})))]
            process = torture.start(out, cold=True)
            time.sleep(dice.uniform(2, 12))
            if process.poll() is None:
                process.send_signal(dice.choice((signal.SIGKILL, signal.SIGTERM)))
            process.communicate(timeout=300)
            row.tries, row.lost = row.tries + 1, row.lost + int(out.exists() and not whole(out))
            row.codes[process.returncode] += 1
        server.faults.clear()
        row.message = torture.finish(out, row, cold=True)[1].strip().splitlines()[-1]
        row.lost += int(not same(reference, out))
        yield row

"""After pretraining, on real data: one plan goes from texts to chats, instructions, preferences and tasks, and each stage is judged on rows of its own
kind that it has not seen.

    python benchmarks/after_pretraining.py --data FOLDER [--out after_pretraining]

FOLDER has wikitext-2/, tinystories/, chat/, instruction/, preference/ and gsm8k/, with train.jsonl and validation.jsonl (gsm8k: test.jsonl) in each.
The plan is run twice with the same command: untouched, and with a `kill -9` in the middle of each stage after the first, after which the same command
goes on. All states and statistics of the two must have the same bits. Figures before and after a stage are those of `lmp_eval` on the held-out file;
margins and rewards, which it does not have, are those of the stage's own validation on all rows of that file. What rewards the model got before the last
stage says a run of one step that learns nothing. About 20 minutes on one core; the same command goes on where it was stopped.

A model this small cannot learn the sums of GSM8K: the rewards of the last stage are those that it can move, a short answer and a number in it, and beside
them the right number, which stays as rare as it was.
"""
from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from helpers import compare_runs

NAME = "assistant"
BASE = "texts"
REWARDS = [{"name": "length", "most": 15}, {"name": "regex", "pattern": r"\d"}, "number"]


def plan(data: Path) -> dict[str, Any]:
    """Make the plan; its stages are short, so that all of it takes minutes."""
    def rows(name: str, held_out: str = "validation") -> dict[str, Any]:
        return {"dataset": str(data / name / "train.jsonl"), "validation": {"dataset": str(data / name / f"{held_out}.jsonl"), "samples": "all"}}

    reason = {"name": "grpo", "rewards": REWARDS, "group": 8, "answer_tokens": 64}
    return {
        "$model": {"exp": "gpt2ish_tiny", "embed_dim": 128, "num_heads": 4, "dropout": 0.0}, "$tokenizer": "train:4096",
        "$defaults": {"weight_decay": 0.05, "grad_clip": 1},
        BASE: {"dataset": [str(data / "wikitext-2" / "train.jsonl"), str(data / "tinystories" / "train.jsonl")], "steps": 80, "batch_size": 16, "lr": 0.003,
               "lr_schedule": {"name": "linear", "to": 0.1}},
        "chats": {**rows("chat"), "steps": 24, "batch_size": 16, "lr": 0.001, "lr_schedule": "linear", "objective": "sft"},
        "instructions": {**rows("instruction"), "steps": 40, "batch_size": 16, "lr": 0.005, "lr_schedule": "linear", "objective": "sft",
                         "adapter": {"kind": "lora", "rank": 16}},
        "preferences": {**rows("preference"), "steps": 20, "batch_size": 32, "lr": 0.0003, "lr_schedule": "linear",
                        "objective": {"name": "dpo", "beta": 0.1}},
        "solutions": {**rows("gsm8k", "test"), "steps": 40, "batch_size": 16, "lr": 0.001, "lr_schedule": "linear", "objective": "sft"},
        "rewards": {**rows("gsm8k", "test"), "steps": 16, "batch_size": 8, "lr": 0.001, "warmup": 3, "objective": reason}}


JUDGED = {"chats": ("--set", "chat/validation.jsonl"), "instructions": ("--set", "instruction/validation.jsonl"),
          "preferences": ("--preferences", "preference/validation.jsonl"), "solutions": ("--set", "gsm8k/test.jsonl"),
          "rewards": ("--answers", "gsm8k/test.jsonl", "--max-tokens", "64")}
"""How `lmp_eval` judges each stage."""
OWN = {"preferences": ("preference_accuracy", "margin"), "rewards": ("reward_length", "reward_regex", "reward_number")}
"""Figures of a stage's own validation."""


class Bench:
    """The two runs, and what is asked of them."""

    def __init__(self, data: Path, out: Path):
        self.data, self.out = data, out
        out.mkdir(parents=True, exist_ok=True)
        self.plan = plan(data)
        (out / "plan.json").write_text(json.dumps(self.plan, indent=1), encoding="utf-8")
        self.stages = [name for name in self.plan if not name.startswith("$")]
        self._kills, self._seconds = out / "kills.json", out / "seconds.json"
        self.kills: dict[str, Any] = _read(self._kills)
        self.seconds: dict[str, float] = _read(self._seconds)

    def run_untouched(self) -> None:
        """Run the plan to the end, with a copy of the folder behind the first stage; notes how long each stage takes."""
        first = self.plan[BASE]["steps"]
        if not (self.out / "killed").exists():
            code = self._train("untouched", "--max-steps", str(first))
            if code not in (0, 75):
                raise SystemExit(f"lmp_trainer ended with {code}")
            shutil.copytree(self.out / "untouched", self.out / "copying", dirs_exist_ok=True)
            (self.out / "copying").rename(self.out / "killed")
        if self._train("untouched", times=self.seconds):
            raise SystemExit("the untouched run has failed")

    def run_killed(self) -> None:
        """Run the same from the copy, with a kill in the middle of each stage."""
        while code := self._train("killed", kill=True):
            if code != -9:
                raise SystemExit(f"lmp_trainer ended with {code}")

    def same_bits(self) -> list[str]:
        """List what differs between the two."""
        return compare_runs(self.out / "untouched", self.out / "killed")

    def figures(self, stage: str) -> list[dict[str, Any]]:
        """Give the figures of a stage: name, unit, before and after."""
        known = self.out / f"{stage}.figures.json"
        if known.exists():
            return list(json.loads(known.read_text()))
        flag, file, *more = JUDGED[stage]
        states = [f"{NAME}.{self.stages[self.stages.index(stage) - 1]}", f"{NAME}.{stage}"]
        command = ["-m", "lmplay.evaluate", *states, flag, f"rows={self.data / file}", *more, "--out-dir", self.out / "untouched", "--no-record",
                   "--json", self.out / "eval.json"]
        if subprocess.run([sys.executable, *map(str, command)], stdout=subprocess.DEVNULL, check=False).returncode:
            raise SystemExit("lmp_eval has failed")
        content = json.loads((self.out / "eval.json").read_text())
        before, after = (one["figures"] for one in content["evaluations"])
        found = [{"name": name, "unit": after[name]["unit"], "before": before[name]["value"], "after": after[name]["value"],
                  "interval": [after[name]["low"], after[name]["high"]], "before_interval": [before[name]["low"], before[name]["high"]]}
                 for name in after if name in ("loss", "acc", "exact_match")]
        start, end = self._validation("nothing_learned", stage) if stage == "rewards" else {}, self._validation("untouched", stage)
        found += [{"name": name, "unit": "", "before": start.get(name), "after": end[name]} for name in OWN.get(stage, ())]
        known.write_text(json.dumps(found))
        return found

    def learn_nothing(self, stage: str) -> None:
        """Do a step of a stage that changes hardly a bit, from the state before it, for its validation."""
        out = self.out / "nothing_learned"
        before = self.out / "untouched" / f"{NAME}.{self.stages[self.stages.index(stage) - 1]}.lmp"
        (self.out / "nothing.json").write_text(json.dumps({stage: {**self.plan[stage], "steps": 1, "lr": 1e-12, "batch_size": 2}}), encoding="utf-8")
        command = [sys.executable, "-m", "lmplay.train", "--training-plan", self.out / "nothing.json", "--initial-model", before, "--model", NAME,
                   "--out-dir", out, "--validation-interval", "0"]
        if subprocess.run([*map(str, command)], stdout=subprocess.DEVNULL, check=False).returncode:
            raise SystemExit("the run that learns nothing has failed")

    def _train(self, folder: str, *more: str, kill: bool = False, times: dict[str, float] | None = None) -> int:
        """Run the plan with lmp_trainer in a folder; gives its exit code."""
        command = [sys.executable, "-m", "lmplay.train", "--training-plan", self.out / "plan.json", "--model", NAME, "--out-dir", self.out / folder,
                   "--save-interval", "4steps", "--validation-interval", "0", "--log-json", *more]
        process = subprocess.Popen([*map(str, command)], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"})
        began, timer = 0.0, None
        assert process.stdout is not None
        for line in process.stdout:
            said = json.loads(line)
            if said["event"] == "stage":
                began, stage = time.monotonic(), said["stage"]
                print(f"  {folder}: {stage} from sample {said['samples']:,}", flush=True)
                if kill and stage in self.kills:
                    self._note_kill(stage, {"again_from_sample": said["samples"], **self.kills[stage]})
                if kill and stage != BASE and stage not in self.kills:
                    timer = threading.Timer(self.seconds[stage] / 2, process.kill)
                    timer.start()
            elif said["event"] == "stage done":
                if timer is not None:
                    timer.cancel()
                if times is not None and said["stage"] not in times:
                    times[said["stage"]] = time.monotonic() - began
                    self._seconds.write_text(json.dumps(times))
        if process.wait() == -9:
            self._note_kill(stage, {"after_seconds": time.monotonic() - began})
        return process.returncode

    def _note_kill(self, stage: str, told: dict[str, float]) -> None:
        """Note what is known of the kill in a stage."""
        self.kills[stage] = told
        self._kills.write_text(json.dumps(self.kills))

    def _validation(self, folder: str, stage: str) -> dict[str, float]:
        """Give the figures of a stage's last validation."""
        columns = json.loads((self.out / folder / f"{NAME}_step_{stage}_validate_stats.json").read_text())["columns"]
        return {name: values[-1] for name, values in columns.items() if values}


def _read(path: Path) -> dict[str, Any]:
    """Read what an earlier call has noted."""
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _cell(value: float | None, interval: list[float | None] | None = None) -> str:
    """Write a figure, with its interval of 95 %."""
    if value is None:
        return ""
    return f"{value:.3f}" if not interval or None in interval else f"{value:.3f} ({interval[0]:.3f} to {interval[1]:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the data sets")
    parser.add_argument("--out", type=Path, default=Path("after_pretraining"), help="where runs are kept, and gone on with")
    arguments = parser.parse_args()
    started, bench = time.monotonic(), Bench(arguments.data.resolve(), arguments.out)
    bench.run_untouched()
    bench.run_killed()
    different = bench.same_bits()
    bench.learn_nothing("rewards")
    print("| stage | objective | seconds | figure | before | after | killed after |\n| --- | --- | ---: | --- | ---: | ---: | ---: |")
    for stage in JUDGED:
        objective = bench.plan[stage]["objective"]
        name = objective if isinstance(objective, str) else objective["name"]
        for number, one in enumerate(bench.figures(stage)):
            told = [stage, name, f"{bench.seconds[stage]:.0f}"] if not number else ["", "", ""]
            kill = bench.kills.get(stage, {}) if not number else {}
            killed = f"{kill['after_seconds']:.0f} s, again from sample {kill['again_from_sample']:,}" if kill else ""
            print(f"| {' | '.join(told)} | {one['name']} {one['unit']} | {_cell(one['before'], one.get('before_interval'))} | "
                  f"{_cell(one['after'], one.get('interval'))} | {killed} |")
    print(f"{len(bench.kills)} kills; all states and statistics have the bits of the untouched run: {not different}")
    print("\n".join(different[:10]))
    print(f"{time.monotonic() - started:.0f} s in this call")
    sys.exit(bool(different))


if __name__ == "__main__":
    main()

"""Tasks, as rows, and rewards in a module of the current folder."""
from __future__ import annotations

from pathlib import Path

TASKS = [{"prompt": f"{i % 7}+{i % 5}=", "answer": str(i % 7 + i % 5)} for i in range(60)]


def grpo(**settings) -> dict:
    """An objective whose answers are short."""
    return {"name": "grpo", "rewards": {"name": "length", "most": 1}, "answer_tokens": 5, "group": 3, **settings}


def write_reward(body: str) -> str:
    """Write a module with a reward; gives its name for a plan."""
    Path("my_rewards.py").write_text(f"import math, time\n\n\ndef score(text, answer, prompt):\n    {body}\n")
    return "my_rewards:score"

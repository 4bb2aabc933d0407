"""Statistics with some steps in them."""
from collections import Counter

from lmplay.stats.figures import Progress


def fill(stats):
    for i in range(1, 5):
        stats.count_step(10, 100, Counter(pieces=12))
        place = Progress(i, 10 * i, 100 * i, 2.0 * i)
        stats.add_train(place, {"loss_sum": 100.0 * i, "n_tokens": 100, "words_right": 3, "words": 4, "grad_norm_sum": 0.5, "grad_norms": 1, "steps": 1,
                                "padding": 5, "places": 50, "step_seconds": 2.0, "data_seconds": 0.5})
        stats.add_validation(place, {"lr": 0.1, "steps": 1, "loss_sum": 50.0 / i, "n_tokens": 50, "n_bytes": 200, "nats_sum": 10.0, "nats_tokens": 50,
                                     "words_right": 1, "words": 2}, final=i == 4)


def fill_sources(stats, steps=20):
    stats.begin_sources({"a.jsonl": 40, "b.jsonl": None})
    for i in range(1, steps + 1):
        parts = {"a.jsonl": (60.0 / i, 30), "b.jsonl": (20.0, 10)} if i % 2 else {"a.jsonl": (80.0 / i, 40)}
        for name, (_, tokens) in parts.items():
            stats.count_source(name, tokens // 10, tokens)
        place = Progress(i, 4 * i, 40 * i, 2.0 * i)
        stats.add_train(place, {"lr": 0.1, "loss_sum": sum(loss for loss, _ in parts.values()), "n_tokens": 40}, parts)
        if i % 10 == 0:
            stats.add_validation(place, {"lr": 0.1, "loss_sum": 50.0, "n_tokens": 50, "nats_tokens": 0, "nats_sum": 0},
                                 sources={"a.jsonl": (30.0, 25), "b.jsonl": (20.0, 25)})

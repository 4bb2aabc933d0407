"""The best state: written with the save after it was found."""
import pytest
import torch
from helpers import load
from states import content, number_of

from lmplay.checkpoints import best
from lmplay.checkpoints.saver import Saver


@pytest.mark.parametrize("fails", [False, True])
def test_a_better_state_may_come_while_the_best_one_is_written(tmp_path, monkeypatch, fails):
    """Whether that works out or not, the next save writes it, under the name of its own stage; one that could not be written is tried again."""
    path, weight, said = tmp_path / "m.lmp", torch.zeros(50), []
    saver, original = Saver(path, keep=0), best.write

    def found(number: int) -> dict:
        state = content(number)
        state["model"]["state"]["weight"] = weight.fill_(number)  # as in training: the same memory each time
        return state

    def save() -> bool:
        saver.save(found(9), "any", None, before=lambda record: None, saved=lambda record, seconds: said.append("saved"), failed=said.append)
        return saver.wait()

    def during(*arguments, **options):
        monkeypatch.setattr(best, "write", original)
        saver.keep_best(found(2), "two")
        if fails:
            raise OSError("full")
        original(*arguments, **options)

    def numbers(*names: str) -> list[int]:
        states = [load(path.with_name(f"m.{name}.lmp")) for name in names]
        assert [number_of(state) for state in states] == [int(state["model"]["state"]["weight"].unique()) for state in states]
        return [number_of(state) for state in states]

    monkeypatch.setattr(best, "write", during)
    saver.keep_best(found(0), None)
    saver.keep_best(found(1), "one")  # better, before the first was written
    weight.fill_(-1)
    assert save() is not fails
    if fails:
        assert not path.exists()  # the best state comes first
        assert [str(error) for error in said] == ["full"]
    else:
        assert numbers("best", "one.best") == [1, 1]
    assert save()
    assert numbers("best", "two.best") == [2, 2]
    assert path.with_name("m.one.best.lmp").exists() is not fails
    saver.keep_best(found(3), None)
    assert save()
    assert numbers("best", "two.best") == [3, 2]
    written = path.with_name("m.best.lmp").stat().st_ino
    assert save()
    assert path.with_name("m.best.lmp").stat().st_ino == written  # no better one: not written again
    assert number_of(load(path)) == 9

"""Trackers and callbacks that are not there are refused before anything is written."""

import pytest
from watched import train

from lmplay.errors import UserError
from lmplay.track.opening import open_callbacks


@pytest.mark.parametrize(("given", "words"), [
    (["--track", "csv,tensorbord"], ["--track tensorbord", "Did you mean 'tensorboard'?"]),
    (["--callback", "watching:Nothing"], ["--callback watching:Nothing", "no attribute"]),
    (["--callback", "watching"], ["--callback watching", "module:Class"]),
])
def test_what_is_not_there_is_refused_before_anything_is_written(watched_folder, capsys, given, words):
    train(*given, code=2)
    [line] = capsys.readouterr().err.splitlines()
    assert all(word in line for word in words)
    assert not (watched_folder / "out").exists()


def test_a_library_that_is_missing_is_named(watched_folder, capsys, monkeypatch):
    from lmplay.track import opening

    monkeypatch.setattr(opening, "find_spec", lambda name: None)
    train("--track", "wandb", code=2)
    assert "pip install 'lmplay[wandb]'" in capsys.readouterr().err


def test_what_is_not_there_is_refused(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "broken_callbacks", None)
    with pytest.raises(UserError) as caught:
        open_callbacks("csv,tensorbord", "nonsense,json:JSONDecoder,broken_callbacks:A", print)
    text = "\n".join(caught.value.faults)
    for words in ("Did you mean 'tensorboard'?", "allowed is module:Class", "json:JSONDecoder: is not a lmplay", "broken_callbacks:A: cannot be made"):
        assert words in text
    assert len(caught.value.faults) == 4

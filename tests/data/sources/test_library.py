"""Data sets as the `datasets` library has them: saved to this disk, prepared, or streamed."""
from __future__ import annotations

import json

import pytest
from files import OWN, TRAIN, opened, refused, rows_of

from lmplay.data.sources import IndexedSource, StreamedSource
from lmplay.errors import TrainingError


@pytest.mark.parametrize("split", [True, False])
def test_a_folder_of_save_to_disk(tmp_path, folder, split):
    import datasets

    parts = {name: datasets.Dataset.from_list([{"text": f"{name} {i}"} for i in range(4)]) for name in ("train", "valid", "test")}
    saved = datasets.DatasetDict(parts) if split else parts["train"]
    saved.save_to_disk(str(tmp_path / "in"))
    source = opened(tmp_path / "in", folder)
    assert rows_of(source) == [{"text": f"train {i}"} for i in range(4)]
    own = opened(tmp_path / "in", folder, "validation")
    assert (own[0]["text"] if split else own) == ("valid 0" if split else None)
    if split:
        assert opened(tmp_path / "in", folder, split="test")[0] == {"text": "test 0"}
        assert source.fingerprint != own.fingerprint
    assert "split" in refused(tmp_path / "in", folder, split="nothing")


def test_a_stream_goes_on_with_the_very_next_row_after_any(stand_in, folder):
    source = opened("owner/name", folder)
    assert isinstance(source, StreamedSource)
    assert (source.name, source.columns) == ("owner/name", ("text", "n"))
    assert list(source.open()) == TRAIN
    running = source.open()
    for count in range(len(TRAIN) + 1):
        state = json.loads(json.dumps(running.state()))
        again = source.open(state)
        assert again.state() == state
        assert [next(again, None) for _ in range(5)] == [*TRAIN[count:count + 5], *[None] * 5][:5]  # other readings, and resuming twice, disturb nothing
        assert list(source.open(again.state())) == TRAIN[count + 5:]
        assert next(running, None) == (TRAIN[count] if count < len(TRAIN) else None)
    assert len(json.dumps(running.state())) < 1000
    assert list(source.open(running.state())) == []


def test_a_sum_of_splits_streams_too(stand_in, folder):
    source = opened("owner/name", folder, split="train+dev")
    for count in (0, 7, 34, 35, 37, 39):
        stream = source.open()
        assert [next(stream) for _ in range(count)] == (TRAIN + OWN)[:count]
        assert list(source.open(stream.state())) == (TRAIN + OWN)[count:]
    assert opened("owner/name", folder, "validation", split="train+dev") is None


def test_the_validation_split_of_the_hub(stand_in, folder):
    assert list(opened("owner/name", folder, "validation").open()) == OWN
    assert rows_of(opened("owner/name", folder, "validation", streaming=False)) == OWN
    assert opened("owner/name", folder, "validation", split="dev") is None


def test_without_streaming_rows_have_numbers(stand_in, folder):
    source = opened("owner/name", folder, streaming=False)
    assert isinstance(source, IndexedSource)
    assert rows_of(source) == TRAIN
    assert rows_of(opened("owner/name", folder, split="train[5:9]")) == TRAIN[5:9]
    with pytest.raises(IndexError):
        source[-1]


def test_fingerprints_of_the_hub_differ_with_what_is_asked_for(stand_in, folder):
    asked = [{}, {"streaming": False}, {"split": "dev"}, {"split": "train[:5]"}, {"revision": "v1"}, {"config": "en"}]
    prints = [json.dumps(opened("owner/name", folder, **keys).fingerprint) for keys in asked]
    prints += [json.dumps(opened("owner/name", folder, "validation", streaming=streaming).fingerprint) for streaming in (True, False)]
    assert len(set(prints)) == len(asked) + 2
    assert prints[0] == json.dumps(opened("owner/name", folder).fingerprint)


@pytest.mark.parametrize(("keys", "says"), [
    ({"split": "tran"}, "has no split 'tran'; 'split' can be train, dev. Did you mean 'train'?"),
    ({"split": "train[:5]", "streaming": True}, "is a slice, which cannot be streamed"),
])
def test_splits_that_the_hub_does_not_have(stand_in, folder, keys, says):
    assert says in refused("owner/name", folder, **keys)


def test_a_stream_that_breaks_off_stops_training(stand_in, tmp_path, folder):
    source = opened("owner/name", folder)
    stream = source.open()
    assert next(stream) == TRAIN[0]
    (tmp_path / "train-1.parquet").write_bytes(b"gone")
    with pytest.raises(TrainingError, match="source owner/name: reading stopped"):
        list(stream)

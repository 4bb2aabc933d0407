"""TensorBoard holds every step once, over kills and stops."""
import glob

import pytest
from tracked import NAMES, expected, heard
from watched import NAME, check, interrupted


@pytest.mark.slow
def test_tensorboard_over_a_kill_and_a_stop(watched_folder):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    interrupted("tensorboard")
    [place] = (watched_folder / "out" / "tensorboard").iterdir()
    read = EventAccumulator(str(place), size_guidance={"tensors": 0, "images": 0}).Reload()
    found = {kind: {} for kind in ("train", "validation", "final_validation")}
    for tag in read.Tags()["tensors"]:
        kind, _, name = tag.partition("/")
        if name:
            found[kind][name] = [(event.step, event.tensor_proto.double_val[0]) for event in read.Tensors(tag)]
    check(*found.values())
    assert f"{NAME}_train_stats" in read.Tags()["images"]


def test_tensorboard_reads_every_step_once(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    heard("tensorboard", tmp_path)
    [folder] = glob.glob(str(tmp_path / "tensorboard" / "*"))
    read = EventAccumulator(folder, size_guidance={"tensors": 0, "images": 0}).Reload()
    for kind, every in (("train", 1), ("validation", 5)):
        for name in NAMES:
            found = [(event.step, event.tensor_proto.double_val[0]) for event in read.Tensors(f"{kind}/{name}")]
            assert found == expected(name, every)
    assert read.Images("quickstart")
    assert [event.step for event in read.Tensors("samples")] == list(range(5, 31, 5))
    assert b"Once <b>at</b>\n    ```15" in read.Tensors("samples")[2].tensor_proto.string_val[0]
    assert b"0.1" in read.Tensors("settings")[0].tensor_proto.string_val[0]

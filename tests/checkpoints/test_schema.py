"""Crafted checkpoints: what does not have the shape of a checkpoint is refused in a line by trainer, generator and --inspect, and takes no memory."""
import copy
import io
import shutil
import zipfile

import pytest
import torch
from helpers import TINY

from lmplay.checkpoints.format import Damaged, load, read, write
from lmplay.errors import UserError
from lmplay.generate.__main__ import main as generator
from lmplay.tokenizer import Tokenizer
from lmplay.train.__main__ import main


def put(content, path, value):
    """Put a value deep into a content; `...` takes what is there out."""
    for step in path[:-1]:
        content = content[step]
    if value is ...:
        del content[path[-1]]
    else:
        content[path[-1]] = value


WIDE = torch.zeros(1).expand(10**6, 10**6)
LOOP: list = []
LOOP.append(LOOP)
DEEP: list = []
for _ in range(300):
    DEEP = [DEEP]
BOMB: list = [0]
for _ in range(40):
    BOMB = [BOMB, BOMB]
MODEL, STATE = ("model", "state_args"), ("runner", "state")
CRAFTED = {
    "no model": (("model",), 5),
    "no tokenizer": ((*MODEL, "tokenizer"), ...),
    "garbage tokenizer": ((*MODEL, "tokenizer"), {"kind": "fast", "name": "x", "json": 5, "end_id": 0}),
    "no json": ((*MODEL, "tokenizer"), {"kind": "fast", "name": "x"}),
    "no experiment": ((*MODEL, "experiment"), None),
    "no context": ((*MODEL, "args", "context_len"), ...),
    "text as size": ((*MODEL, "args", "num_blocks"), "x"),
    "weights are numbers": (("model", "state"), {"a": 5}),
    "repeated weight": (("model", "state", "head.weight"), WIDE),
    "sparse weight": (("model", "state", "head.weight"), torch.eye(3).to_sparse()),
    "state of a stage": (("curriculum", "state", "stages", 0, "stale"), "x"),
    "done is a text": (("curriculum", "state", "stages", 0, "done"), "no"),
    "no state of a stage": (("curriculum", "state", "stages"), []),
    "plan is a list": (("curriculum", "state_args", "plan"), []),
    "no statistics": ((*STATE, "stats", "train"), ...),
    "uneven columns": ((*STATE, "stats", "train", "rows", "step"), [1]),
    "text as total": ((*STATE, "stats", "total_train_samples"), "x"),
    "no clock": ((*STATE, "clock"), ...),
    "strange key": (((1, 2),), 3),
    "huge number": ((*STATE, "stats", "total_train_samples"), 10**5000),
    "deep": ((*STATE, "in_row"), {"a": DEEP}),
    "bomb": ((*STATE, "in_row"), {"a": BOMB}),
    "loop": ((*STATE, "in_row"), {"a": LOOP}),
    "no settings": (("runner", "state_args", "settings", "seed"), ...),
    "wrong setting": (("runner", "state_args", "settings", "batch_size"), -5),
    "steps": (("lr_schedulers", "state", "main", "steps"), None),
    "optimizer": (("optimizers", "state"), []),
    "format": (("format",), "1"),
    "rules to come": (("curriculum", "state", "stages", 0, "rules"), 99),
    "tensor as fingerprint": (("curriculum", "state", "stages", 0, "fingerprints", 0, "rows"), torch.zeros(2)),
    "kind of the optimizer": (("optimizers", "state_args", "main"), {}),
    "parameters of a group": (("optimizers", "state", "main", "param_groups", 0, "params"), 5),
    "position is a text": (("curriculum", "state", "stages", 0, "position"), {"samples": "x"}),
}


@pytest.fixture(scope="module")
def whole(finished):
    return load(finished / "gpt2ish_model.lmp")


@pytest.mark.parametrize("name", CRAFTED)
def test_a_crafted_file_is_refused_by_all_who_read_it(whole, tmp_path, capsys, name):
    where, value = CRAFTED[name]
    content, path = copy.deepcopy(whole), tmp_path / "m.lmp"
    put(content, where, value)
    write(path, content)
    assert main(["--inspect", str(path)]) == 2
    assert main(["--dataset", "builtin:tales", "--model", str(path), "--out-dir", str(tmp_path), "--describe"]) == 2
    assert generator(["--model", str(path), "--prompt", "x"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert all("m.lmp" in line and "not a checkpoint" in line for line in said), said


@pytest.mark.parametrize("args", [{"num_blocks": 50}, {"embed_dim": 1_000_000}, {"context_len": 10**9}, {"dropout": 0.2}])
def test_a_model_larger_than_its_file_takes_no_memory(whole, tmp_path, capsys, args):
    content, path = copy.deepcopy(whole), tmp_path / "m.lmp"
    content["model"]["state_args"]["args"] |= args
    write(path, content)
    assert generator(["--model", str(path), "--prompt", "x", "--max-tokens", "1", "--device", "cpu"]) == (0 if "dropout" in args else 2)
    assert "Traceback" not in capsys.readouterr().err


def test_a_packed_archive_is_refused_before_it_is_unpacked(tmp_path, capsys):
    buffer, path = io.BytesIO(), tmp_path / "m.lmp"
    torch.save({"format": 1, "versions": {}, "model": torch.zeros(10_000_000)}, buffer)
    with zipfile.ZipFile(buffer) as whole, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as packed:
        for entry in whole.infolist():
            packed.writestr(entry.filename, whole.read(entry))
    assert path.stat().st_size < 100_000
    for check in (True, False):
        with pytest.raises(Damaged, match="packed"):
            read(path, check=check)
    assert main(["--inspect", str(path)]) == 2


def test_weights_alone_are_enough_to_write(whole, finished, tmp_path, capsys):
    path = tmp_path / "weights.lmp"
    write(path, {key: whole[key] for key in ("format", "versions", "model")})
    texts = []
    for file in (path, finished / "gpt2ish_model.lmp"):
        assert generator(["--model", str(file), "--prompt", "The cat", "--max-tokens", "9", "--device", "cpu"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]


@pytest.mark.parametrize("number", [2**31, 2**24, 10**6])
def test_token_ids_that_no_model_has(number):
    json = ('{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],"normalizer":null,"pre_tokenizer":null,"post_processor":null,"decoder":null,'
            f'"model":{{"type":"WordLevel","vocab":{{"a":0,"b":{number}}},"unk_token":"a"}}}}')
    spec = {"kind": "fast", "name": "made up", "json": json, "end_id": 0}
    if number < 2**24:
        assert Tokenizer(spec).vocab_size == number + 1
    else:
        with pytest.raises(UserError, match="largest id"):
            Tokenizer(spec)
    with pytest.raises(UserError, match="end token"):
        Tokenizer({**spec, "end_id": -1})


def test_what_cannot_be_restored_is_refused_and_left_as_it_is(whole, arguments, tmp_path, capsys):
    content, path = copy.deepcopy(whole), tmp_path / "gpt2ish_model.lmp"
    content["runner"]["state"]["random"]["python"] = [3, [1, 2], None]
    content["curriculum"]["state"]["stages"][1].update(done=False, position=None)
    write(path, content)
    before = path.read_bytes()
    assert main([*arguments, "--out-dir", str(tmp_path)]) == 2
    assert "its runner cannot be restored" in capsys.readouterr().err
    assert path.read_bytes() == before
    shutil.rmtree(tmp_path)


@pytest.fixture(scope="module")
def inside(tmp_path_factory):
    """A run that stopped inside a stage: its arguments, and what its checkpoint holds."""
    folder = tmp_path_factory.mktemp("inside")
    (folder / "a.txt").write_text("\n\n".join(f"Paragraph {i}. " + "The cat sat down on the mat. " * 4 for i in range(60)))
    arguments = [*TINY, "--dataset", str(folder / "a.txt"), "--batch-size", "4", "--model", "m.lmp"]
    assert main([*arguments, "--out-dir", str(folder), "--max-steps", "2"]) == 75
    return arguments, load(folder / "m.lmp")


PLACE = ("curriculum", "state", "stages", 0, "position")
READER = (*PLACE, "samples", "mix", "readers", 0)
FIRST = ("optimizers", "state", "main", "state", 0)
POSITIONS = {
    "negative": ((*PLACE, "read"), -1), "a text": ((*PLACE, "until"), "x"), "endless": ((*PLACE, "until"), 2**62), "a number": ((*PLACE, "samples", "mix"), 3),
    "no readers": ((*PLACE, "samples", "mix", "readers"), []), "other sources": ((*PLACE, "samples", "mix", "counts"), [1, 2]),
    "half a row": ((*READER, "offset"), 0.5), "no epoch": ((*READER, "epoch"), ...), "tensor": ((*PLACE, "ended"), torch.zeros(2)),
    "waiting": ((*PLACE, "waiting"), [[1]]), "short": ((*FIRST, "exp_avg"), torch.zeros(1)), "empty": ((*FIRST, "exp_avg_sq"), torch.zeros(0)),
    "complex": ((*FIRST, "exp_avg"), torch.zeros(1, dtype=torch.complex64)), "no tensor": ((*FIRST, "exp_avg"), 5), "missing": ((*FIRST, "exp_avg_sq"), ...),
    "steps": ((*FIRST, "step"), torch.zeros(2)), "same parameter": (("optimizers", "state", "main", "param_groups", 0, "params", 1), 0),
    "switch": (("optimizers", "state", "main", "param_groups", 0, "amsgrad"), True),
    "no such parameter": (("optimizers", "state", "main", "state", 1000), {"step": torch.zeros(())}),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_a_crafted_position_or_state_of_the_optimizer_is_refused_before_anything_is_written(inside, tmp_path, capsys, name):
    arguments, content = inside[0], copy.deepcopy(inside[1])
    put(content, *POSITIONS[name])
    write(tmp_path / "m.lmp", content)
    before = (tmp_path / "m.lmp").read_bytes()
    capsys.readouterr()
    assert main([*arguments, "--out-dir", str(tmp_path), "--max-steps", "1"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len([line for line in said if line.startswith("lmp_trainer:")]) == 1, said
    assert not any("Traceback" in line for line in said)
    assert (tmp_path / "m.lmp").read_bytes() == before


@pytest.mark.parametrize("place", [(*READER, "offset"), (*READER, "epoch"), (*PLACE, "read"), (*PLACE, "tokens"), (*PLACE, "samples", "samples")])
def test_a_position_beyond_the_data_is_no_traceback(inside, tmp_path, capsys, place):
    content = copy.deepcopy(inside[1])
    put(content, place, 2**40)
    write(tmp_path / "m.lmp", content)
    assert main([*inside[0], "--out-dir", str(tmp_path), "--max-steps", "1"]) in (0, 2, 75)
    assert "Traceback" not in capsys.readouterr().err

"""The table of experiments, with packages that are installed for the test only."""
from __future__ import annotations

import inspect
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from helpers import ROOT

from lmplay.errors import UserError
from lmplay.exp import Experiment, accepted_settings, build_model, experiments, get_experiment

TINY = get_experiment("gpt2ish_tiny")


def install(folder: Path, package: str, entries: str, module: str = "") -> None:
    """Make a folder of sys.path look as if a package were installed in it."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lmplay.experiments]\n{entries}\n")
    (folder / f"{package}.py").write_text(textwrap.dedent(module))


def run(folder: Path, code: str) -> str:
    """Run code in an interpreter that sees the folder's packages."""
    root = ROOT
    prelude = f"import sys; sys.path[:0] = [{str(root)!r}, {str(folder)!r}]\nfrom lmplay.errors import UserError\nfrom lmplay.exp import *\n"
    done = subprocess.run([sys.executable, "-c", prelude + textwrap.dedent(code)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_built_in_table() -> None:
    table = experiments()
    assert list(table)[:4] == ["gpt2ish", "gpt2ish_med", "gpt2ish_large", "gpt2ish_tiny"]
    assert all(name == experiment.name and experiment.description for name, experiment in table.items())
    assert table["gpt2ish"].settings == {}
    assert table["gpt2ish_med"].settings == {"num_blocks": 24, "embed_dim": 1024, "num_heads": 16}
    assert table["gpt2ish_large"].settings == {"num_blocks": 36, "embed_dim": 1280, "num_heads": 20}
    assert TINY.settings == {"num_blocks": 4, "embed_dim": 192, "num_heads": 6, "context_len": 256}


def test_builds_what_the_table_says() -> None:
    model = build_model(TINY, vocab_size=300, **TINY.settings)
    by_hand = 300 * 192 + 256 * 192 + 4 * (12 * 192 * 192 + 13 * 192) + 2 * 192  # GPT-2's count, the head tied
    assert sum(parameter.numel() for parameter in model.parameters()) == by_hand


def test_built_in_settings_are_ones_the_model_takes() -> None:
    for experiment in experiments().values():
        accepted = accepted_settings(experiment)
        assert accepted is not None
        assert set(experiment.settings) <= set(accepted)
    assert accepted_settings(TINY) == {"vocab_size": inspect.Parameter.empty, "context_len": inspect.Parameter.empty, "num_blocks": inspect.Parameter.empty,
                                       "embed_dim": inspect.Parameter.empty, "num_heads": inspect.Parameter.empty, "dropout": 0.1, "tied_head": True,
                                       "activation": "gelu_tanh"}


def test_the_defaults_of_a_constructor_hold_unless_somebody_says_otherwise(tmp_path: Path) -> None:
    install(tmp_path, "own_x", "own = own_x:Own\nopen = own_x:Open", """
        from torch import nn
        class Own(nn.Module):
            def __init__(self, vocab_size, embed_dim, context_len=64, *, num_blocks=2, dropout=0.3, rank=3):
                super().__init__()
                self.head = nn.Linear(rank, vocab_size, bias=False)
        class Open(Own):
            def __init__(self, num_blocks=5, **more):
                super().__init__(num_blocks=num_blocks, **more)
    """)
    said = run(tmp_path, """
        from lmplay.engine.model_spec import choose_model
        from lmplay.plan.load import plan_from_json
        from lmplay.train.flags import parse
        from pathlib import Path
        stage = {"stages": [{"name": "a", "dataset": "builtin:tales", "samples": 1}]}
        for plan, arguments in (({}, []), ({"num_blocks": 4}, []), ({"num_blocks": 4}, ["--num-blocks", "7", "--dropout", "0.1"])):
            settings, _ = parse(["--exp", "own", *arguments])
            print(choose_model(settings, plan_from_json({**stage, "model": plan}), Path("x.lmp"), None).args)
        print(choose_model(parse(["--exp", "open"])[0], plan_from_json(stage), Path("x.lmp"), None).args["num_blocks"])
    """)
    assert said.splitlines() == ["{'num_blocks': 2, 'embed_dim': 768, 'context_len': 64, 'dropout': 0.3}",
                                 "{'num_blocks': 4, 'embed_dim': 768, 'context_len': 64, 'dropout': 0.3}",
                                 "{'num_blocks': 7, 'embed_dim': 768, 'context_len': 64, 'dropout': 0.1}", "5"]


def test_unknown_name() -> None:
    with pytest.raises(UserError, match=r"--exp gpt2ich: .*Did you mean 'gpt2ish'\?.*gpt2ish, gpt2ish_med, gpt2ish_large, gpt2ish_tiny"):
        get_experiment("gpt2ich")


def test_unknown_and_missing_settings_come_together() -> None:
    with pytest.raises(UserError) as caught:
        build_model(TINY, vocab_size=300, context_len=16, num_blocks=1, embed_dim=8, num_head=2)
    unknown, missing = caught.value.faults
    assert "no setting 'num_head'. Did you mean 'num_heads'? It takes: vocab_size, context_len," in unknown
    assert "'num_heads' must be given" in missing


@pytest.mark.parametrize(("name", "setting", "said"), [
    ("modern", {"mlp": 3}, "the setting 'mlp' is 3; it must be a text."), ("modern", {"num_kv_heads": "two"}, 'is "two"; it must be a whole number or null.'),
    ("modern", {"query_key_norm": 1}, "is 1; it must be true or false."), ("modern", {"num_kv_heads": True}, "is true; it must be a whole number or null."),
    ("llamaish", {"rope_base": [1]}, r"is \[1\]; it must be a number."), ("unified", {"front_factor": None}, "is null; it must be a number.")])
def test_a_setting_of_another_kind_is_refused(name: str, setting: dict[str, Any], said: str) -> None:
    sizes = {"vocab_size": 50, "context_len": 16, "num_blocks": 1, "embed_dim": 16, "num_heads": 4}
    with pytest.raises(UserError, match=said) as caught:
        build_model(get_experiment(name), **sizes, **setting)
    assert len(caught.value.faults) == 1
    build_model(get_experiment("llamaish"), **sizes, rope_base=500, num_kv_heads=None)  # a whole number is a number


@pytest.mark.parametrize(
    ("target", "said"),
    [("lmplay_nowhere:Model", "ModuleNotFoundError"), ("lmplay.errors:Missing", "AttributeError"), ("not a target", "cannot be imported"),
     ("lmplay:__version__", "is not a class"), ("fractions:Fraction", "not a torch module"), ("torch.nn:Identity", "head")],
)  # fmt: skip
def test_broken_target_is_named(target: str, said: str) -> None:
    experiment = Experiment("mine", "from mine 1.0", target)
    with pytest.raises(UserError, match=r"mine 1\.0") as caught:
        build_model(experiment)
    assert "experiment 'mine'" in str(caught.value)
    assert target in str(caught.value)
    assert said in str(caught.value)
    assert len(caught.value.faults) == 1


def test_listing_needs_no_torch(tmp_path: Path) -> None:
    install(tmp_path, "heavy_x", "heavy = heavy_x:Model", "raise SystemExit('imported on listing')")
    said = run(tmp_path, """
        print(*experiments(), get_experiment("heavy").description, sep="|")
        try:
            get_experiment("hevy")
        except UserError as error:
            print(error)
        assert not {"torch", "numpy", "transformers", "heavy_x"} & set(sys.modules), sys.modules.keys()
    """)
    assert said.splitlines()[0].split("|") == [*experiments(), "heavy", "from heavy_x 1.0"]
    assert "Did you mean 'heavy'?" in said


def test_outside_package(tmp_path: Path) -> None:
    install(tmp_path, "good_x", "pair = good_x:Pair\nopen = good_x:Open", """
        from torch import nn
        class Pair(nn.Module):
            def __init__(self, vocab_size, context_len, *, rank=3):
                super().__init__()
                self.table = nn.Embedding(vocab_size, rank)
                self.head = nn.Linear(rank, vocab_size, bias=False)
            def forward(self, tokens_BT):
                return self.table(tokens_BT)
        class Open(Pair):
            def __init__(self, **settings):
                super().__init__(10, 10, rank=len(settings))
    """)
    install(tmp_path, "broken_x", "broken = broken_x:Model", "import nothing_of_that_name")
    said = run(tmp_path, """
        print(*[name for name in experiments() if name in ("pair", "open", "broken")])
        pair = build_model(get_experiment("pair"), vocab_size=7, context_len=5, rank=2)
        print(tuple(pair.head.weight.shape), accepted_settings(get_experiment("pair"))["rank"])
        print(tuple(build_model(get_experiment("open"), anything=1, goes=2).head.weight.shape), accepted_settings(get_experiment("open")))
        for name in ("pair", "broken"):
            try:
                build_model(get_experiment(name), vocab_size=7, context_len=5, num_blocks=2)
            except UserError as error:
                print(error)
    """)
    lines = said.splitlines()
    assert lines[:3] == ["broken open pair", "(7, 2) 3", "(10, 2) None"]
    assert lines[3] == "experiment 'pair': has no setting 'num_blocks'. It takes: vocab_size, context_len, rank."
    assert "experiment 'broken': broken_x:Model cannot be imported (ModuleNotFoundError: No module named 'nothing_of_that_name')" in lines[4]
    assert "from broken_x 1.0" in lines[4]


def test_a_name_offered_twice(tmp_path: Path) -> None:
    install(tmp_path / "own", "thief_x", "gpt2ish = thief_x:Model")
    install(tmp_path / "two", "one_x", "same = one_x:Model")
    install(tmp_path / "two", "two_x", "same = two_x:Model")
    code = """
        try:
            experiments()
        except UserError as error:
            print(error)
    """
    own, two = run(tmp_path / "own", code), run(tmp_path / "two", code)
    assert "experiment 'gpt2ish': offered twice" in own
    assert "lmplay.exp.gpt2ish:GPT2ish" in own
    assert "from thief_x 1.0" in own
    assert "from one_x 1.0" in two
    assert "from two_x 1.0" in two

"""Kinds of sources: the built-in ones, and those of packages that are installed for the test only."""
from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from types import SimpleNamespace

import pytest
from files import lines, write
from helpers import ENVIRONMENT, ROOT, TINY, load, trainer, write_plan

from lmplay.data.sources import open_source
from lmplay.data.sources.registry import FILES, HUB, find_kind, opener_of
from lmplay.errors import UserError
from lmplay.plan import catalog
from lmplay.plan.load import load_plan, plan_from_dataset


def test_heavy_libraries_are_imported_only_by_the_sources_that_need_them(tmp_path):
    path = write(tmp_path / "a.jsonl", lines("x"))
    code = f"""
import sys
import lmplay.data.save
from lmplay.data.sources import open_source
heavy = {{"numpy", "pyarrow", "datasets", "huggingface_hub", "torch", "transformers"}}
assert not heavy & set(sys.modules), heavy & set(sys.modules)
from types import SimpleNamespace
from pathlib import Path
keys = "config split revision streaming encoding_errors on_bad_row columns row_bytes"
spec = SimpleNamespace(path={str(path)!r}, **dict.fromkeys(keys.split()))
assert open_source(spec, "train", Path("nowhere"))[0] == {{"text": "x"}}
assert heavy & set(sys.modules) <= {{"numpy"}}, heavy & set(sys.modules)
"""
    root = str(ROOT)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, "PYTHONPATH": root}, cwd=tmp_path, check=False)
    assert done.returncode == 0, done.stderr


# The one file that a new source needs; the row is the entry point of the package.
TOY = """
    from lmplay.data.sources import IndexedSource
    from lmplay.errors import UserError, nearest

    class Toys(IndexedSource):
        columns = ("text",)

        def __init__(self, path, n_rows):
            self.name, self.n_rows, self.fingerprint = path, n_rows, {"kind": "toys", "path": path}

        def __getitem__(self, index):
            return {"text": f"The toy number {index} sat down. It was small."}

    def open(spec, split, folder):
        return None if split == "validation" else Toys(spec.path, None if spec.path == "toy:endless" else 60)

    def locate(path, folder):
        if path.endswith("lost"):
            raise UserError(f"no toy '{path}'.{nearest(path, ['toy:last'])}")
        return path.replace("here", folder.name)
"""


def install(folder: Path, package: str, entries: str, module: str) -> Path:
    """Make a folder of sys.path look as if a package were installed in it."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[lmplay.sources]\n{entries}\n")
    (folder / f"{package}.py").write_text(textwrap.dedent(module))
    return folder


@pytest.fixture
def packages(tmp_path, monkeypatch):
    """A folder for packages, as this process sees them."""
    folder = tmp_path / "packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(folder)
    before = set(sys.modules)
    catalog.source_kinds.cache_clear()
    yield folder
    catalog.source_kinds.cache_clear()
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(folder)):
            del sys.modules[name]


def test_a_source_of_another_package_trains_by_one_file(tmp_path):
    folder = install(tmp_path / "packages", "toy_x", "toy = toy_x", TOY)
    assert len(list(folder.rglob("*.py"))) == 1  # the number of files that a new source needs
    plan = write_plan(tmp_path, {"play": {"dataset": ["toy:anything", "builtin:tales"], "samples": 40, "context_len": 32}})
    done = trainer(*TINY, "--training-plan", plan, "--out-dir", tmp_path / "out", "--data-workers", "2", "--batch-size", "8",
                   env={"PYTHONPATH": f"{ROOT}:{folder}"})
    assert done.returncode == 0, done.stderr
    checkpoint = load(next((tmp_path / "out").glob("*.play.lmp")))
    assert checkpoint["runner"]["state"]["stats"]["total_train_samples"] == 40
    [fingerprint, _] = checkpoint["curriculum"]["state"]["stages"][0]["fingerprints"]
    assert fingerprint == {"name": "toy:anything", "kind": "toys", "path": "toy:anything", "reads": "'text'"}


def test_a_plan_is_checked_without_the_data_floor(tmp_path):
    """Only what offers the source is imported, and only where a plan names it."""
    install(tmp_path, "toy_x", "toy = toy_x", "def open(spec, split, folder): pass")
    install(tmp_path, "lazy_x", "lazy = lazy_x", "raise SystemExit('imported')")
    code = f"""
        import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]
        from lmplay.plan.load import plan_from_dataset
        print(*[plan_from_dataset(name).stages[0].name for name in ("toy:a/b?c", "builtin:tales/2", "owner/name")])
        print(sorted({{"lmplay.data", "toy_x", "lazy_x", "torch", "numpy"}} & set(sys.modules)))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, env=ENVIRONMENT, check=False)
    assert done.stdout.splitlines() == ["a_b tales_2 name", "['toy_x']"], done.stderr


def test_paths_are_located_by_their_kind(packages, tmp_path):
    install(packages, "toy_x", "toy = toy_x", TOY)
    plan = load_plan(write_plan(tmp_path, {"play": {"dataset": "toy:here", "samples": 2}}))
    assert plan.stages[0].dataset[0].path == f"toy:{tmp_path.name}"
    with pytest.raises(UserError, match=r"stage 'play', key 'dataset': no toy 'toy:lost'\. Did you mean 'toy:last'\?"):
        load_plan(write_plan(tmp_path, {"play": {"dataset": "toy:lost", "samples": 2}}))
    source = open_source(SimpleNamespace(path="toy:x"), "train", tmp_path)
    assert source[3]["text"].startswith("The toy number 3")


@pytest.mark.parametrize(("path", "right"), [("toi:anything", "toy:"), ("bultin:tales", "builtin:"), ("tooy:a.jsonl", "toy:")])
def test_an_unknown_prefix_is_refused_with_the_nearest_right_word(packages, path, right):
    install(packages, "toy_x", "toy = toy_x", TOY)
    with pytest.raises(UserError, match=rf"found \"{path}\", allowed: .* Did you mean '{right}'\?"):
        plan_from_dataset(path)


def test_a_source_whose_package_is_gone_is_named(tmp_path):
    with pytest.raises(UserError, match=r"source toy:x: .*no installed package offers sources that begin with 'toy:'"):
        open_source(SimpleNamespace(path="toy:x"), "train", tmp_path)


@pytest.mark.parametrize(("module", "said"), [("import nothing_of_that_name", "cannot be imported"), ("opens = None", "has no method open")])
def test_a_broken_package_is_named(packages, module, said):
    install(packages, "broken_x", "broken = broken_x", module)
    with pytest.raises(UserError, match=rf"source 'broken': broken_x .*{said}.*from broken_x 1\.0"):
        plan_from_dataset("broken:x")


def test_epochs_of_what_never_ends_are_refused(packages, tmp_path):
    from lmplay.data.stage import StageData

    install(packages, "toy_x", "toy = toy_x", TOY)
    (stage,) = plan_from_dataset("toy:endless").stages
    with pytest.raises(UserError, match=r"stage 'endless': epochs 1: .*never ends; give samples, tokens or steps"):
        StageData(stage, tmp_path, 0)


def test_kinds_without_a_prefix(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("named").touch()
    assert [find_kind(path) for path in ("named", "./x", "a/*.txt", "x.jsonl", "owner/name", "name")] == [FILES] * 4 + [HUB] * 2
    assert [opener_of(path).remote for path in ("named", "owner/name", "builtin:tales")] == [False, True, False]
    assert [opener_of(path).of_files for path in ("named", "owner/name", "builtin:tales")] == [True, False, False]

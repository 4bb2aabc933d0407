"""What must hold before the first test: the surroundings of whoever runs them do not matter."""
import os
import signal
import tempfile

# As many processes as cores run the tests: each with one thread, as the programs have that they start. Read when torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"

# What tests compile does not belong into the user's own cache.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "lmplay-tests-compiled"))

# The hub's client reads its environment once, when it is imported: here, before a test changes it for itself.
os.environ.pop("HF_HUB_OFFLINE", None)

import gzip
import sys

import huggingface_hub.constants  # noqa: F401
import hypothesis
import pytest
from helpers import sentences, write_plan, write_rows
from hub_rows import PARTS, ROWS, as_lines, write_parquet
from hub_server import HubServer
from watched import CALLBACKS

from lmplay import hub as hub_module
from lmplay.data.sources import hub

# How long an example takes says more of what else the machine does than of the code.
hypothesis.settings.register_profile("tests", deadline=None)
# The same examples each time: whether a change passes the gate must not be luck. New ones are looked for in every other run.
hypothesis.settings.register_profile("gate", deadline=None, derandomize=True)
hypothesis.settings.load_profile(os.environ.get("LMP_TESTS", "tests"))

# A shell lets what it runs in the background ignore these, and so would the programs that the tests start and send them to.
for _number, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _number) and signal.getsignal(getattr(signal, _number)) is signal.SIG_IGN:
        signal.signal(getattr(signal, _number), _handler)


def pytest_collection_modifyitems(items):
    """Begin with the long ones: at the end one of them would keep all cores but its own waiting."""
    items.sort(key=lambda item: "slow" not in item.keywords)


@pytest.fixture
def word_pieces(tmp_path):
    """A tokenizer of words and parts of words, as BERT's."""
    import tokenizers

    from lmplay.tokenizer import load_tokenizer

    fast = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "cat": 1, "##s": 2, "[SEP]": 3}, unk_token="[UNK]"))
    fast.normalizer = tokenizers.normalizers.BertNormalizer()
    fast.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    fast.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(str(tmp_path / "tokenizer.json"))


@pytest.fixture(scope="module")
def hub_root(tmp_path_factory):
    """Data sets of 200 rows in several forms; `csv` and `packed` are read by the library, the others by us."""
    hub_root = tmp_path_factory.mktemp("hub")
    for number, part in enumerate(PARTS):
        write_parquet(hub_root / f"o/parquet/data/train-{number:05d}-of-00004.parquet", part)
        for name, data in (("lines", as_lines(part).encode()), ("packed", gzip.compress(as_lines(part).encode()))):
            path = hub_root / f"o/{name}/train-{number}.jsonl{'.gz' if name == 'packed' else ''}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data if part or name == "lines" else gzip.compress(as_lines(ROWS[:0]).encode()))
        if part:
            write_parquet(hub_root / f"o/plain/train-{number}.parquet", part)
    (hub_root / "o/packed/train-1.jsonl.gz").unlink()  # the library reads no file without rows
    (hub_root / "o/csv").mkdir()
    (hub_root / "o/csv/train.csv").write_text("text,n\n" + "".join(f"{row['text']},{row['n']}\n" for row in ROWS))
    return hub_root


@pytest.fixture
def server(hub_root, monkeypatch):
    """A small hub on 127.0.0.1 with these data sets, which the client takes for the hub."""
    import datasets
    import huggingface_hub

    with HubServer(hub_root) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}")
        monkeypatch.setattr(datasets.config, "HF_ENDPOINT", server.url)
        monkeypatch.setattr(hub_module, "_FIRST_WAIT", 0.01)
        monkeypatch.setattr(hub_module, "_LONGEST_WAIT", 0.05)
        hub._builder.cache_clear()
        yield server
    hub._builder.cache_clear()


@pytest.fixture
def said(monkeypatch):
    """The lines that are said while the hub is waited for."""
    lines: list[str] = []
    monkeypatch.setattr(hub_module.waiting, "say", lines.append)
    monkeypatch.setattr(hub_module.waiting, "stopped", lambda: False)  # a run in this process may have left its own
    return lines


@pytest.fixture
def watched_folder(tmp_path, monkeypatch):
    """A plan of two stages, and callbacks to hear it."""
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1)} for i in range(60)])
    write_rows(tmp_path / "more.jsonl", [{"text": sentences(1, "dog")} for i in range(60)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "samples": 48}, "two": {"dataset": ["rows.jsonl", "more.jsonl"], "samples": 40}})
    (tmp_path / "watching.py").write_text(CALLBACKS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("watching", None)
    return tmp_path


@pytest.fixture
def two_stages(tmp_path, monkeypatch):
    """A plan of two stages."""
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(2 + i % 3)} for i in range(60)])
    monkeypatch.chdir(tmp_path)
    return write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "epochs": 2}, "two": {"dataset": "rows.jsonl", "samples": 5}})


@pytest.fixture
def small_corpus(tmp_path, monkeypatch):
    """A plan of one stage of 40 short texts."""
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1 + i % 5)} for i in range(40)])
    write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "batch_size": 6, "epochs": 1}})

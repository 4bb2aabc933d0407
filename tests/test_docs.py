"""README and docs are true: their commands are taken, their plans and programs work, their links lead somewhere."""
import io
import json
import re
import shlex

import pytest
from helpers import ROOT, TINY, sentences, write_rows

from lmplay.command_line import Parser
from lmplay.evaluate.__main__ import main as evaluate
from lmplay.evaluate.command import _parser as eval_flags
from lmplay.export.__main__ import main as export
from lmplay.export.command import _parser as export_flags
from lmplay.generate.__main__ import main as generate
from lmplay.generate.command import _parser as generator_flags
from lmplay.plan.load import load_plan
from lmplay.plotstats.__main__ import main as plot
from lmplay.plotstats.command import _build_parser as plot_flags
from lmplay.tools.__main__ import main as checkpoint
from lmplay.tools.command import _parser as checkpoint_flags
from lmplay.train.__main__ import main as train
from lmplay.train.flags import _build_parser as trainer_flags

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted([ROOT / "README.md", ROOT / "out_gpt" / "README.md",
                                                                                               *(ROOT / "docs").glob("*.md")])}
BLOCKS = [(page, language, text) for page, content in PAGES.items() for language, text in re.findall(r"^```(\w*)\n(.*?)^```", content, re.M | re.S)]
COMMANDS = sorted({line.split("  #")[0].strip() for _, language, text in BLOCKS if not language
                   for line in text.splitlines() if line.strip().startswith("lmp_")})
PLANS = [(page, text) for page, language, text in BLOCKS if language == "json"]
PROGRAMS = [(page, text) for page, language, text in BLOCKS if language == "python"]
# Flags of other programs that the pages name.
FOREIGN = {"--no-", "--ntasks-per-node", "--logdir", "--backend-store-uri", "--time", "--signal", "--compile", "--largest", "--ranks"}
# Models that are not here: tests/engine/test_hf_runs.py and test_imported.py have some; and what measures for a while: tests/preview/test_sizes.py.
NOT_HERE = ("--train-for", "--exp hf", "--initial-model Qwen", "--initial-model exported/", "--initial-model ckpt.pt")
# What prints something and ends, so that nothing need be trained.
LOOKS = ("--find-lr", "--check-plan", "--show-samples", "--show-batch", "--describe", "--inspect")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A folder as a reader may have it: texts, plans, and runs that are done."""
    folder = tmp_path_factory.mktemp("reader")
    for name in ("my_texts", "my_notes", "unseen_texts"):
        (folder / name).mkdir()
        write_rows(folder / name / "a.jsonl", [{"title": "Cats", "text": sentences(2)} for _ in range(2000)])
    for name in ("my_notes.jsonl", "my_wiki.jsonl"):
        write_rows(folder / name, [{"text": sentences(2)}])
    (folder / "prompts.txt").write_text("The cat\n")
    write_rows(folder / "my_questions.jsonl", [{"question": "A cat is", "choices": ["an animal", "a plant"], "answer": 0}])
    write_rows(folder / "my_problems.jsonl", [{"prompt": "1 + 1 =", "answer": "2"}])
    (folder / "my_plan.json").write_text(json.dumps({"one": {"dataset": "my_texts/", "samples": 700, "batch_size": 5}}))
    (folder / "short.json").write_text(json.dumps({"one": {"dataset": "my_texts/", "samples": 20}}))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.delenv("LMP_DATASETS", raising=False)
        for name in ("mine", "plain_s0", "dropout_s0", "gpt2ish_tiny_model"):
            assert train([*TINY, "--training-plan", "short.json", "--model", name, "--batch-size", "5", "--quiet"]) == 0
        assert checkpoint(["convert", "mine", "folder"]) == 0
        assert export(["mine", "exported"]) == 0
    return folder


@pytest.fixture
def reader(finished, monkeypatch):
    monkeypatch.chdir(finished)
    monkeypatch.delenv("LMP_DATASETS", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return finished


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_is_taken(reader, capsys, monkeypatch, command):
    program, *arguments = shlex.split(command.replace("$seed", "1"))
    if "--serve" in arguments:  # tests/generate/test_serve.py
        (generator_flags() if program == "lmp_generator" else plot_flags()).read(arguments)
        return
    if command == "lmp_export mine exported":
        assert export([*arguments, "--overwrite"]) == 0, capsys.readouterr().err
        return
    if program == "lmp_export" or any(f" {name}" in command for name in NOT_HERE):
        (export_flags() if program == "lmp_export" else trainer_flags()).read(arguments)
        return
    if program == "lmp_trainer":
        has_file = {"--use-config", "--initial-model", "--inspect"} & {*arguments}
        size = [] if has_file else [*(TINY if "--params" not in arguments else []), "--out-dir", "new"]
        code = train([*arguments, *size, *([] if {*LOOKS} & {*arguments} else ["--describe"])])
    elif program == "lmp_eval":
        if "--tasks" in arguments:  # tests/evaluate/test_harness.py has some
            eval_flags().read(arguments)
            return
        code = evaluate([*arguments, "--device", "cpu"])
    elif program == "lmp_checkpoint":
        code = checkpoint([*arguments, *(["--overwrite"] if arguments[0] in ("convert", "average") else [])])
    elif program == "lmp_generator":
        monkeypatch.setattr("sys.stdin", io.StringIO("The\n"))
        code = generate([*arguments, "--max-tokens", "2"])
    else:
        assert program == "lmp_plotstats"
        if "--html" in arguments:
            pytest.importorskip("plotly")
        code = plot([*arguments, "--x", "samples"])
    assert code == 0, capsys.readouterr().err


def test_every_command_of_several_processes_has_flags_that_there_are():
    commands = [line for page, _, text in BLOCKS for line in text.replace("\\\n", "").splitlines() if "torchrun " in line or "exec lmp_trainer" in line]
    assert len(commands) > 2
    for command in commands:
        trainer_flags().read(shlex.split(re.split(r"-m lmplay.train|exec lmp_trainer", command)[1].rstrip("'")))


def test_there_are_commands_plans_and_programs():
    assert len(COMMANDS) > 12
    assert len(PLANS) > 2
    assert PROGRAMS


@pytest.mark.parametrize(("page", "text"), PLANS)
def test_every_plan_is_one(reader, page, text):
    (reader / "chats.jsonl").write_text('{"dialogue": []}\n')
    (reader / "sums.jsonl").write_text('{"prompt": "q", "answer": "1"}\n')
    (reader / "pairs.jsonl").write_text('{"prompt": "q", "chosen": "a", "rejected": "b"}\n')
    (reader / "my_texts" / "b.txt").write_text("a")
    path = reader / "from_docs.json"
    path.write_text(text)
    assert load_plan(path).stages


@pytest.mark.parametrize(("page", "text"), PROGRAMS)
def test_every_program_runs(reader, capsys, page, text):
    exec(compile(text, page, "exec"), {})


@pytest.mark.parametrize("page", PAGES)
def test_every_flag_that_is_named_exists(page):
    def options(parser: Parser) -> set[str]:
        return {option for action in parser._actions for option in action.option_strings}

    known = options(trainer_flags()) | options(generator_flags()) | options(plot_flags()) | options(export_flags()) | options(eval_flags()) \
        | options(checkpoint_flags())
    spans = [span for span in re.findall(r"`([^`\n]+)`", PAGES[page]) if span.startswith(("--", "lmp_"))]
    spans += [line for _, language, text in BLOCKS if _ == page and language in ("", "bash") for line in text.splitlines() if line.startswith("lmp_")]
    named = {flag for span in spans for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]*", span)}
    assert named - known - FOREIGN == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", PAGES[page]):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(encoding="utf-8"), re.M)
            assert anchor in [re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings], target


@pytest.mark.parametrize("page", PAGES)
def test_headings_are_short_and_end_with_their_line(page):
    text = re.sub(r"^```.*?^```", "", PAGES[page], flags=re.M | re.S)
    assert [heading for heading in re.findall(r"^#+ .*$", text, re.M) if len(heading) > 60] == []


def test_every_pattern_of_freeze_matches_and_leaves_something_to_train():
    import torch

    from lmplay.exp import build_model, get_experiment
    from lmplay.optim.freeze import apply_freeze

    with torch.device("meta"):
        model = build_model(get_experiment("gpt2ish"), vocab_size=8, context_len=16, num_blocks=6, embed_dim=8, num_heads=2)
    patterns = [json.loads(span) for span in re.findall(r"`(\[\"[^`]*\])`", PAGES["docs/running.md"])]
    patterns += [stage["freeze"] for page, text in PLANS for stage in json.loads(text).values() if "freeze" in stage]
    assert len(patterns) > 3
    for pattern in patterns:
        assert apply_freeze(model, pattern)


def test_the_readme_is_a_page_and_the_contents_are_whole():
    assert len(PAGES["README.md"].splitlines()) <= 125
    listed = set(re.findall(r"\]\(([\w-]+\.md)\)", PAGES["docs/README.md"]))
    assert listed == {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}


def test_the_columns_of_the_statistics_are_those_there_are():
    from lmplay.stats.figures import CLOCK_COLUMNS, columns_of

    rows = {cells[1].strip(" `"): (cells[3].strip() != "", cells[4].strip() != "") for line in PAGES["docs/checkpoint.md"].splitlines()
            if (cells := line.split("|"))[0] == "" and len(cells) == 6 and cells[1].startswith(" `")}
    rows = {name: shown for name, shown in rows.items() if shown != (True, False) or not name.startswith("--")}
    expected = {}
    for position, kind in enumerate(("train", "validate")):
        for name in (*columns_of(kind), *(f"clock.{name}" for name in columns_of(kind, clock=True))):
            expected.setdefault(name, [False, False])[position] = True
    documented = {name: shown for name, shown in rows.items() if name.removeprefix("clock.") in {*columns_of("train"), *columns_of("validate"), *CLOCK_COLUMNS}}
    assert documented == {name: tuple(shown) for name, shown in expected.items()}

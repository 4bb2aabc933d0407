"""Records of settings, side by side: those of this version and of version 0.1 say the same."""
from lmplay.plan.load import plan_from_json
from lmplay.plan.settings import Settings, resolve_stage
from lmplay.plan.used import flags_as_given, flags_of_record, flat_settings, run_settings, stage_settings

PLAN = {"stages": [{"name": "a", "dataset": "builtin:tales", "samples": 9, "lr": 0.1}, {"name": "b", "dataset": "builtin:tales", "samples": 9}]}
MODEL = {"num_blocks": 2, "embed_dim": 16, "context_len": 64}


def record(settings: Settings) -> dict:
    stages = {stage.name: stage_settings(stage, resolve_stage(settings, stage, 64)) for stage in plan_from_json(PLAN).stages}
    return {**run_settings(settings), "model_args": MODEL, "stages": stages, "plan": PLAN, **flags_as_given(settings)}


def test_a_stage_has_what_it_used_and_what_nobody_used_is_not_there():
    flat = flat_settings(record(Settings(batch_size=7, explicit=frozenset(["batch_size"]))))
    assert (flat["a.lr"], flat["b.lr"], flat["a.batch_size"], flat["b.batch_size"]) == (0.1, 0.0006, 7, 7)
    assert (flat["a.context_len"], flat["a.weight_decay"], flat["a.schedule"]) == (64, 0.01, "constant")
    assert (flat["num_blocks"], flat["embed_dim"]) == (2, 16)
    assert (flat["a.betas"], flat["a.eps"]) == ((0.9, 0.999), 1e-8)
    assert not {"a.momentum", "a.validation_is_bounded", "lr", "batch_size", "num_heads", "context_len_flag", "typed", "defaults"} & flat.keys()


def test_a_record_of_version_01_is_compared_by_what_its_stages_used():
    settings = Settings(batch_size=7, explicit=frozenset(["batch_size"]))
    old = flat_settings({**settings.to_json(), "model_args": MODEL, "plan": plan_from_json(PLAN).to_json()})
    new = flat_settings(record(settings))
    for name in ("a.lr", "b.lr", "a.batch_size", "b.batch_size", "a.context_len", "num_blocks", "seed", "a.dataset", "a.samples"):
        assert old[name] == new[name], name
    assert not {"lr", "batch_size", "num_heads"} & old.keys()


def test_the_flags_of_a_record_are_those_it_was_made_of_without_what_is_done_once():
    settings = Settings(lr=0.2, seed=3, resume="best", reset_history=True, training_plan="x.json",
                        explicit=frozenset(["lr", "resume", "reset_history", "training_plan"]))
    typed, others = flags_of_record(record(settings))
    assert typed == {"lr": 0.2}
    assert others["seed"] == 3
    assert not {"resume", "reset_history", "training_plan", "out_dir", "lr"} & others.keys()

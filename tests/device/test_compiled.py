"""`--compile-model`: the same results, code that is made once for all mini-batches, and runs that go on bit for bit."""
import shutil
from contextlib import contextmanager, nullcontext

import pytest
import torch
from helpers import TINY, compare_runs, sentences, trainer, write_plan, write_rows
from torch import _dynamo

from lmplay.data.collate import MiniBatch
from lmplay.device.runtime import Runtime
from lmplay.errors import UserError
from lmplay.exp import build_model, get_experiment
from lmplay.objectives import linear_cross_entropy
from lmplay.objectives.next_token import NextToken
from lmplay.plan.settings import Settings

CONTEXT = 64
ON_CPU = linear_cross_entropy._compute


def make(dropout=0.0, while_compiling=nullcontext, backend="aot_eager", **options):
    """A model with one block, which compiles as fast as can be; "eager" makes the same graphs, and runs them without code of their own."""
    torch.manual_seed(1)
    model = build_model(get_experiment("gpt2ish"), vocab_size=90, context_len=CONTEXT, num_blocks=1, embed_dim=16, num_heads=2, dropout=dropout)
    said = []
    runtime = Runtime(Settings(device="cpu", compile_model=True, compile_backend=backend, mini_batch_size=8, **options))
    return model, runtime, runtime.wrap(model, CONTEXT, said.append, while_compiling), said


@pytest.fixture(autouse=True)
def fresh():
    _dynamo.reset()
    _dynamo.utils.counters.clear()


def judge(model, wrapped, rows, width, positions=slice(None, None, 3)):
    tokens = torch.randint(0, 90, (rows, width), generator=torch.Generator().manual_seed(rows * 100 + width))
    where = torch.arange(rows * width)[positions]
    model.zero_grad()
    result = NextToken().loss(wrapped, MiniBatch(tokens, where, tokens.flatten()[where], [], 0), model.head)
    if torch.is_grad_enabled():
        result.loss_sum.backward()
    return float(result.loss_sum), [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def test_mini_batches_of_all_shapes_have_one_code_and_the_results_of_the_model_itself():
    model, _, wrapped, said = make()
    shapes = [(8, 64), (3, 40), (64, 64), (2, 8), (16, 16), (8, 24), (1, 64), (1, 8), (5, 64), (90, 16)]
    for rows, width in shapes:
        loss, gradients = judge(model, wrapped, rows, width)
        expected, wanted = judge(model, model, rows, width)
        assert loss == pytest.approx(expected, rel=1e-5)
        for one, other in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert [line.partition(":")[0] for line in said] == ["compiled for training", "compiled for training, single pieces"]
    model.eval()
    with torch.no_grad():
        for rows, width in reversed(shapes):
            judge(model, wrapped, rows, width)
    model.train()
    judge(model, wrapped, 4, 32)
    assert [line.partition(":")[0] for line in said[2:]] == ["compiled for validation", "compiled for validation, single pieces"]
    assert (wrapped.graphs, wrapped.made_again) == (4, 0)
    model.blocks[0].requires_grad_(False)  # a stage that freezes
    judge(model, wrapped, 4, 32)
    judge(model, wrapped, 5, 16)
    assert (wrapped.graphs, wrapped.made_again) == (5, 0)


def test_a_plan_whose_stages_freeze_many_different_parts_stays_compiled():
    model, _, wrapped, _ = make(backend="eager")
    for number, parameter in enumerate(list(model.parameters())[:10], 1):  # torch's own limit is 8
        parameter.requires_grad_(False)
        judge(model, wrapped, 4, 32)
        assert (wrapped.graphs, wrapped.made_again) == (number, 0)


def test_code_that_is_made_again_is_counted_and_told():
    model, _, wrapped, said = make(backend="eager")
    judge(model, wrapped, 2, 8)
    _dynamo.reset()  # stands for a model that torch cannot make one code of
    judge(model, wrapped, 2, 16)
    assert wrapped.made_again == 1
    assert said[-1].startswith("WARNING: compiled again, for a mini-batch of (2, 16)")


def test_making_the_code_draws_no_random_numbers_and_leaves_no_gradient():
    model, _, wrapped, _ = make(dropout=0.2)
    torch.manual_seed(3)
    first, gradients = judge(model, wrapped, 3, 24)
    torch.manual_seed(3)
    again, same = judge(model, wrapped, 3, 24)
    assert first == again
    assert all(torch.equal(one, other) for one, other in zip(gradients, same, strict=True))


def test_what_is_put_around_compiling_is_not_around_steps_and_may_end_it():
    """A request to stop ends compilation at once; the next try starts anew."""
    around = []

    @contextmanager
    def stopping():
        around.append("begun")
        if len(around) == 1:
            raise KeyboardInterrupt
        yield
        around.append("done")

    model, _, wrapped, said = make(while_compiling=stopping, backend="eager")
    with pytest.raises(KeyboardInterrupt):
        judge(model, wrapped, 2, 8)
    assert not said
    for _ in range(2):
        judge(model, wrapped, 2, 8)
        assert around == ["begun", "begun", "done"]
        assert len(said) == 1


def test_compiled_bfloat16_is_near_what_the_model_itself_gives():
    model, runtime, wrapped, _ = make(amp=True)
    with runtime.autocast():
        loss, gradients = judge(model, wrapped, 6, 64)
        expected, wanted = judge(model, model, 6, 64)
    assert loss == pytest.approx(expected, rel=1e-3)
    for one, other in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02 * float(other.abs().max()) + 1e-6)


@pytest.mark.parametrize(("amp", "context", "fused"), [(True, 512, False), (True, 513, True), (False, 512, True)])
def test_short_contexts_in_bfloat16_have_attention_by_plain_products(amp, context, fused):
    class Watching(torch.nn.Linear):
        @_dynamo.disable
        def forward(self, tokens):
            assert torch.backends.cuda.flash_sdp_enabled() is fused
            return super().forward(tokens.float())

    runtime = Runtime(Settings(device="cpu", compile_model=True, compile_backend="eager", amp=amp))
    with torch.no_grad():
        wrapped = runtime.wrap(Watching(context, 8), context, print)
        wrapped(torch.zeros(1, context, dtype=torch.int64))
    assert torch.backends.cuda.flash_sdp_enabled()


@pytest.mark.parametrize("name", ["gpt2ish", "llamaish", "modern"])
@pytest.mark.parametrize("amp", [False, True])
def test_packed_pieces_of_all_lengths_have_one_code_and_the_results_of_the_model_itself(name, amp):
    torch.manual_seed(1)
    model = build_model(get_experiment(name), vocab_size=90, context_len=CONTEXT, num_blocks=1, embed_dim=16, num_heads=2, dropout=0.0)
    runtime, said = Runtime(Settings(device="cpu", compile_model=True, compile_backend="aot_eager", pack="on", amp=amp)), []
    assert runtime.packs(model)
    wrapped = runtime.wrap(model, CONTEXT, said.append)
    for lengths in ((64, 3, 3, 20), (5,), (1, 1, 1), (64,) * 4, (2, 1), (1,)):
        tokens = torch.randint(0, 90, (1, sum(lengths)), generator=torch.Generator().manual_seed(sum(lengths)))
        where = torch.arange(sum(lengths))[::2]
        found = []
        for way in (wrapped, model):
            model.zero_grad()
            with runtime.autocast():
                result = NextToken().loss(way, MiniBatch(tokens, where, tokens.flatten()[where], [], 0, lengths), model.head)
            result.loss_sum.backward()
            found.append([result.loss_sum.detach(), *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None)])
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, rtol=0.05 if amp else 1e-4, atol=(0.02 if amp else 1e-5) * float(other.abs().max()) + 1e-6)
    assert (wrapped.graphs, wrapped.made_again) == (1, 0)
    assert [line.partition(":")[0] for line in said] == ["compiled for training, packed pieces"]


@pytest.mark.parametrize(("model", "fault"), [
    ({"dropout": 0.1}, "--pack on and --compile-model together: the model drops attention weights.*--dropout 0"), (None, "would be compiled again")])
def test_packed_pieces_that_cannot_be_compiled_are_refused(model, fault):
    class Other(torch.nn.Module):
        def forward(self, tokens, lengths=None):
            return tokens

    built = Other() if model is None else build_model(get_experiment("gpt2ish"), vocab_size=90, context_len=8, num_blocks=1, embed_dim=16, num_heads=2, **model)
    with pytest.raises(UserError, match=fault):
        Runtime(Settings(device="cpu", compile_model=True, pack="on")).packs(built)
    assert not Runtime(Settings(device="cpu", compile_model=True)).packs(built)


@pytest.fixture
def loss_as_on_gpu(monkeypatch):
    """Let a model be judged by the compiled loss, in chunks of N positions; gives the sizes that the code has been run with, in order."""
    def install(wrapped, chunk=16):
        on_gpu, code, sizes = linear_cross_entropy._compute_on_gpu, wrapped._loss_code, []
        monkeypatch.setattr(type(wrapped), "judge_chunk", property(lambda self: self._judge_chunk))
        monkeypatch.setattr(linear_cross_entropy, "_compute", lambda *problem: on_gpu(*problem[:3], chunk, wrapped.judge_chunk, *problem[4:]))
        monkeypatch.setattr(wrapped, "_loss_code", lambda logits, *more: sizes.append(len(logits)) or code(logits, *more))
        return sizes

    return install


def test_the_code_of_the_loss_is_made_once_and_counted(monkeypatch, loss_as_on_gpu):
    """As on a GPU; it is no reason to say that the model was compiled again."""
    model, _, wrapped, said = make()
    assert wrapped.judge_chunk is None  # on a CPU
    loss_as_on_gpu(wrapped)
    for rows, width in [(8, 64), (3, 40), (5, 64), (7, 7)]:  # the last chunk of the last one has a single position
        loss, gradients = judge(model, wrapped, rows, width)
        with monkeypatch.context() as plain:
            plain.setattr(linear_cross_entropy, "_compute", ON_CPU)
            expected, wanted = judge(model, model, rows, width)
        assert loss == pytest.approx(expected, rel=1e-5)
        for one, other in zip(gradients, wanted, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
    assert [line.partition(":")[0] for line in said] == ["compiled for training", "compiled for the loss"]
    assert wrapped.made_again == 0


@pytest.mark.parametrize("first", [(8, 64), (3, 40)])
def test_the_code_of_the_loss_does_not_depend_on_the_mini_batch_at_hand(loss_as_on_gpu, first):
    """Else the last bits of a run that goes on would: torch's choices depend on the sizes that it sees first."""
    model, _, wrapped, _ = make(backend="eager")
    sizes = loss_as_on_gpu(wrapped)
    judge(model, wrapped, *first)
    assert sizes[:2] == [1024, 16]


def test_a_request_to_stop_ends_each_compilation_of_the_loss(loss_as_on_gpu):
    """That of training, and that of validation, which has no gradient; the next try starts again."""
    around, stops = [], []

    @contextmanager
    def stopping():
        around.append(len(said))
        if stops:
            raise stops.pop()
        yield

    model, _, wrapped, said = make(while_compiling=stopping, backend="eager")
    loss_as_on_gpu(wrapped)
    for ends, training in (((0, 1), True), ((2, 3), False)):
        with torch.set_grad_enabled(training):
            wrapped(torch.zeros(2, 8, dtype=torch.int64))  # the model itself is compiled
            stops.append(KeyboardInterrupt())
            with pytest.raises(KeyboardInterrupt):
                judge(model, wrapped, 2, 8)
            for _ in range(2):
                judge(model, wrapped, 2, 8)
        assert around[-3:] == [ends[0], ends[1], ends[1]]
    assert [line.partition(":")[0] for line in said] == ["compiled for training", "compiled for the loss", "compiled for validation",
                                                         "compiled for the loss of validations"]
    assert wrapped.made_again == 0


def test_a_backend_that_is_not_there_is_refused():
    model, _, _, _ = make()
    with pytest.raises(UserError, match="inductor"):
        Runtime(Settings(device="cpu", compile_model=True, compile_backend="inducter")).wrap(model, CONTEXT, print)


COUNT = """
import sys
from lmplay.track.callback import Callback

class Count(Callback):
    def train(self, figures):
        from torch._dynamo.utils import counters
        print("cache", counters["inductor"]["fxgraph_cache_hit"], counters["inductor"]["fxgraph_cache_miss"], file=sys.stderr, flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch compiles with g++ on a CPU")
def test_compiled_runs_go_on_bit_for_bit_and_take_what_was_compiled(tmp_path):
    """Stopped where the mini-batches at hand have other shapes than at the start."""
    (tmp_path / "count.py").write_text(COUNT)
    write_rows(tmp_path / "rows.jsonl", [{"text": sentences(1 + i % 7)} for i in range(40)])
    plan = write_plan(tmp_path, {"one": {"dataset": "rows.jsonl", "validation": 0.1, "batch_size": 9}})

    def run(out, *more):
        done = trainer(*TINY, "--dropout", "0.1", "--training-plan", plan, "--compile-model", "--mini-batch-size", "2", "--validation-interval", "15",
                       "--callback", "count:Count", "--out-dir", out, *more, cwd=tmp_path, timeout=400,
                       env={"XDG_CACHE_HOME": str(tmp_path / "cache"), "TORCHINDUCTOR_CACHE_DIR": None})
        assert done.returncode == (75 if more else 0), done.stdout + done.stderr
        return done.stdout, [[int(count) for count in line.split()[1:]] for line in done.stderr.splitlines() if line.startswith("cache ")]

    text, counts = run("whole")
    assert "graphs, none of them again" in text
    assert text.count("compiled for ") in (3, 4)
    assert counts[0][0] == 0 < counts[0][1]
    _, [first, *_] = run("parts", "--max-steps", 2)
    assert first[1] == 0 < first[0] == counts[0][1]
    run("parts")
    assert compare_runs(tmp_path / "whole", tmp_path / "parts") == []

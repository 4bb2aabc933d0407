"""SentencePiece models as tokenizers: the ids of SentencePiece, what is refused, and runs that go on without the package."""
import json
import subprocess
import sys
import unicodedata

import pytest
from helpers import ENVIRONMENT, TINY, sentences, train
from hypothesis import assume, given
from hypothesis import strategies as st

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.errors import UserError
from lmplay.tokenizer import Tokenizer, load_tokenizer

sentencepiece = pytest.importorskip("sentencepiece")
pytest.importorskip("google.protobuf")

LINES = ["The cat sat on the mat, and the dog didn't.", "Größe, naïve façade; señor años.", "Русский язык и кот сел на коврик.", "日本語の文です。猫が座った。",
         "한국어 문장 고양이", "def cat(x):  return x ** 2 + 31", "ελληνική γλώσσα", "हिन्दी में वाक्य है।", "العربية جملة قصيرة",
         "    if x == 10: # ok", "aaa aaaa bbbb 1234 99"] * 12
PLAIN = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False}
KINDS = {
    "unigram": {"model_type": "unigram"}, "bpe": {"model_type": "bpe"},
    "unigram bytes": {"model_type": "unigram", "byte_fallback": True, **PLAIN, "vocab_size": 520},
    "llama": {"model_type": "bpe", "byte_fallback": True, **PLAIN, "split_digits": True, "allow_whitespace_only_pieces": True, "vocab_size": 520},
    "gemma": {"model_type": "bpe", "byte_fallback": True, **PLAIN, "add_dummy_prefix": False,
              "user_defined_symbols": ["\n", "\n\n", "<table>", "▁▁"], "vocab_size": 520},
    "unigram symbols": {"model_type": "unigram", "user_defined_symbols": ["<sep>", "<s2>"], "control_symbols": ["<ctl>"]},
    "bpe symbols": {"model_type": "bpe", "user_defined_symbols": ["<sep>", "<s2>"], "byte_fallback": True, "vocab_size": 520},
    "small letters": {"model_type": "unigram", "normalization_rule_name": "nmt_nfkc_cf"}}
WORDS = ["cat", "<sep>", "<s2>", "</s>", "<unk>", "<0x41>", "<ctl>", "<table>", "▁", "▁▁", " ", "  ",
         "\n", "\n\n", "\t", "\u00a0", "\u3000", "aaaaa", "é", "日本", "кот", "½", "1234", "x"]
TEXTS = st.one_of(st.lists(st.sampled_from(WORDS), max_size=12).map("".join), st.lists(st.sampled_from(LINES), max_size=3).map("\n".join), st.text(max_size=40))


def make(folder, kind):
    settings = {"vocab_size": 260, "minloglevel": 2, "num_threads": 1, **KINDS[kind]}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_prefix=str(folder / "tokenizer"), hard_vocab_limit=False, **settings)
    return folder / "tokenizer.model"


@pytest.fixture(scope="module", params=KINDS)
def both(request, tmp_path_factory):
    file = make(tmp_path_factory.mktemp("model"), request.param)
    return load_tokenizer(str(file)), sentencepiece.SentencePieceProcessor(model_file=str(file)), request.param


def is_plain(text):
    """Whether the two look up its characters in the same way: `tokenizers` takes a table of normalization by what a reader sees as a character."""
    return all(unicodedata.category(character)[0] not in "MC" and not "\uff66" <= character <= "\uff9f" for character in text if character not in "\n\t")


@given(TEXTS)
def test_ids_are_those_of_sentencepiece(both, text):
    ours, theirs, kind = both
    assume("normalization_rule_name" in KINDS[kind] or is_plain(text))
    assume(kind != "bpe symbols" or text.strip() not in ("<sep>", "<s2>"))  # no space is put before a text that is a symbol and nothing else
    expected = theirs.encode(text)
    encoded = ours.encode(text)
    assert encoded.ids.tolist() == expected
    assert encoded.starts[-1] == (len(text) if expected else 0)
    if theirs.unk_id() not in expected:
        assert ours.decode(expected) == theirs.decode(expected)
    if kind == "llama" and "▁" not in text:
        assert ours.decode(expected) == text


@pytest.mark.parametrize("text", ["</s> a</s>", "<s><unk><0x41>", "a <ctl> b"])
def test_names_of_control_pieces_are_text(both, text):
    ours, theirs, _ = both
    ids = ours.encode(text).ids.tolist()
    assert ids == theirs.encode(text)
    assert not {theirs.piece_to_id(name) for name in ("</s>", "<s>", "<0x41>", "<ctl>")} - {theirs.unk_id()} & {*ids}
    assert ours.encode_markup("</s>").ids.tolist()[-1:] == [ours.end_id] == [theirs.eos_id()]


def test_a_spec_alone_gives_the_same_ids(both):
    ours, theirs, _ = both
    assert Tokenizer(ours.spec).encode("\n".join(LINES)).ids.tolist() == theirs.encode("\n".join(LINES))
    assert ours.vocab_size == theirs.vocab_size()


def test_a_run_of_unknown_characters_may_be_cut_between_any_two(both):
    ours, _, kind = both
    if "byte_fallback" not in KINDS[kind]:
        pytest.skip("unknown characters are one token")
    text = "The cat." + "☃\r✈" * 60 + " cat"
    encoded = ours.encode(text)
    assert {*range(8, 188)} <= {*encoded.starts[encoded.cuttable].tolist()}
    pieces = Cutter(ours, 32).cut(Sample("", text))
    assert "".join(piece.truth for piece in pieces) == text
    assert all(len(piece.tokens) > 20 for piece in pieces[:-1])


def test_a_folder_that_has_only_a_model(tmp_path):
    file = make(tmp_path, "llama")
    (tmp_path / "tokenizer.vocab").unlink()
    config = {"eos_token": "<|im_end|>", "added_tokens_decoder": {"520": {"content": "<|im_end|>", "special": True}}, "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_tokenizer(str(tmp_path))
    assert ours.encode("The cat.").ids.tolist() == sentencepiece.SentencePieceProcessor(model_file=str(file)).encode("The cat.")
    assert (ours.end_text, ours.end_id, ours.chat_template) == ("<|im_end|>", 520, "{{ messages }}")
    file.rename(tmp_path / "a.model")
    assert load_tokenizer(str(tmp_path)).end_id == 520
    (tmp_path / "b.model").write_bytes(b"x")
    with pytest.raises(UserError, match=r"several others \(a.model, b.model\)"):
        load_tokenizer(str(tmp_path))


def test_a_damaged_model_is_refused_in_one_line(tmp_path):
    from sentencepiece import sentencepiece_model_pb2

    good = make(tmp_path, "bpe").read_bytes()
    proto = sentencepiece_model_pb2.ModelProto.FromString(good)

    def changed(change):
        other = sentencepiece_model_pb2.ModelProto.FromString(good)
        change(other)
        return other.SerializeToString()

    for content in (b"", b"x", good[:len(good) // 2 + 1], b"\x00" * 99, b"hello\n" * 9, good[:50], changed(lambda p: p.pieces.append(proto.pieces[20])),
                    changed(lambda p: setattr(p.pieces[30], "score", float("nan"))), changed(lambda p: setattr(p.pieces[0], "type", 1)),
                    changed(lambda p: setattr(p.trainer_spec, "model_type", 3)), changed(lambda p: setattr(p.pieces[40], "piece", "x" * 9999)),
                    changed(lambda p: setattr(p.normalizer_spec, "precompiled_charsmap", b"\xff\xff\xff\xff\x01")),
                    changed(lambda p: setattr(p.normalizer_spec, "precompiled_charsmap", b"\x08\x00\x00\x00\xff\xff\xff\xff\xff\xff\xff\xff"))):
        (tmp_path / "tokenizer.model").write_bytes(content)
        with pytest.raises(UserError, match=r"tokenizer.model: cannot be read") as caught:
            load_tokenizer(str(tmp_path / "tokenizer.model")).encode("The cat. ① é")
        assert len(str(caught.value).splitlines()) == 1


WITHOUT = "import sys; sys.modules['sentencepiece'] = None; from {module} import main; sys.exit(main(sys.argv[1:]))"


def test_a_run_goes_on_and_writes_without_package_and_file(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    file = make(tmp_path, "llama")
    (tmp_path / "text.txt").write_text("\n\n".join([sentences(4)] * 30), encoding="utf-8")
    plan = {"$tokenizer": "tokenizer.model", "a": {"dataset": "text.txt", "samples": 10}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    base = [*TINY, "--batch-size", "5", "--training-plan", "plan.json"]
    base = [word for number, word in enumerate(base) if "--tokenizer" not in base[max(0, number - 1):number + 1]]

    def without(module, *arguments):
        return subprocess.run([sys.executable, "-c", WITHOUT.format(module=module), *arguments], capture_output=True, text=True, check=False, env=ENVIRONMENT)

    refused = without("lmplay.train.__main__", *base)
    assert refused.returncode == 2
    assert 'pip install "lmplay[sentencepiece]"' in refused.stderr
    train(capsys, *base[len(TINY) - 2:], "--tokenizer", "tokenizer.model")
    file.unlink()
    (tmp_path / "plan.json").write_text(json.dumps({**plan, "b": {"dataset": "text.txt", "samples": 10}}))
    went_on = without("lmplay.train.__main__", *base)
    assert went_on.returncode == 0, went_on.stderr
    wrote = without("lmplay.generate.__main__", "--prompt", "The cat", "--model", "out_gpt/gpt2ish_model.lmp", "--device", "cpu")
    assert wrote.returncode == 0, wrote.stderr

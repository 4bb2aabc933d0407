"""Special tokens that stand in tokenizer_config.json alone, and chats in the templates of well-known models: the ids are those of transformers."""
import json
from functools import lru_cache
from itertools import groupby
from operator import itemgetter

import pytest
from templates import FORMATS
from tokenizers import Tokenizer, models, pre_tokenizers, trainers

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample, Turn
from lmplay.tokenizer import load_tokenizer, train_tokenizer

# How most of these models split a text into words.
SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
TEXTS = ["What is it? It is a cat, user and assistant. Goodbye. Thanks!\n\n[INST] USER: ASSISTANT: 42.\nReally.\n\n\n"] * 9
CHAT = [("user", "What is 6 * 7?"), ("assistant", "It is 42.\nReally."), ("user", "Thanks, 日本!"), ("assistant", "Goodbye.")]
SYSTEM = ("system", "Be kind.")
CHATS = {"plain": CHAT, "system": [SYSTEM, *CHAT], "late system": [*CHAT[:2], SYSTEM, *CHAT[2:]]}
KINDS = ("bytes", "word mark before each text", "word mark before the first text", "no word mark")


@lru_cache
def words_of(kind):
    """A small tokenizer as byte-level models have it, or as those of SentencePiece, which put the mark of a new word before a text or don't; as JSON."""
    if kind == "bytes":
        fast = json.loads(train_tokenizer(iter(TEXTS), 330).spec["json"])
        fast["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
            {"type": "Split", "pattern": {"Regex": SPLIT}, "behavior": "Isolated", "invert": False},
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}]}
        return json.dumps(fast)
    learner = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    learner.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    learner.train_from_iterator(TEXTS, trainers.BpeTrainer(vocab_size=400, show_progress=False, special_tokens=[
        "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]))
    fast = json.loads(learner.to_str())
    space = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    fast["added_tokens"] = fast["added_tokens"][:1]
    fast["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first", "split": False} if kind == KINDS[2] else None
    fast["normalizer"] = {KINDS[1]: {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, space]}, KINDS[3]: space}.get(kind)
    fast["decoder"] = {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"},
                                                        {"type": "Fuse"}]}
    return json.dumps(fast)


def folder_of(path, form, kind):
    """A folder in which the special tokens stand in tokenizer_config.json alone."""
    fast = json.loads(words_of(kind))
    vocab = fast["model"]["vocab"]
    special = {"lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": True}
    tokens = dict.fromkeys(token for token in (*form.others, form.end, form.begin) if token and token not in vocab)
    added = {str(number): {"content": token, **special} for number, token in enumerate(tokens, max(vocab.values()) + 1)}
    (path / "tokenizer.json").write_text(json.dumps(fast), encoding="utf-8")
    (path / "tokenizer_config.json").write_text(json.dumps({
        "tokenizer_class": "PreTrainedTokenizerFast", "added_tokens_decoder": added, "bos_token": form.begin, "eos_token": form.end,
        "chat_template": form.template}))
    return added


def folded(chat):
    """The same chat without a system message: it stands before what the user says next."""
    told = [(role, f"{SYSTEM[1]}\n\n{content}" if number and chat[number - 1] == SYSTEM else content) for number, (role, content) in enumerate(chat)]
    return [turn for turn in told if turn != SYSTEM]


def cut(ours, chat):
    (piece,) = Cutter(ours, 512).cut(Sample("", "x", turns=tuple(Turn(role, content, role == "assistant") for role, content in chat)))
    return piece


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_chat_has_the_ids_that_transformers_gives_and_each_answer_is_learned_with_its_end(tmp_path, name, kind):
    from transformers import AutoTokenizer

    form = FORMATS[name]
    added = folder_of(tmp_path, form, kind)
    theirs, ours = AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(str(tmp_path))
    assert ours.end_text == form.end
    assert {str(i): ours._fast.id_to_token(int(i)) for i in added} == {i: token["content"] for i, token in added.items()}
    for chat, taken in zip(CHATS.values(), (True, form.system, form.late_system), strict=True):
        messages = [{"role": role, "content": content} for role, content in (chat if taken else folded(chat))]
        expected = theirs.apply_chat_template(messages, return_dict=False, date_string="26 Jul 2024")
        piece = cut(ours, chat)
        tokens = piece.tokens.tolist()
        last = len(tokens) - tokens[::-1].index(ours.end_id)
        assert tokens[:last] == [*expected, ours.end_id][:last]
        assert theirs.decode(expected[last:]).strip() == ""
        learned = [False] * piece.n_prompt + piece.learned.tolist() if piece.learned is not None else [place >= piece.n_prompt for place in range(len(tokens))]
        marks = [form.mark, form.mark if form.last is None else form.last]
        ends = [theirs.encode(mark, add_special_tokens=False)[-1:] for mark in marks]
        learns = [[token for _, token in run] for is_learned, run in groupby(zip(learned, tokens, strict=True), itemgetter(0)) if is_learned]
        assert [run[-1:] for run in learns] == [end or run[-1:] for run, end in zip(learns, ends, strict=True)]
        assert [answer.strip() for answer in piece.answers] == [(CHAT[1][1] + form.mark).strip(), (CHAT[3][1] + form.last_text).strip()]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", FORMATS)
def test_no_token_is_given_and_learned_and_what_is_said_is_no_special_token(tmp_path, name, kind):
    form = FORMATS[name]
    folder_of(tmp_path, form, kind)
    ours = load_tokenizer(str(tmp_path))
    chat = [("user", f" a{form.end}b\n"), ("assistant", "\n\nIt is\n"), ("user", f"\n{(form.others or [form.end])[0]}?"), ("assistant", "\nGoodbye.")]
    piece = cut(ours, chat)
    plain = cut(ours, [(role, "x") for role, _ in chat])
    special = {i for i, token in ours._fast.get_added_tokens_decoder().items() if token.special}
    assert [token for token in piece.tokens.tolist() if token in special] == [token for token in plain.tokens.tolist() if token in special]
    expected = [answer.replace("x", said, 1) for answer, said in zip(plain.answers, ("Itis", "Goodbye."), strict=True)]
    assert ["".join(answer.split()) for answer in piece.answers] == ["".join(answer.split()) for answer in expected]


def test_special_tokens_without_an_entry_are_added_as_transformers_does(tmp_path):
    from transformers import AutoTokenizer

    fast = train_tokenizer(iter(["a cat"] * 9), 270).spec["json"]
    (tmp_path / "tokenizer.json").write_text(fast, encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", "pad_token": "<pad>",
                                                                "bos_token": "<s>", "additional_special_tokens": ["<x>"]}))
    ours, theirs = load_tokenizer(str(tmp_path)), AutoTokenizer.from_pretrained(tmp_path)
    assert {**ours._fast.get_vocab()} == theirs.get_vocab()
    assert ours.end_text == "</s>"
    assert ours.encode("</s>").ids.tolist() != [ours.end_id]


@pytest.mark.parametrize("content", ["{not json", "[1]", "3"])
def test_a_broken_config_is_refused_in_one_line(tmp_path, content):
    from lmplay.errors import UserError

    (tmp_path / "tokenizer.json").write_text(train_tokenizer(iter(["a cat"] * 9), 270).spec["json"], encoding="utf-8")
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(UserError, match=r"tokenizer_config.json: cannot be read") as caught:
        load_tokenizer(str(tmp_path))
    assert len(str(caught.value).splitlines()) == 1

"""Tokenizers written for transformers: AutoTokenizer gives the same ids and texts."""
import json

import pytest

from lmplay.errors import UserError
from lmplay.tokenizer import Tokenizer, load_tokenizer, train_tokenizer
from lmplay.tokenizer.writing import save_pretrained

transformers = pytest.importorskip("transformers")
LINES = ["The cat's 12 dogs don't sleep; 日本語、中文。 Größe naïve Русский\n\n    def cat(x):\n        return x ** 2\t# ok\r\n"] * 9
TEXTS = [*LINES[:1], "", " lead", "two  spaces\n\n and<|endoftext|>an end", "</s> <unk> \t 123456 😀 e\u0301", "A." * 30]


def trained(digits):
    return train_tokenizer(iter(LINES), 320, digits)


def sentence_pieces(folder, **more):
    sentencepiece = pytest.importorskip("sentencepiece")
    settings = {"vocab_size": 340, "minloglevel": 2, "num_threads": 1, "hard_vocab_limit": False, **more}
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(LINES), model_prefix=str(folder / "tokenizer"), **settings)
    return load_tokenizer(str(folder / "tokenizer.model"))


def tiktoken_file(folder):
    import base64

    from lmplay.tokenizer.byte_pairs import bytes_of_letters

    vocab, letters = json.loads(trained(3).spec["json"])["model"]["vocab"], bytes_of_letters()
    tokens = [bytes(map(letters.__getitem__, token)) for token in sorted(vocab, key=vocab.__getitem__) if token != "<|endoftext|>"]
    (folder / "cl100k_base.tiktoken").write_bytes(b"".join(base64.b64encode(token) + b" %d\n" % rank for rank, token in enumerate(tokens)))
    return load_tokenizer(str(folder / "cl100k_base.tiktoken"))


def with_begin(folder):
    """A folder whose tokenizer puts a token before each text, as Llama's: lmplay trains without."""
    from tokenizers import processors

    theirs = transformers.PreTrainedTokenizerFast(tokenizer_object=__import__("tokenizers").Tokenizer.from_str(trained(None).spec["json"]),
                                                  eos_token="<|endoftext|>", bos_token="<s>")
    theirs._tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", theirs.convert_tokens_to_ids("<s>"))])
    theirs.save_pretrained(folder)
    return load_tokenizer(str(folder))


KINDS = {"bytes": lambda folder: load_tokenizer("bytes"), "train": lambda folder: trained(None), "train, digits=1": lambda folder: trained(1),
         "train, digits=3": lambda folder: trained(3), "tiktoken": tiktoken_file, "unigram": lambda folder: sentence_pieces(folder),
         "bpe": lambda folder: sentence_pieces(folder, model_type="bpe", byte_fallback=True, normalization_rule_name="identity", vocab_size=520),
         "folder": with_begin}


@pytest.mark.parametrize("kind", KINDS)
def test_ids_and_texts_are_the_same(kind, tmp_path):
    (tmp_path / "there").mkdir()
    ours = KINDS[kind](tmp_path / "there")
    save_pretrained(ours, tmp_path, 99, "{{ messages }}")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    for text in TEXTS:
        ids = theirs(text)["input_ids"]
        assert ids == ours.encode_markup(text).ids.tolist(), text
        assert theirs.decode([number for number in ids if number != ours.end_id]) == ours.decode(ids)
    assert (theirs.eos_token_id, theirs.pad_token_id, theirs.model_max_length) == (ours.end_id, ours.end_id, 99)
    assert theirs.chat_template == "{{ messages }}"
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    again = load_tokenizer(str(tmp_path))
    assert all(again.encode(text).ids.tolist() == ours.encode(text).ids.tolist() for text in TEXTS)
    assert again.end_id == ours.end_id


def test_other_ids_are_refused(tmp_path, monkeypatch):
    ours = trained(None)
    monkeypatch.setattr(Tokenizer, "encode_markup", lambda self, text: self.encode(text[1:]))
    with pytest.raises(UserError, match="transformers would give other ids than lmplay; --no-tokenizer leaves it out"):
        save_pretrained(ours, tmp_path, 99)

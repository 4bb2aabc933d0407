"""Texts and tokenizers that several tests cut."""
import tokenizers
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from lmplay.data.chat import Part
from lmplay.data.samples import Sample
from lmplay.tokenizer import END_TOKEN, Tokenizer, load_tokenizer, train_tokenizer

BYTES = load_tokenizer("bytes")
BPE = train_tokenizer(iter(["the cat sat on the mat. The dog, who was big; ran away! 日本語の文。そして終わり。 "
                            "नमस्ते दुनिया। héllo wörld 🎉👨‍👩‍👧 user: <|end|>\n"] * 20), 400)
FEW = train_tokenizer(iter([". The cat\n    # It - so.\n\n"] * 9), 300)  # tokens that hold the end of a sentence and the beginning of the next


def _pieces():
    """A tokenizer that marks words as SentencePiece does, with bytes for what it lacks."""
    fast = tokenizers.Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    fast.pre_tokenizer, fast.decoder = pre_tokenizers.Metaspace(prepend_scheme="never", split=False), decoders.Metaspace()
    special = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    fast.train_from_iterator(["the cat sat on the mat. The dog, who was big; ran away! (or so) 3.5 well-known. "] * 9,
                             trainers.BpeTrainer(vocab_size=400, special_tokens=special, show_progress=False))
    return Tokenizer({"kind": "fast", "name": "pieces", "json": fast.to_str(), "end_id": 1})


PIECES = _pieces()
TEXTS = st.text(st.sampled_from("abc .,!?\n日。é🎉\u0301\u200d👩\r\t\"AB1"), max_size=90)
# A part of a chat as templates write them: what is said, by whom, and the marks around it.
MARKUP = st.sampled_from(["<|user|>\n", END_TOKEN + "\n", "\n\n"])
PARTS = st.lists(st.builds(Part, TEXTS, st.booleans()) | st.builds(Part, MARKUP, st.booleans(), st.just(True))
                 | st.builds(Part, st.just(""), st.booleans(), st.just(False), st.just(True)), min_size=1, max_size=8)
WHO = Sample("", "x")


def learned_of(piece):
    tokens = piece.tokens[piece.n_prompt:]
    return (tokens if piece.learned is None else tokens[piece.learned]).tolist()


CLUSTERS = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷", "🇩🇪", "1️⃣", "🏴\U000e0067\U000e0062\U000e007f", "e\u0301", "o\u0308\u0323", "क्ष", "नि", "ക്ഷ", "각",
            "\u1112\u1161\u11ab", "กำ",
            "שָׁ", "بِّ", "か\u3099", "ｶﾞ", "\u0600١", "\r\n", "a", " ", "日", ".", "א", "ب", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff"]

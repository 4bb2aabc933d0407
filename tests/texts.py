"""Texts and tokenizers that several tests cut."""
from hypothesis import strategies as st

from lmplay.data.chat import Part
from lmplay.data.samples import Sample
from lmplay.tokenizer import END_TOKEN, load_tokenizer, train_tokenizer

BYTES = load_tokenizer("bytes")
BPE = train_tokenizer(iter(["the cat sat on the mat. The dog, who was big; ran away! 日本語の文。そして終わり。 नमस्ते। héllo 🎉 user: <|end|>\n"] * 20), 400)
TEXTS = st.text(st.sampled_from("abc .,!?\n日。é🎉\u0301\u200d👩\r\t\"AB1"), max_size=90)
# A part of a chat as templates write them: what is said, by whom, and the marks around it.
MARKUP = st.sampled_from(["<|user|>\n", END_TOKEN + "\n", "\n\n"])
PARTS = st.lists(st.builds(Part, TEXTS, st.booleans()) | st.builds(Part, MARKUP, st.booleans(), st.just(True))
                 | st.builds(Part, st.just(""), st.booleans(), st.just(False), st.just(True)), min_size=1, max_size=8)
WHO = Sample("", "x")

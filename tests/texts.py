"""Texts and tokenizers that several tests cut."""
from hypothesis import strategies as st

from lmplay.data.chat import Part
from lmplay.data.samples import Sample
from lmplay.data.sentences import splits_character
from lmplay.tokenizer import END_TOKEN, load_tokenizer, train_tokenizer

BYTES = load_tokenizer("bytes")
BPE = train_tokenizer(iter(["the cat sat on the mat. The dog, who was big; ran away! 日本語の文。そして終わり。 "
                            "नमस्ते दुनिया। héllo wörld 🎉👨‍👩‍👧 user: <|end|>\n"] * 20), 400)
TEXTS = st.text(st.sampled_from("abc .,!?\n日。é🎉\u0301\u200d👩\r\t\"AB1"), max_size=90)
# A part of a chat as templates write them: what is said, by whom, and the marks around it.
MARKUP = st.sampled_from(["<|user|>\n", END_TOKEN + "\n", "\n\n"])
PARTS = st.lists(st.builds(Part, TEXTS, st.booleans()) | st.builds(Part, MARKUP, st.booleans(), st.just(True))
                 | st.builds(Part, st.just(""), st.booleans(), st.just(False), st.just(True)), min_size=1, max_size=8)
WHO = Sample("", "x")
_CLOSERS, _OPENERS = "\"')", "\"'("


def sentence_ends(text):
    """All sentence ends of a text of the characters that tests use, found character by character, rising: what the regular expressions have to find."""
    found, begin = [], 0
    while begin < len(text):
        end = _mark_end(text, begin)
        if end and (end == len(text) or not splits_character(text, end)) and not _goes_on(text, begin, end):
            found.append(end)
        begin = end or begin + 1
    return found


def _skip(text, position, wanted):
    """Go on while characters are wanted."""
    while position < len(text) and wanted(text[position]):
        position += 1
    return position


def _mark_end(text, begin):
    """Where the mark that begins here ends, with closing quotes and the end of its line; 0 where none begins."""
    end = begin
    if text[begin] in "。।":
        end = _skip(text, _skip(text, begin, "。।".__contains__), _CLOSERS.__contains__)
    elif text[begin] in ".!?":
        end = _skip(text, _skip(text, begin, ".!?".__contains__), _CLOSERS.__contains__)
        if text[begin - 1:begin] in (".", "!", "?") or (end < len(text) and not text[end].isspace()):
            return 0
    elif text[begin] == "\n":
        end = begin + 1
    line_end = _skip(text, end, lambda character: character.isspace() and character != "\n") if end > begin else len(text)
    if text[line_end:line_end + 1] == "\n":
        return _skip(text, line_end, str.isspace)
    return 0 if text[begin] == "\n" or end == begin else end


def _goes_on(text, begin, end):
    """Whether a sentence goes on behind a mark: before a small letter, after an initial, an abbreviation or the number of a list."""
    if text[begin] not in ".!?" or text[begin:end].count("\n") > 1:
        return False
    after = _skip(text, _skip(text, _skip(text, end, str.isspace), (_CLOSERS + _OPENERS).__contains__), str.isspace)
    if text[after:after + 1].islower():
        return True
    if text[begin] != "." or text[begin + 1:begin + 2] == ".":
        return False
    start = begin
    while start > max(0, begin - 12) and not text[start - 1].isspace():
        start -= 1
    word = text[start:begin].lstrip(_CLOSERS + _OPENERS).lower()
    if word.isdigit():
        return start == 0 or text[start - 1] == "\n"
    letters = word.split(".")
    return word == "ca" or (all(len(letter) == 1 and letter.isalpha() for letter in letters) and word != "i")


def learned_of(piece):
    tokens = piece.tokens[piece.n_prompt:]
    return (tokens if piece.learned is None else tokens[piece.learned]).tolist()


CLUSTERS = ["👨‍👩‍👧‍👦", "🏳️‍🌈", "👍🏽", "🇫🇷", "🇩🇪", "1️⃣", "🏴\U000e0067\U000e0062\U000e007f", "e\u0301", "o\u0308\u0323", "क्ष", "नि", "ക്ഷ", "각",
            "\u1112\u1161\u11ab", "กำ",
            "שָׁ", "بِّ", "か\u3099", "ｶﾞ", "\u0600١", "\r\n", "a", " ", "日", ".", "א", "ب", "\u200b", "\u200c", "\u200d", "\u2060", "\ufeff"]

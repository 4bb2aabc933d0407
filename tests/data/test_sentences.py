"""Where a text may be cut: between sentences of many languages, never within a visible character."""
from itertools import accumulate

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from texts import CLUSTERS

from lmplay.data.characters import splits_character
from lmplay.data.sentences import Cut, closes, gaps

LANGUAGES = {
    "English": ["Dr. Smith paid 3.5 dollars to J. R. Hall, e.g. in cash. ", "He left! ", '"Stop!" he said. ', "Then he came back… ", "Why?! ",
                "“Why?” I asked. ",
                "“No!” Tom Hall cried. ", "Bros. Records sued him. ", "The U.S. army came at 5 p.m. on Jan. 5. ", "It cost No. 7 dearly. ", "I said no. ",
                "(It is so.) ", "**Bold.** ", "He sat. ", "Louis XIV. ", "The end."],
    "Spanish": ["Vive en EE. UU. desde 1990. ", "El Sr. Ruiz compró p. ej. pan. ", "¿Quién es? ", "¡Hola! ", "Nació en el 44 a. C. en Roma. ", "Fin."],
    "German": ["Am 3. Oktober kam z. B. Herr Dr. Meier, d. h. spät. ", "Das war im 19. Jahrhundert so. ", "Es war 1990. ", "„Hallo.“ ", "Er ging. ",
                "»Gut!« ",
               "Ende."],
    "French": ["« Bonjour. » ", "M. Dupont arrive av. J.-C. à midi. ", "C’est fini ! ", "Vraiment ?"],
    "Italian": ["Il sig. Rossi e la dott.ssa Bianchi, p.es., vennero. ", "Basta!"],
    "Portuguese": ["O Sr. Silva mora na Av. Brasil. ", "Sim."], "Dutch": ["Hij kocht o.a. brood, d.w.z. eten, bij dhr. Jansen. ", "Klaar."],
    "Polish": ["Mieszka na ul. Długiej, m.in. z prof. Nowakiem. ", "Tak."], "Turkish": ["Prof. Dr. Yılmaz geldi. ", "Tamam."],
    "Russian": ["Он живёт на ул. Ленина, т. е. там. ", "Это я. ", "— Привет! — сказал он. ", "В 1990 г. Москва росла. ", "Всё."],
    "Greek": ["Τι κάνεις;  Καλά, π.χ. Άννα. ", "Ναι."],
    "Georgian": ["გამარჯობა. ", "როგორ ხარ? ", "კარგად."], "Armenian": ["Բարև։ ", "Ինչպե՞ս ես։"],
    "Chinese": ["我喜欢猫。", "你呢？", "「好。」", "他说完了！", "你好!", "他说。", "“对。”", "走吧。", "“你是谁？”他问。", "价格是３．５元。"],
    "Japanese": ["「元気？」と聞いた。", "はい。", "「行く。」って言った。\n", "『本』だ。"],
    "Arabic": ["هل أنت بخير؟ ", "نعم أنا بخير. ", "شكرا۔"], "Hindi": ["यह एक वाक्य है। ", "डॉ. शर्मा आए। ", "यह दूसरा है॥"], "Amharic": ["ሰላም፡ነው። ", "ደህና።"],
    "headings": ["A heading\n\n", "1. First item of a list.\n\n", "2. Second.\n", "II. Of Ships.\n", "- one.\n", "* Two.\n", "The end."],
    "line ends": ["One\r\n\r\n", "Two\r\r", "three\rstill three\r\nstill. ", "Four\n \t\n   ", "Five"],
    "WikiText": ["he said . ", "\" Hello there . \" ", "He went . ", "\" I am \" . ", "The ( old . ) ", "Yes ! , said Bo . ", "So"],
}


def ends_of(text, kind=Cut.SENTENCE):
    return sorted({last for _, last, found in gaps(text, 0, len(text), len(text.rstrip())) if found == kind})


@pytest.mark.parametrize("language", LANGUAGES)
def test_sentences(language):
    sentences = LANGUAGES[language]
    text, ends = "".join(sentences), list(accumulate(map(len, sentences)))[:-1]
    assert [text[begin:end] for begin, end in zip([0, *ends_of(text)], [*ends_of(text), len(text)], strict=True)] == sentences
    assert ends_of(text) == ends


@pytest.mark.parametrize(("parts", "kind"), [
    (["One, ", "two; ", "three: ", "four (five), ", "six,7 — ", "end"], Cut.CLAUSE), (["他来了,", "我走了；", "好"], Cut.CLAUSE),
    (["วันนี้อากาศดี ", "ไปเที่ยวกัน ", "ครับ"], Cut.CLAUSE), (["if x:\n    ", "y\n    }\n", "z"], Cut.CLAUSE), (["a\r", "b\r\n", "c"], Cut.CLAUSE),
    (["ሰላም፡", "ነው፡", "ደህና"], Cut.WORD), (["one ", "two ) ", "col·lecció ", "end"], Cut.WORD), (["བོད་", "ཡིག"], Cut.WORD)])
def test_clauses_and_words(parts, kind):
    assert ends_of("".join(parts), kind) == list(accumulate(map(len, parts)))[:-1]


TEXTS = st.text(st.sampled_from("ab .!?。,、\n\")(\r\u0301A1-"), max_size=60)


@given(TEXTS, st.integers(0, 60), st.integers(1, 60))
@settings(max_examples=300)
def test_gaps_are_white_space_between_what_is_visible(text, start, length):
    limit, end = min(len(text), start + length), len(text.rstrip())
    found = list(gaps(text, start, limit, end)) if start < limit else []
    assert [kind for *_, kind in found] == sorted(kind for *_, kind in found)
    for first, last, kind in found:
        assert start < first <= last <= limit
        assert text[start:first].strip()
        assert text[first:].strip()
        assert not text[first:last].strip()
        assert last == limit or not text[last].isspace()
        assert last == limit or not closes(text, last)
        if kind == Cut.SENTENCE:
            assert regex.search(r"([.!?。][\s\")\]}.!?。]*|(\r\n|[\n\r])\s*)\Z", text[:first]) or text[first] in "\n\r"


@given(TEXTS, st.integers(0, 200))
@settings(max_examples=100)
def test_where_a_search_starts_does_not_matter(text, start):
    text = f"{text} one. Two {text}, three four. {text}" * 6
    if not (text[start - 1:start].isalpha() and text[start].isalpha()):
        return
    end = len(text.rstrip())
    whole, part = (set(gaps(text, begin, len(text), end)) for begin in (0, start))
    assert part == {gap for gap in whole if gap[0] > start}


def test_visible_characters_are_not_divided():
    family, flags = "👨‍👩‍👧", "🇫🇷🇩🇪"
    assert all(splits_character(family, i) for i in range(1, len(family)))
    assert [splits_character(flags, i) for i in (1, 2, 3)] == [True, False, True]
    assert splits_character("e\u0301", 1)
    assert splits_character("a\r\nb", 2)
    assert not splits_character("ab", 1)


@given(st.lists(st.sampled_from([*CLUSTERS, *"".join(CLUSTERS)]), min_size=1, max_size=14).map("".join))
@settings(max_examples=400)
def test_no_cluster_of_unicode_is_divided(text):
    starts = {match.start() for match in regex.finditer(r"\X", text)}
    for position in range(1, len(text)):
        assert position in starts or splits_character(text, position)


def test_ordinary_text_may_be_cut_anywhere():
    text = "The cat, 12 times. 日本語の文。Größe שלום ไทย 🎉🎉 Ελλ"
    assert [i for i in range(1, len(text)) if splits_character(text, i)] == []

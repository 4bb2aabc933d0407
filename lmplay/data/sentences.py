"""Where a text may be cut: sentence ends in any script, else clauses, words, characters.  Data floor, no imports of lmplay."""
from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from enum import IntEnum

# Marks that end a sentence by themselves, whatever follows: CJK, Devanagari and its relatives, Ethiopic, Khmer, Myanmar, Tibetan, Armenian, Mongolian …
# (from Unicode's Sentence_Terminal property, less the Latin marks below).
_FULL_STOPS = "。！？｡．।॥෴።፧፨។៕၊။།༎։᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿꓿꘎꘏꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗܀܁܂۔؟؝"
_CLOSERS = "\"'”’»›)\\]}）」』】〉》〕］｝＂＇"
_OPENERS = "(\\[{„“‘«‹¿¡"
# The marks with white space behind them, those that need none, and the end of a paragraph.
_SENTENCE = re.compile(rf"(?:[.!?…‼⁇⁈⁉]+[{_CLOSERS}]*(?=\s|$)|[{_FULL_STOPS}]+[{_CLOSERS}]*)(?:[^\S\n]*\n\s*)?|\n[^\S\n]*\n\s*")
_CLAUSE = re.compile(rf"[,;:–—،؛፣፤፥]+[{_CLOSERS}]*(?=\s)|[、，；：·]+[{_CLOSERS}]*|\n+")
_BETWEEN = re.compile(rf"\s*[{_CLOSERS}{_OPENERS}]*\s*")
_WORD = re.compile(r"(?=\s)(?<=\S)")
# Words that a full stop follows without ending the sentence; in lower case, for several languages.
_ABBREVIATIONS = frozenset(re.findall(
    r"\S+",
    "mr mrs ms mx dr prof rev fr hon st sr jr sen rep gov pres gen col maj capt cpt lt sgt cpl adm cmdr supt insp det mt ft "
    "vs cf viz al ca approx est no nos vol vols fig figs ed eds ch chap sec art pp pt par op ibid trans "
    "e.g i.e p.m a.m u.s u.k u.n d.c ph.d b.c a.d "
    "jan feb mar apr jun jul aug sep sept oct nov dec mon tue wed thu fri sat sun "
    "bzw z.b d.h u.a usw vgl nr abs bd hrsg evtl ggf inkl sog "
    "sra srta ud uds pág núm av avda m mme mlle mm env p.ex"))
# How far back to look for a cut before the whole piece is searched.
_WINDOW = 2000


class Cut(IntEnum):
    """What a piece ends at, best first."""

    END = 0
    SENTENCE = 1
    CLAUSE = 2
    WORD = 3
    CHARACTER = 4


def last_cut(text: str, start: int, limit: int) -> tuple[int, Cut] | None:
    """Find the best place to end a piece: the last sentence end, else clause end, else word end, in (start, limit].

    :param text: the whole text.
    :param start: where the piece starts.
    :param limit: the furthest position where it may end, before the end of the text.
    :return: position and kind of the cut, or None where only a cut between characters is left (see :func:`last_character`).
    """
    for kind, ends in ((Cut.SENTENCE, _sentence_ends), (Cut.CLAUSE, _clause_ends), (Cut.WORD, _word_ends)):
        for window in (max(start, limit - _WINDOW), start):
            found = max((end for end in ends(text, window, limit) if start < end <= limit), default=None)
            if found is not None:
                return found, kind
            if window == start:
                break
    return None


def sentence_ends(text: str) -> list[int]:
    """Find all sentence ends.

    :param text: any text.
    :return: the positions after each sentence, with its closing quotes and line end, rising.
    """
    return list(_sentence_ends(text, 0, len(text)))


def splits_character(text: str, position: int) -> bool:
    """Tell whether a cut here would divide what a reader sees as one character: an emoji sequence, a letter and its accent, a flag, CR and LF.

    :param text: the text.
    :param position: 0 < position < len(text).
    """
    before, after = text[position - 1], text[position]
    if after == "\u200d" or before == "\u200d" or (before == "\r" and after == "\n"):
        return True
    if unicodedata.category(after) in ("Mn", "Me", "Mc") or "\U0001f3fb" <= after <= "\U0001f3ff" or "\ufe00" <= after <= "\ufe0f":
        return True
    if _is_flag_half(before) and _is_flag_half(after):
        run = 0
        while run < position and _is_flag_half(text[position - 1 - run]):
            run += 1
        return run % 2 == 1
    return False


def _is_flag_half(character: str) -> bool:
    """Tell whether this is a regional indicator; two make a flag."""
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _sentence_ends(text: str, start: int, limit: int) -> Iterator[int]:
    """Give the sentence ends of a stretch; the text around it is looked at for what stands before and after a mark."""
    for match in _SENTENCE.finditer(text, start, min(len(text), limit + 1)):
        if not _is_within(text, match):
            yield match.end()


def _clause_ends(text: str, start: int, limit: int) -> Iterator[int]:
    """Give the clause ends of a stretch: after commas and their like, and at line ends."""
    return (match.end() for match in _CLAUSE.finditer(text, start, min(len(text), limit + 1)))


def _word_ends(text: str, start: int, limit: int) -> Iterator[int]:
    """Give the word ends of a stretch: before white space."""
    return (match.end() for match in _WORD.finditer(text, start, min(len(text), limit + 1)))


def _is_within(text: str, match: re.Match[str]) -> bool:
    """Tell whether a mark stands within a sentence: abbreviations, initials, list numbers, and marks that a small letter follows."""
    mark = match.group()
    if mark[0] not in ".!?…‼⁇⁈⁉":
        return mark[0] == "．" and text[match.end():match.end() + 1].isdigit()  # a full-width decimal point
    if "\n" in mark and mark.count("\n") > 1:
        return False  # the end of a paragraph ends its sentence
    following = _BETWEEN.match(text, match.end())
    if following is not None and text[following.end():following.end() + 1].islower():
        return True
    if mark[0] != "." or mark.startswith(".."):
        return False
    begin = match.start()
    while begin > 0 and begin > match.start() - 12 and not text[begin - 1].isspace():
        begin -= 1
    word = text[begin:match.start()].lstrip(_CLOSERS + _OPENERS).lower()
    if word.isdigit():
        return begin == 0 or text[begin - 1] == "\n"  # the number of a list item
    initial = len(word) == 1 and word.isalpha() and word != "i"
    return word in _ABBREVIATIONS or initial or bool(re.fullmatch(r"(?:[^\W\d_]\.)+[^\W\d_]", word))

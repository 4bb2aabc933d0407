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
_MARKS, _COMMAS, _WIDE_COMMAS = ".!?…‼⁇⁈⁉", ",;:–—،؛፣፤፥", "、，；：·"
# The marks with white space behind them, those that need none, and the end of a paragraph. A match begins where a run of marks does: so what is found
# does not depend on where the search starts, and a long run is looked at once. One class of characters comes first: that is what `re` finds quickly.
_SENTENCE = re.compile(
    rf"[{_MARKS}{_FULL_STOPS}\n](?:(?:(?<=[{_MARKS}])(?<![{_MARKS}]{{2}})[{_MARKS}]*[{_CLOSERS}]*(?=\s|$)|(?<=[{_FULL_STOPS}])[{_FULL_STOPS}]*[{_CLOSERS}]*)"
    r"(?:[^\S\n]*\n\s*)?|(?<=\n)[^\S\n]*\n\s*)")
_CLAUSE = re.compile(
    rf"[{_COMMAS}{_WIDE_COMMAS}\n](?:(?<=[{_COMMAS}])(?<![{_COMMAS}]{{2}})[{_COMMAS}]*[{_CLOSERS}]*(?=\s)"
    rf"|(?<=[{_WIDE_COMMAS}])[{_WIDE_COMMAS}]*[{_CLOSERS}]*|(?<=\n)\n*)")
_ENDING = _MARKS + _FULL_STOPS + _COMMAS + _WIDE_COMMAS + _CLOSERS + "".join(filter(str.isspace, map(chr, range(0x3001))))
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
# How far back to look for a cut, one after the other, before the whole piece is searched.
_WINDOWS = (300, 2000)
# What joins the character before it, without being a mark: the non-joiner, half-width voicing, skin tones, tags; vowels of Thai and Lao.
_JOINS_LEFT = re.compile("[\u200c\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
# What joins the character after it: number signs and their like (Unicode's Prepend).
_JOINS_RIGHT = re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2\U000111c3\U000113d1\U0001193f"
                          "\U00011941\U00011a3a\U00011a84-\U00011a89\U00011d46\U00011f02]")
# Korean syllables in parts: a beginning takes a beginning or a vowel, a vowel a vowel or an ending; whole syllables take what they lack.
_HANGUL = re.compile("[\u1100-\u115f\ua960-\ua97c][\u1100-\u11a7\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7c6]"
                     "|[\u1160-\u11a7\ud7b0-\ud7c6\uac00-\ud7a3][\u1160-\u11ff\ud7b0-\ud7fb]|[\u11a8-\u11ff\ud7cb-\ud7fb][\u11a8-\u11ff\ud7cb-\ud7fb]")


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
    :return: position and kind of the cut, or None where only a cut between characters is left.
    """
    for kind, ends in ((Cut.SENTENCE, _sentence_ends), (Cut.CLAUSE, _clause_ends), (Cut.WORD, _word_ends)):
        for window in (*(limit - width for width in _WINDOWS if limit - width > start), _before_marks(text, start)):
            found = next((end for end in ends(text, window, limit) if start < end <= limit), None)
            if found is not None:
                return found, kind
    return None


def splits_character(text: str, position: int, start: int = 0) -> bool:
    """Tell whether a cut here would divide what a reader sees as one character: an emoji sequence, a letter and its accent, a flag, CR and LF.

    At least where Unicode's grapheme clusters (UAX 29) forbid it; next to joiners, virama and spacing marks also elsewhere, where no reader minds.

    :param text: the text.
    :param position: start < position < len(text).
    :param start: where a character is known to start.
    """
    before, after = text[position - 1], text[position]
    if before < "\u0300" and after < "\u0300":
        return before == "\r" and after == "\n"
    if before == "\u200d" or after == "\u200d" or unicodedata.category(after)[0] == "M":
        return True
    if _JOINS_LEFT.match(after) or _JOINS_RIGHT.match(before) or _HANGUL.match(before + after):
        return True
    if _is_flag_half(before) and _is_flag_half(after):
        run = 1
        while position - run > start and _is_flag_half(text[position - 1 - run]):
            run += 1
        return run % 2 == 1
    return unicodedata.category(after) == "Lo" and _ends_in_virama(text, position, start)


def _ends_in_virama(text: str, position: int, start: int) -> bool:
    """Tell whether the letter before is one that a virama joins to the next."""
    while position > start:
        position -= 1
        before = text[position]
        if unicodedata.combining(before) == 9:
            return True
        if unicodedata.category(before)[0] != "M" and before != "\u200d" and not _JOINS_LEFT.match(before):
            return False
    return False


def _is_flag_half(character: str) -> bool:
    """Tell whether this is a regional indicator; two make a flag."""
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _sentence_ends(text: str, start: int, limit: int) -> Iterator[int]:
    """Give the sentence ends of a stretch, last first; the text around it is looked at for what stands before and after a mark."""
    for match in reversed(list(_SENTENCE.finditer(text, start, min(len(text), limit + 1)))):
        if _is_between(text, match.end()) and not _is_within(text, match):
            yield match.end()


def _clause_ends(text: str, start: int, limit: int) -> Iterator[int]:
    """Give the clause ends of a stretch, last first: after commas and their like, and at line ends."""
    ends = [match.end() for match in _CLAUSE.finditer(text, start, min(len(text), limit + 1))]
    return (end for end in reversed(ends) if _is_between(text, end))


def _word_ends(text: str, start: int, limit: int) -> Iterator[int]:
    """Give the word ends of a stretch, last first: before white space."""
    ends = [match.end() for match in _WORD.finditer(text, start, min(len(text), limit + 1))]
    return (end for end in reversed(ends) if _is_between(text, end))


def _before_marks(text: str, position: int) -> int:
    """Step back over characters that may end a sentence or clause which goes on here; not further than the widest window."""
    before = text[max(0, position - _WINDOWS[-1]):position]
    return position - len(before) + len(before.rstrip(_ENDING))


def _is_between(text: str, position: int) -> bool:
    """Tell whether a position lies between two visible characters, or at the end."""
    return position == len(text) or not splits_character(text, position)


def _is_within(text: str, match: re.Match[str]) -> bool:
    """Tell whether a mark stands within a sentence: abbreviations, initials, list numbers, and marks that a small letter follows."""
    mark = match.group()
    if mark[0] not in _MARKS:
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

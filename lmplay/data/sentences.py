"""Where a text may be cut: between sentences in any script, else between clauses, else between words.  Data floor, no imports of lmplay.

What ends and what begins next have white space between them, or nothing. This gap is what is searched for: wherever in it a token begins, the text is cut.
"""
from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from enum import IntEnum

from .abbreviations import ABBREVIATIONS, AFTER_ORDINALS, BEFORE_NUMBERS, BEFORE_ORDINALS

# The number of these rules, and of those by which chats become tokens; checkpoints hold it. A run that was begun with others cuts what is left of its
# texts at other places, and says so.
RULES = 4

# Marks that end a sentence by themselves, whatever follows: CJK, Devanagari and its relatives, Ethiopic, Khmer, Myanmar, Tibetan, Armenian, Mongolian …
# (from Unicode's Sentence_Terminal property, less the Latin marks below).
_FULL_STOPS = "。！？｡．।॥෴።፧፨។៕။།༎༑༔։᠃᠉᥄᥅᪨᪩᪪᪫᭚᭛᭞᭟᰻᰼᱾᱿꓿꘎꘏꡶꡷꣎꣏꤯꧈꧉꩝꩞꩟꫰꫱꯫﹒﹖﹗܀܁܂۔؟؝"
_MARKS, _COMMAS, _WIDE_COMMAS = ".!?…‼⁇⁈⁉\u037e", ",;:–·،؛", "、，；：—―၊፣፤፥፦"
_STOPS, _PAUSES = _MARKS + _FULL_STOPS, _COMMAS + _WIDE_COMMAS
_LINES = "\n\r\v\f\x85\u2028\u2029"
_BLANK_LINE = re.compile(rf"(?:\r\n|[{_LINES}])[^\S{_LINES}]*[{_LINES}]")
# Scripts without spaces between words: in Chinese and Japanese there are none, in Thai, Lao, Khmer and Myanmar they end a phrase.
_WIDE = re.compile("[\u2e80-\u2fff\u3005-\u3007\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]")
_PHRASED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_CLOSERS, _QUOTES, _EMPHASIS = ")]}）」』】〉》〕］｝﹂﹄", "\"'“”‘’«»‹›＂＇", "*_`"
_ALWAYS_CLOSE = frozenset(_CLOSERS + _FULL_STOPS + _WIDE_COMMAS + ",،؛") - {"—", "―"}
_MAY_CLOSE = frozenset(_MARKS + _COMMAS + _QUOTES + _EMPHASIS)
# Each begins with one class of characters: that is what `re` finds quickly. A match begins where a run of marks does, so what is found does not depend on
# where the search starts, and a long run is looked at once.
_SENTENCE = re.compile(rf"[{_STOPS}{_LINES}](?:(?<=[{_STOPS}])(?<![{_STOPS}]{{2}})[{_STOPS}]*"
                       rf"|(?<=[{_LINES}])(?:(?<!\r)|(?!\n)|\n)[^\S{_LINES}]*[{_LINES}]\s*)")
_CLAUSE = re.compile(rf"[{_PAUSES}\s](?:(?<=[{_PAUSES}])(?<![{_PAUSES}]{{2}})[{_PAUSES}]*[{re.escape(_CLOSERS + _QUOTES)}]*"
                     rf"|(?<=[{_LINES}])\s*|(?<=[{_PHRASED}]\s)(?=[{_PHRASED}]))")
# White space, and what is between words and syllables of Ethiopic, Tibetan, and scripts that mark words by a space of no width.
_WORD = re.compile("(?=\\s)(?<=\\S)|(?<=[\u1361\u0f0b\u200b])(?=\\S)")
_SPACES = re.compile(r"\s*")
# What stands between the end of a sentence and its next letter.
_OPENERS = re.compile(rf"[(\[{{„‚¿¡「『（《【—–{_QUOTES}\s]*")
# What follows the closing quote where the sentence goes on behind it: who speaks, in English, Japanese and Chinese.
_SPEAKER = re.compile(
    r"(?:I|[Hh]e|[Ss]he|[Ww]e|[Tt]hey|(?:[A-Z]\w+ ){0,2}[A-Z]\w+) (?:said|says|asked|asks|cried|replied|answered|shouted|whispered|murmured|exclaimed"
    r"|muttered|called|yelled|added|thought|wondered|laughed|continued|told|began)\b|[とっ]|\w{1,4}?[说說问問喊叫答]道?(?=[，：。,:！])")
_INITIALS = re.compile(r"[^\W\d_](?:\.-?[^\W\d_])*")
_NUMERAL = re.compile(r"\d+(?:\.\d+)*|[IVXLCDM]+")
# How far back to look for a cut, one after the other, before the whole piece is searched.
_WINDOWS = (300, 2000)
# Characters behind the furthest cut that are looked at, too.
_BEYOND = 64


class Cut(IntEnum):
    """What a piece ends at, best first."""

    END = 0
    SENTENCE = 1
    CLAUSE = 2
    WORD = 3
    CHARACTER = 4


def gaps(text: str, start: int, limit: int, end: int) -> Iterator[tuple[int, int, Cut]]:
    """Give the places where a piece may end, best first: those between sentences, last first, then between clauses, then between words.

    :param text: the whole text.
    :param start: where the piece starts.
    :param limit: the furthest position where it may end, before the end of the text.
    :param end: where the white space at the end of the text begins: no gap there is given, nor one before the first visible character of the piece.
    :return: the first and the last position of each gap, both in (start, limit], and its kind.
    """
    visible = _skip_spaces(text, start, limit)
    bound = min(len(text), limit + _BEYOND)
    for kind, pattern, gap_of in _KINDS:
        before = bound
        for lower in sorted({max(start, limit - width) for width in (*_WINDOWS, limit)}, reverse=True):
            for match in reversed(list(pattern.finditer(text, lower, bound))):
                found = gap_of(text, match, bound) if match.start() < before else None
                if found is not None and visible < found[0] <= limit and found[0] < end:
                    yield found[0], min(found[1], limit), kind
            before = lower


def closes(text: str, position: int) -> bool:
    """Tell whether a character belongs to what stands before it, such as a closing bracket or quote, or a comma: no piece begins with one."""
    character = text[position]
    if character in _ALWAYS_CLOSE or character not in _MAY_CLOSE:
        return character in _ALWAYS_CLOSE
    joined_before = position > 0 and not text[position - 1].isspace()
    joined_after = position + 1 < len(text) and not text[position + 1].isspace()
    if joined_before != joined_after:
        return joined_before or (character in _MARKS and not text[position + 1].isalnum())  # of spaced dots
    if character in "\"＂":  # of those in its line, each second one closes
        line = text[max(0, position - _WINDOWS[-1]):position].rpartition("\n")[2]
        return line.count(character) % 2 == 1
    if character in _EMPHASIS:
        return text[position + 1:position + 2] == character
    return character not in "“‘«‹"


def _sentence_gap(text: str, match: re.Match[str], bound: int) -> tuple[int, int] | None:
    """Give the gap after a mark that ends a sentence, with its closing quotes, or at the end of a paragraph."""
    mark, end = match.group(), match.end()
    if mark[0] in _LINES:
        return _unless_closed(text, match.start(), bound)
    while (following := _skip_spaces(text, end, bound)) < bound and closes(text, following):
        if text[following] in _PAUSES:
            return None
        end = following + 1
    if end == bound < len(text):
        return None
    if mark[-1] in _MARKS and following == end < len(text) and not _is_wide(text, match.start() - 1, end):
        return None
    return None if _is_within(text, match, end, following) else (end, following)


def _clause_gap(text: str, match: re.Match[str], bound: int) -> tuple[int, int] | None:
    """Give the gap after a comma and its like, at a line end, or between phrases."""
    mark, end = match.group(), match.end()
    if mark[0].isspace():
        return _unless_closed(text, match.start(), bound)
    needs_space = mark.rstrip(_CLOSERS + _QUOTES)[-1] in _COMMAS
    if needs_space and not text[end:end + 1].isspace() and not _is_wide(text, match.start() - 1, end):
        return None
    return _unless_closed(text, end, bound)


def _word_gap(text: str, match: re.Match[str], bound: int) -> tuple[int, int] | None:
    """Give the gap between two words."""
    return _unless_closed(text, match.start(), bound)


_KINDS: tuple[tuple[Cut, re.Pattern[str], Callable[[str, re.Match[str], int], tuple[int, int] | None]], ...] = (
    (Cut.SENTENCE, _SENTENCE, _sentence_gap), (Cut.CLAUSE, _CLAUSE, _clause_gap), (Cut.WORD, _WORD, _word_gap))


def _skip_spaces(text: str, position: int, bound: int) -> int:
    """Give the position after white space, at most `bound`."""
    found = _SPACES.match(text, position, bound)
    return found.end() if found is not None else position


def _unless_closed(text: str, first: int, bound: int) -> tuple[int, int] | None:
    """Give the gap that begins here, unless what comes behind it belongs to what is before it."""
    following = _skip_spaces(text, first, bound)
    return None if following < bound and closes(text, following) else (first, following)


def _is_wide(text: str, *positions: int) -> bool:
    """Tell whether there are Chinese or Japanese characters at all these positions."""
    return all(0 <= position < len(text) and _WIDE.match(text, position) for position in positions)


def _is_within(text: str, match: re.Match[str], end: int, following: int) -> bool:
    """Tell whether a sentence goes on behind a mark: before a small letter, before who said it, after an abbreviation, an initial or the number of an item.

    :param end: where the mark ends, with closing quotes.
    :param following: where the next visible character is.
    """
    mark = match.group()
    quoted = end > match.end() and _SPEAKER.match(text, following) is not None
    if mark[-1] not in _MARKS:
        return quoted or (mark == "．" and text[end:end + 1].isdigit())  # a full-width decimal point
    if _BLANK_LINE.search(text, end, following):
        return False
    opened = _OPENERS.match(text, following)
    letter = text[opened.end():opened.end() + 1] if opened is not None else ""
    return quoted or _is_small(letter) or (mark == "." and _is_abbreviated(text, match.start(), following))


def _is_small(letter: str) -> bool:
    """Tell whether no sentence begins with this letter; Georgian has no capitals there."""
    return letter.islower() and not "\u10d0" <= letter <= "\u10ff"


def _is_abbreviated(text: str, dot: int, following: int) -> bool:
    """Tell whether a full stop belongs to the word or number before it.

    :param following: where the next visible character is.
    """
    begin = dot
    while begin > max(0, dot - 14) and not text[begin - 1].isspace():
        begin -= 1
    word, line = text[begin:dot].lstrip("([{*_„¿¡" + _QUOTES), text[max(0, begin - 40):begin].rpartition("\n")[2]
    small = word.lower()
    if _NUMERAL.fullmatch(word):
        if not line.strip(" \t>#*(") and not any(character in _LINES for character in text[dot:following]):
            return True  # the number of an item or heading
        if word.isdigit():
            next_word = text[following:following + 20].split(maxsplit=1)[:1]
            return len(word) < 3 and ((line.split()[-1:] != [] and line.split()[-1].lower() in BEFORE_ORDINALS)
                                      or (next_word != [] and next_word[0].strip(".,;:!?").lower() in AFTER_ORDINALS))
    if small in BEFORE_NUMBERS and text[following:following + 1].isdigit():
        return True
    if word in ABBREVIATIONS or small in ABBREVIATIONS:
        return True
    if _INITIALS.fullmatch(word):
        return word not in ("I", "я") and not _WIDE.match(word)
    return len(word) == 2 and word[0] == word[1] and word.isupper()  # a Spanish plural: EE. UU.

"""What a reader sees as one character.  Data floor, no imports of lmplay."""
from __future__ import annotations

import re
import unicodedata

# What joins the character before it, without being a mark: the non-joiner, half-width voicing, skin tones, tags; vowels of Thai and Lao.
_JOINS_LEFT = re.compile("[\u200c\u0e33\u0eb3\uff9e\uff9f\U0001f3fb-\U0001f3ff\U000e0020-\U000e007f]")
# What joins the character after it: number signs and their like (Unicode's Prepend).
_JOINS_RIGHT = re.compile("[\u0600-\u0605\u06dd\u070f\u0890\u0891\u08e2\u0d4e\U000110bd\U000110cd\U000111c2\U000111c3\U000113d1\U0001193f"
                          "\U00011941\U00011a3a\U00011a84-\U00011a89\U00011d46\U00011f02]")
# Korean syllables in parts: a beginning takes a beginning or a vowel, a vowel a vowel or an ending; whole syllables take what they lack.
_HANGUL = re.compile("[\u1100-\u115f\ua960-\ua97c][\u1100-\u11a7\ua960-\ua97c\uac00-\ud7a3\ud7b0-\ud7c6]"
                     "|[\u1160-\u11a7\ud7b0-\ud7c6\uac00-\ud7a3][\u1160-\u11ff\ud7b0-\ud7fb]|[\u11a8-\u11ff\ud7cb-\ud7fb][\u11a8-\u11ff\ud7cb-\ud7fb]")


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

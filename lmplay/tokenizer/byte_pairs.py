"""The fastest encoder that gives the same ids: a byte-level BPE of the `tokenizers` library, run by `tiktoken` where that can be shown to agree.  Ground floor.

The two apply a vocabulary differently: `tokenizers` merges the pairs in its list, `tiktoken` any two neighbours whose bytes together are a token.
They agree if every token is built from tokens of lower rank, and its own bytes, encoded alone, give that token.  Proof: let them agree up to the merge of
x and y to t, of the lowest rank there is. No merge has crossed the borders of t's bytes, so what lies within is what t alone had when all lower ranks were
done; t alone ends as t, so its last pair is (x, y), and both merge it. Tokens that don't pass can't come up in either, and are left out.
"""
from __future__ import annotations

import json
import re
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    import tiktoken
    import tokenizers

# How a text is split into words: by GPT-2 (built into `tokenizers`), by Llama 3, by Qwen 2, by GPT-4 and by GPT-4o, as in their tokenizer.json or in
# `tiktoken` (whose GPT-4 differs from Llama 3 in white space at the end of a text).
GPT2 = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CAPITALS, _SMALL, _SHORTENED = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
O200K = (rf"[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}*{_SMALL}+{_SHORTENED}|[^\r\n\p{{L}}\p{{N}}]?{_CAPITALS}+{_SMALL}*{_SHORTENED}"
         r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
CL100K = r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]|\s+(?!\S)|\s"
# By the most digits that stay together.
SPLITS = {1: LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}"), 3: LLAMA3}
# The classes of characters these are made of, each with what a pattern has that asks for it. Whether two libraries have the same Unicode is seen in every
# 16th code point: a version brings thousands.
_CLASSES = {r"\p{L}": r"\p{L}", r"\p{N}": r"\p{N}", r"\s": r"\s", r"(?i:[sdmtlrve])": "(?i:", _CAPITALS: _CAPITALS, _SMALL: _SMALL}
_SOME_CHARACTERS = "".join(map(chr, (code for code in (*range(0x3000), *range(0x3000, 0x40000, 16)) if not 0xD800 <= code < 0xE000)))
# A text with a run of white space twice this long goes to `tokenizers`: from some 100,000 on, tiktoken's regular expressions fail.
_LONG_SPACE = 20_000
_LONG_SPACE_RUN = re.compile(rf"\s{{{_LONG_SPACE}}}")
# Both encode this once, when a tokenizer is loaded.
PROBE = """The cat's 3.14 and I'LL've don'T we're; 1234567890 ½ ² Ⅷ ٣٤  two   three\t\ttabs \n\n  lines\r\n\r\n end.  \n \u00a0\u2003x\u3000。
<|endoftext|><|im_start|>user <s></s>[INST] {"a": [1, 2.5e-10]} def f(x):\n        return x**2  # ok!?…
Größe naïve Ἑλληνική Русский עברית العربية हिन्दी বাংলা தமிழ் ไทย ភាសា 한국어 日本語、中文。 ქართული አማርኛ e\u0301 a\u0308\u0323
👨‍👩‍👧 🇫🇷🇩🇪 ❤️ 👍🏽 \u200b\u200d\ufeff\ufe0f \x00\x01\x1c\x7f\x85 ſ K \ud7ff\ue000\ufffd\U0001f600\U000e0020\U0010ffff
aaaaaaaaaaaaaaaaaaaaaaa --------- ''''s'll 's\n 's"""


class BytePairs:
    """Encodes text to the ids of one vocabulary; made by :func:`same_as`."""

    def __init__(self, encoding: tiktoken.Encoding, ids: np.ndarray):
        """
        :param encoding: gives ranks.
        :param ids: the id of each rank.
        """
        self._encoding = encoding
        self._ids = ids

    def encode(self, text: str) -> np.ndarray | None:
        """Give the ids of a text.

        :param text: any text without lone surrogates.
        :return: ids [n] (int32), or None for a text that this encoder does not take (very long white space).
        """
        import numpy as np

        here_and_there = text[::_LONG_SPACE]  # two of these, one after the other, lie in such a run
        if any(a.isspace() and b.isspace() for a, b in pairwise(here_and_there)) and _LONG_SPACE_RUN.search(text):
            return None
        ranks = self._encoding.encode_ordinary(text)
        return self._ids[np.fromiter(ranks, np.int32, len(ranks))]


def same_as(fast: tokenizers.Tokenizer) -> BytePairs | None:
    """Make an encoder that gives the same ids as a tokenizer does with `encode_special_tokens`.

    :param fast: any tokenizer.
    :return: the encoder, or None where it might give others.
    """
    import numpy as np
    import tiktoken

    settings = json.loads(fast.to_str())
    pattern = pattern_of(settings)
    ranked = None if pattern is None else _ranked(settings["model"])
    if pattern is None or ranked is None or not _same_characters(pattern):
        return None
    letters = bytes_of_letters()
    ranks = {bytes(map(letters.__getitem__, token)): rank for rank, token in enumerate(ranked)}
    encoding = tiktoken.Encoding("lmplay", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    pairs = BytePairs(encoding, np.array([settings["model"]["vocab"][token] for token in ranked], dtype=np.int32))
    found = pairs.encode(PROBE)
    expected = fast.encode(PROBE, add_special_tokens=False).ids
    return pairs if found is not None and found.tolist() == expected else None


def pattern_of(settings: dict[str, Any]) -> str | None:
    """Give the regular expression that makes words, or None where more than that happens to a text, or something not known."""
    model, before = settings["model"], settings["pre_tokenizer"] or {}
    odd = ("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", "byte_fallback")
    if model.get("type") != "BPE" or any(map(model.get, odd)) or settings["normalizer"] is not None:
        return None
    if not all(added["special"] for added in settings["added_tokens"]):
        return None  # found in a text before it is split
    steps = before["pretokenizers"] if before.get("type") == "Sequence" else [before]
    if steps[-1].get("type") != "ByteLevel" or steps[-1]["add_prefix_space"]:
        return None
    if len(steps) == 1:
        return GPT2 if steps[0].get("use_regex", True) else None
    split = steps[0]
    if len(steps) > 2 or steps[1].get("use_regex", True) or split.get("type") != "Split" or split["behavior"] != "Isolated" or split["invert"]:
        return None
    pattern: str | None = split["pattern"].get("Regex")
    return pattern if pattern in (*SPLITS.values(), CL100K, O200K) else None


def _ranked(model: dict[str, Any]) -> list[str] | None:
    """Give the tokens a text can be made of, by rank: the bytes, then what is merged; None where `tiktoken` would not do the same with them."""
    from tokenizers import models

    letters, vocab = bytes_of_letters(), model["vocab"]
    if not letters.keys() <= vocab.keys():
        return None
    merges: list[tuple[str, str]] = [tuple(merge.split(" ") if isinstance(merge, str) else merge) for merge in model["merges"]]
    alone = models.BPE(vocab, merges)
    merged = {left + right for left, right in merges}
    possible = {token for token in merged if letters.keys() >= set(token) and [found.id for found in alone.tokenize(token)] == [vocab[token]]}
    ranks = {letter: rank for rank, letter in enumerate(letters)}
    newest = ""  # several merges may give one token, one after the other
    for left, right in merges:
        token = left + right
        if token not in possible or any(part not in possible and part not in letters for part in (left, right)):
            continue
        if left not in ranks or right not in ranks or (token in ranks and token != newest):
            return None
        ranks.setdefault(token, len(ranks))
        newest = token
    whole_words = set(vocab) - ranks.keys() if model.get("ignore_merges") else ()
    return None if whole_words else list(ranks)


@lru_cache(maxsize=8)
def _same_characters(pattern: str) -> bool:
    """Tell whether the regular expressions of both libraries know the same characters of the classes that a pattern has."""
    import tiktoken
    from tokenizers import Regex, pre_tokenizers

    single = {bytes([byte]): byte for byte in range(256)}
    for kind in (kind for kind, mark in _CLASSES.items() if mark in pattern):
        theirs = pre_tokenizers.Split(Regex(f"(?:{kind})+"), "removed", invert=True).pre_tokenize_str(_SOME_CHARACTERS)
        ours = tiktoken.Encoding("lmplay", pat_str=kind, mergeable_ranks=single, special_tokens={}).encode_ordinary(_SOME_CHARACTERS)
        if bytes(ours).decode() != "".join(part for part, _ in theirs):
            return False
    return True


def letters_of_bytes() -> dict[int, str]:
    """Give the printable character that stands for each byte."""
    return {byte: letter for letter, byte in bytes_of_letters().items()}


@lru_cache(maxsize=1)
def bytes_of_letters() -> dict[str, int]:
    """Give the byte that each printable character stands for in a byte-level vocabulary: itself in Latin-1 where that is printable, else from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (byte for byte in range(256) if byte not in plain)
    return {chr(byte): byte for byte in plain} | {chr(0x100 + number): byte for number, byte in enumerate(others)}

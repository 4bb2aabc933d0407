"""Files of tiktoken (`.tiktoken`: a line for each token, its bytes in base64 and its rank) as tokenizers of the `tokenizers` library.  Ground floor.

Such a file says neither how a text is split into words nor what the special tokens are. Both are known for the names below; else they stand in a JSON
file beside it, of the same name: `{"pattern": "cl100k_base", "special_tokens": {"<|endoftext|>": 100257}}`, where a pattern is one of these names or a regular
expression.
"""
from __future__ import annotations

import json
import re
from binascii import Error as Base64Error
from binascii import a2b_base64
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .byte_pairs import CL100K, GPT2, LLAMA3, O200K, PROBE, SPLITS, letters_of_bytes
from .tokenizer import END_NAMES, END_TOKEN, MOST_TOKENS

if TYPE_CHECKING:
    import tokenizers

_FIM = {"<|fim_prefix|>": 100258, "<|fim_middle|>": 100259, "<|fim_suffix|>": 100260}
_QWEN_SPECIAL = {END_TOKEN: 151643, "<|im_start|>": 151644, "<|im_end|>": 151645}
_LLAMA3_SPECIAL = {"<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|start_header_id|>": 128006, "<|end_header_id|>": 128007, "<|eot_id|>": 128009}
# Pattern and special tokens by name.
_KNOWN: dict[str, tuple[str, dict[str, int]]] = {
    "gpt2": (GPT2, {END_TOKEN: 50256}), "r50k_base": (GPT2, {END_TOKEN: 50256}), "p50k_base": (GPT2, {END_TOKEN: 50256}),
    "cl100k_base": (CL100K, {END_TOKEN: 100257, **_FIM, "<|endofprompt|>": 100276}),
    "o200k_base": (O200K, {END_TOKEN: 199999, "<|endofprompt|>": 200018}),
    "llama3": (LLAMA3, _LLAMA3_SPECIAL), "qwen": (SPLITS[1], _QWEN_SPECIAL)}
# The most bytes of a token; those in use have up to 128.
_LONGEST = 512
_LINE = re.compile(rb"[A-Za-z0-9+/]+=* \d{1,8}\s*\Z")


def is_tiktoken(file: Path) -> bool:
    """Tell whether the first line of a file is that of a tiktoken file, whatever it is called: Llama 3's is a `tokenizer.model`."""
    with file.open("rb") as opened:
        return _LINE.match(opened.readline(1000)) is not None


def read_tiktoken(file: Path) -> tokenizers.Tokenizer:
    """Convert a tiktoken file.

    :param file: has all 256 bytes among its tokens.
    :return: a tokenizer with the same ids.
    :raises UserError: when nothing says how a text is split into words.
    :raises ValueError: when the file or its settings are damaged, or `tokenizers` would not give the same ids.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    pattern, special = _settings_of(file)
    ranks = _read_ranks(file)
    taken = set(ranks.values())
    if not special.keys() & {*END_NAMES}:
        special = {**special, END_TOKEN: max(*taken, *special.values()) + 1}
    if len({*special.values()} - taken) < len(special) or not all(0 <= number < MOST_TOKENS for number in special.values()):
        raise ValueError("an id of a special token is that of another token, or too large")
    letters = letters_of_bytes()
    names = {token: "".join(map(letters.__getitem__, token)) for token in ranks}
    merges = [(names[left], names[right]) for left, right in filter(None, (_merged_last(token, ranks) for token in sorted(ranks, key=ranks.__getitem__)))]
    vocab = {**special, **{names[token]: rank for token, rank in ranks.items()}}
    model = models.BPE(vocab, merges)
    model.ignore_merges = any(len(model.tokenize(name)) > 1 for name in names.values())  # tiktoken takes a word that is a token as it is
    fast = tokenizers.Tokenizer(model)
    split = pre_tokenizers.Split(_regex(pattern), "isolated")
    if model.ignore_merges and any(len(split.pre_tokenize_str(text)) == 1 for text in special):
        raise ValueError("with this pattern the text of a special token is a word of a text")
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if pattern == GPT2 else pre_tokenizers.Sequence([
        split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    fast.decoder = decoders.ByteLevel()
    fast.add_special_tokens(sorted(special, key=special.__getitem__))
    if not _same_words(pattern, [word for word, _ in split.pre_tokenize_str(PROBE)]):
        raise ValueError("the library tokenizers understands this pattern otherwise than tiktoken")
    return fast


def _settings_of(file: Path) -> tuple[str, dict[str, int]]:
    """Give pattern and special tokens of a file: what stands beside it, else what is known of its name."""
    beside = file.with_suffix(".json")
    if beside.is_file() and beside.name != "tokenizer.json":
        said = json.loads(beside.read_text(encoding="utf-8"))
        pattern, special = (said.get("pattern"), said.get("special_tokens", {})) if isinstance(said, dict) else (None, None)
        if not isinstance(pattern, str) or not isinstance(special, dict) or not all(type(number) is int and name for name, number in special.items()):
            raise ValueError(f'{beside} must be {{"pattern": NAME or regular expression, "special_tokens": {{TEXT: id}}}}; names are {", ".join(_KNOWN)}')
        known = _KNOWN.get(pattern)
        return (known[0], special or known[1]) if known else (pattern, special)
    if file.stem in _KNOWN:
        return _KNOWN[file.stem]
    raise UserError(f"tokenizer {file}: nothing says how it splits a text into words. Name it after one that is known ({', '.join(_KNOWN)}), or write "
                    f'{beside}: {{"pattern": NAME or regular expression, "special_tokens": {{"<|endoftext|>": id}}}}.')


def _read_ranks(file: Path) -> dict[bytes, int]:
    """Read the tokens with their ranks."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(file.read_bytes().splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split() if _LINE.match(line) else (b"", b"")
            read = a2b_base64(token)
        except Base64Error:
            read = b""
        if not 0 < len(read) <= _LONGEST or read in ranks:
            raise ValueError(f"line {number} is not a token of 1 to {_LONGEST} bytes in base64 and its rank, or a token is there twice")
        ranks[read] = int(rank)
    if len(set(ranks.values())) < len(ranks) or max(ranks.values(), default=0) >= MOST_TOKENS:
        raise ValueError("two tokens have one rank, or a rank is too large")
    if not all(bytes([byte]) in ranks for byte in range(256)):
        raise ValueError("it lacks some of the 256 bytes")
    return ranks


def _merged_last(token: bytes, ranks: dict[bytes, int]) -> tuple[bytes, bytes] | None:
    """Give the two tokens that are merged last to this one; None where merges of lower ranks do not lead to it."""
    halves = [(token[:place], token[place:]) for place in range(1, len(token)) if token[:place] in ranks and token[place:] in ranks]
    if len(halves) < 2 or len(token) == 2:
        return halves[0] if halves else None
    parts, rank = [token[place:place + 1] for place in range(len(token))], ranks[token]
    while len(parts) > 2:
        best, place = min((ranks.get(left + right, rank), place) for place, (left, right) in enumerate(pairwise(parts)))
        if best >= rank:
            return None
        parts[place:place + 2] = [parts[place] + parts[place + 1]]
    return parts[0], parts[1]


def _same_words(pattern: str, words: list[str]) -> bool:
    """Tell whether tiktoken splits the text of these words into them: with each of them a token, it must give these tokens."""
    import tiktoken

    tokens = list(dict.fromkeys([*(bytes([byte]) for byte in range(256)), *(word.encode() for word in words)]))
    encoding = tiktoken.Encoding("lmplay", pat_str=pattern, mergeable_ranks={token: rank for rank, token in enumerate(tokens)}, special_tokens={})
    return [tokens[rank] for rank in encoding.encode_ordinary("".join(words))] == [word.encode() for word in words]


def _regex(pattern: str) -> Any:
    """Compile a pattern as the library does; raises ValueError for one that it does not take."""
    from tokenizers import Regex

    try:
        return Regex(pattern)
    except Exception as error:  # the library raises a bare one
        raise ValueError(f"pattern: {error}") from None

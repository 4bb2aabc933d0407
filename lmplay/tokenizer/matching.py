"""Which tokens of two vocabularies are the same.  Ground floor."""
from __future__ import annotations

import json
import re
from typing import Any

from .byte_pairs import bytes_of_letters
from .tokenizer import Tokenizer

_BYTE_PIECE = re.compile("<0x([0-9A-F]{2})>")
_TOKEN, _BYTE, _SPECIAL = "token", "byte", "special"
# Where there is no token of the same kind, one of the other has the same bytes.
_OTHER = {_TOKEN: _BYTE, _BYTE: _TOKEN}
_Key = tuple[str, bytes]
_END: _Key = ("end", b"")
_SPACE = "▁"  # what stands for a space in the pieces of SentencePiece


def matched_ids(new: Tokenizer, old: Tokenizer) -> list[int | None]:
    """Give for each id of a tokenizer the id of the token with the same text in another one, None where it has none.

    Texts are compared as bytes, so that vocabularies of different kinds have tokens in common. The end tokens are taken to be the same.
    """
    known: dict[_Key, int] = {}
    for number, key in sorted(_keys(old).items()):
        known.setdefault(key, number)
    keys = _keys(new)
    found: list[int | None] = [None] * new.vocab_size
    for number, (kind, text) in keys.items():
        found[number] = known.get((kind, text), known.get((_OTHER.get(kind, kind), text)))
    found[new.end_id] = old.end_id
    return found


def differing_ids(one: Tokenizer, other: Tokenizer) -> list[int]:
    """List the ids of a tokenizer that are another token in another one, or none. The other one may have more ids.

    Texts are compared as by :func:`matched_ids`, but by their ids, so that several ids may have the same text; an id of no token may be one there, too.
    """
    if one.vocab_size <= other.vocab_size and all(one.spec.get(part) == other.spec.get(part) for part in ("kind", "json", "end_id")):
        return []
    mine, theirs = ({number: (_TOKEN if kind == _BYTE else kind, text) for number, (kind, text) in _keys(tokenizer).items()} | {tokenizer.end_id: _END}
                    for tokenizer in (one, other))
    return [number for number, key in sorted(mine.items()) if key != theirs.get(number)]


def _keys(tokenizer: Tokenizer) -> dict[int, _Key]:
    """Give what each token is: the text of a special one, the bytes of another; the bytes that stand for unknown characters are apart."""
    if tokenizer.spec["kind"] == "bytes":
        return {**{byte: (_TOKEN, bytes([byte])) for byte in range(256)}, tokenizer.end_id: (_SPECIAL, tokenizer.end_text.encode())}
    said: dict[str, Any] = json.loads(tokenizer.spec["json"])
    letters = bytes_of_letters() if "ByteLevel" in json.dumps([said["pre_tokenizer"], said["decoder"]]) else None
    vocab = said["model"]["vocab"]
    ids = vocab if isinstance(vocab, dict) else {piece: number for number, (piece, _) in enumerate(vocab)}
    keys = {number: _key_of(token, letters) for token, number in ids.items()}
    return keys | {token["id"]: (_SPECIAL if token["special"] else _TOKEN, token["content"].encode()) for token in said["added_tokens"]}


def _key_of(token: str, letters: dict[str, int] | None) -> _Key:
    """Give the bytes that a token stands for; `letters` are those of a byte-level vocabulary."""
    if letters is not None and letters.keys() >= set(token):
        return _TOKEN, bytes(map(letters.__getitem__, token))
    byte = _BYTE_PIECE.fullmatch(token)
    return (_BYTE, bytes([int(byte[1], 16)])) if byte else (_TOKEN, token.replace(_SPACE, " ").encode("utf-8", "surrogatepass"))

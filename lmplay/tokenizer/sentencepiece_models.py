"""SentencePiece models (`.model`, Unigram and BPE) as tokenizers of the `tokenizers` library, with the same ids.  Ground floor."""
from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .byte_pairs import PROBE
from .tokenizer import MOST_TOKENS

if TYPE_CHECKING:
    import tokenizers

# Kinds of models and of pieces, as sentencepiece_model.proto numbers them.
_UNIGRAM, _BPE = 1, 2
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = range(1, 7)
# What stands for a space in pieces.
_SPACE = "▁"
# The most characters of a piece; those in use have up to 128.
_LONGEST = 512
# SentencePiece takes an unknown character for this much less likely than the rarest piece.
_UNKNOWN_PENALTY = 10.0


def read_sentencepiece(file: Path) -> tuple[tokenizers.Tokenizer, str | None, str | None]:
    """Convert a SentencePiece model.

    :param file: the `.model`.
    :return: a tokenizer with the same ids, and the texts of its end and begin tokens where it has them.
    :raises UserError: when the package `sentencepiece` is missing, or for a kind of model that cannot be converted.
    :raises ValueError: when the file is damaged.
    """
    try:
        from google.protobuf.message import DecodeError
        from sentencepiece import sentencepiece_model_pb2
    except ImportError:
        raise UserError(f"tokenizer {file}: SentencePiece models need a package that is not installed: pip install \"lmplay[sentencepiece]\". A model that has "
                        "been trained with one goes on without it.") from None
    proto = sentencepiece_model_pb2.ModelProto()
    try:
        proto.ParseFromString(file.read_bytes())
    except DecodeError:
        raise ValueError("not a SentencePiece model, or damaged") from None
    _check(proto)
    fast = _convert(proto)
    fast.encode(PROBE)  # a damaged table of normalization is not found before it is used
    ends = {piece.piece for piece in proto.pieces if piece.type == _CONTROL}
    trainer = proto.trainer_spec
    return fast, trainer.eos_piece if trainer.eos_piece in ends else None, trainer.bos_piece if trainer.bos_piece in ends else None


def _check(proto: Any) -> None:
    """Raise ValueError for what no trainer writes, and for kinds of models that the library `tokenizers` does not have."""
    pieces = [piece.piece for piece in proto.pieces]
    if not pieces or len(set(pieces)) < len(pieces) or not all(pieces):
        raise ValueError("it has no pieces, empty ones, or one twice")
    if max(map(len, pieces)) > _LONGEST or len(pieces) > MOST_TOKENS:
        raise ValueError(f"it has pieces of more than {_LONGEST} characters, or too many")
    if sum(piece.type == _UNKNOWN for piece in proto.pieces) != 1:
        raise ValueError("it must have one piece for what is unknown")
    if not all(math.isfinite(piece.score) for piece in proto.pieces):
        raise ValueError("a score is no number")
    table = proto.normalizer_spec.precompiled_charsmap
    if table and not 1024 <= int.from_bytes(table[:4], "little") <= len(table) - 4:
        raise ValueError("its table of normalization is damaged")
    odd = proto.trainer_spec.treat_whitespace_as_suffix or not proto.normalizer_spec.escape_whitespaces
    if odd or proto.trainer_spec.model_type not in (_UNIGRAM, _BPE):
        raise ValueError("only Unigram and BPE models that write a space before its word can be read")


def _convert(proto: Any) -> tokenizers.Tokenizer:
    """Build the tokenizer."""
    import tokenizers
    from tokenizers import AddedToken, decoders, models

    vocab, symbols = [piece.piece for piece in proto.pieces], [piece.piece for piece in proto.pieces if piece.type == _USER_DEFINED]
    unknown = next(number for number, piece in enumerate(proto.pieces) if piece.type == _UNKNOWN)
    fallback = any(piece.type == _BYTE for piece in proto.pieces)
    is_bpe = proto.trainer_spec.model_type == _BPE
    fast = tokenizers.Tokenizer(
        models.BPE({piece: number for number, piece in enumerate(vocab)}, list(_merges(proto)), unk_token=vocab[unknown], fuse_unk=True, byte_fallback=fallback)
        if is_bpe else models.Unigram(_scored(proto), unknown, fallback))
    fast.normalizer = _normalizer(proto.normalizer_spec, symbols if is_bpe else [])
    if not is_bpe and (divided := _divided(proto)) is not None:
        fast.pre_tokenizer = divided
    stripped = [decoders.Strip(" ", 1, 0)] if proto.normalizer_spec.add_dummy_prefix else []
    fast.decoder = decoders.Sequence([decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse(), *stripped])
    fast.add_tokens([AddedToken(piece.piece, special=True, normalized=False) for piece in proto.pieces if piece.type in (_CONTROL, _UNKNOWN)])
    if is_bpe:  # a Unigram model chooses them by their score
        fast.add_tokens([AddedToken(symbol, special=False, normalized=True) for symbol in symbols])
    return fast


def _scored(proto: Any) -> list[tuple[str, float]]:
    """Give pieces with their scores; a user-defined one gets the score that SentencePiece gives it, so that it wins over what it is made of."""
    normal = [piece.score for piece in proto.pieces if piece.type == _NORMAL] or [0.0]
    best, unknown = max(normal), min(normal) - _UNKNOWN_PENALTY
    scores = {_NORMAL: lambda piece: piece.score, _USER_DEFINED: lambda piece: len(piece.piece.encode()) * best - 0.1,
              _UNUSED: lambda piece: (len(piece.piece) + 1) * min(unknown, -1.0)}
    return [(piece.piece, scores[piece.type](piece) if piece.type in scores else best) for piece in proto.pieces]


def _divided(proto: Any) -> tokenizers.pre_tokenizers.PreTokenizer | None:
    """Cut the names of control pieces and bytes in two: in a text `</s>` is four characters, not the end token. Unknown neighbours stay together."""
    from tokenizers import Regex, pre_tokenizers

    known = {piece.piece for piece in proto.pieces if piece.type == _NORMAL}
    cuts = []
    for name in (piece.piece for piece in proto.pieces if piece.type in (_UNKNOWN, _CONTROL, _BYTE) and len(piece.piece) > 1):
        place = next((place for place in range(1, len(name)) if {name[place - 1], name[place]} & known), 1)
        cuts.append(f"(?<={_quoted(name[:place - 1])}){_quoted(name[place - 1])}(?={_quoted(name[place:])})")
    return pre_tokenizers.Split(Regex("|".join(cuts)), "merged_with_previous") if cuts else None


def _merges(proto: Any) -> Iterator[tuple[str, str]]:
    """Give the pairs that are merged, in their order: all that make a piece, pieces by their score."""
    known = {piece.piece for piece in proto.pieces if piece.type in (_NORMAL, _UNUSED)}
    for piece in sorted((piece for piece in proto.pieces if piece.type == _NORMAL), key=lambda piece: -piece.score):
        text = piece.piece
        yield from ((text[:cut], text[cut:]) for cut in range(1, len(text)) if text[:cut] in known and text[cut:] in known)


def _normalizer(spec: Any, symbols: Iterable[str]) -> tokenizers.normalizers.Normalizer:
    """Do what SentencePiece does to a text before it looks for pieces.

    :param symbols: user-defined symbols that are looked for in the normalized text: the library normalizes each alone, which must not add a space to it.
    """
    from tokenizers import Regex, normalizers

    steps: list[normalizers.Normalizer] = [normalizers.Precompiled(spec.precompiled_charsmap)] if spec.precompiled_charsmap else []
    if spec.remove_extra_whitespaces:
        steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex(r"\A "), "")]
    steps.append(normalizers.Replace(" ", _SPACE))
    if spec.add_dummy_prefix:
        alone = "|".join(_quoted(symbol) for symbol in symbols)
        steps.append(normalizers.Replace(Regex(rf"\A(?!(?:{alone})\z)(?=[\s\S])"), _SPACE) if alone else normalizers.Prepend(_SPACE))
    if spec.remove_extra_whitespaces:
        steps.append(normalizers.Replace(Regex(rf"{_SPACE}+\z"), ""))
    return normalizers.Sequence(steps)


def _quoted(text: str) -> str:
    """Quote a text for a regular expression of the library."""
    return "".join(character if character.isalnum() else rf"\x{{{ord(character):x}}}" for character in text)

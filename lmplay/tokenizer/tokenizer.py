"""Tokenizers: text to token ids with character positions, and back.  Ground floor; `tokenizers` and `transformers` load on demand.

A tokenizer here is three things: an encoder that knows where in the text each token starts, a decoder, and an end token, which
also starts a sample that has no prompt.  It may know how chats are written (`chat_template`).  It is described by a plain value (`spec`), which
checkpoints hold.
"""
from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from .byte_pairs import BytePairs, same_as

if TYPE_CHECKING:
    import numpy as np
    import tokenizers

END_TOKEN = "<|endoftext|>"
# What a special token for the end of a text is called in the vocabularies people use, in order of preference.
END_NAMES = (END_TOKEN, "</s>", "<eos>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "[SEP]")
# The smallest byte-level vocabulary: 256 bytes and the end token.
SMALLEST_VOCAB = 257
# The largest vocabulary: far above any in use, and a table of it fits into memory.
MOST_TOKENS = 1 << 24


def count_ids(fast: Any, end_id: int, name: str) -> int:
    """Count the ids of a vocabulary, up to the largest: there may be gaps, and a model needs a row for each.

    :param fast: a tokenizer of `tokenizers`.
    :param end_id: that of its end token.
    :param name: what the user calls it.
    :raises UserError: when they are too many, or the end token is none of them.
    """
    count = max(fast.get_vocab(with_added_tokens=True).values(), default=0) + 1
    if count > MOST_TOKENS or not 0 <= end_id < count:
        raise UserError(f"tokenizer {name}: its largest id is {count - 1:,} and that of its end token {end_id:,}; ids from 0 to "
                        f"{MOST_TOKENS - 1:,} are allowed, and an end token that is one of them.")
    return int(count)


@dataclass(frozen=True)
class Encoded:
    """A text as tokens.

    `ids` has n token ids; `starts` has n+1 character positions, rising from 0 to the length of the text: token k is
    ``text[starts[k]:starts[k+1]]``; `cuttable` has n+1 flags, False where the border before token k lies inside a character.
    """

    ids: np.ndarray
    starts: np.ndarray
    cuttable: np.ndarray


class Tokenizer:
    """Bytes, or any fast tokenizer of the `tokenizers` library."""

    def __init__(self, spec: dict[str, Any], note: str | None = None):
        """Build from what :attr:`spec` said.

        :param spec: `kind` ("bytes" or "fast"), `name` (what the user asked for) and, for "fast", `json` (the tokenizer.json) and `end_id`; where there
            are any, `chat_template` (Jinja) and `begin_text` (the text of the token for the beginning of a text).
        :param note: what a user should know of how it was loaded.
        :raises UserError: when its json cannot be read, or has ids that no model has.
        """
        self.spec = spec
        self.note = note
        self.name: str = spec["name"]
        self.chat_template: str | None = spec.get("chat_template")
        self.begin_text: str = spec.get("begin_text", "")
        self._fast: tokenizers.Tokenizer | None = None
        self._pairs: BytePairs | None = None
        if spec["kind"] == "bytes":
            self.vocab_size, self.end_id = SMALLEST_VOCAB, SMALLEST_VOCAB - 1
        else:
            self._fast = _read_fast(spec)
            self.end_id = spec["end_id"]
            self.vocab_size = count_ids(self._fast, self.end_id, self.name)
            self._fast.no_truncation()
            self._fast.no_padding()
            self._fast.encode_special_tokens = True  # "<|endoftext|>" in a text is text, not an end
            self._pairs = same_as(self._fast)
        self._byte_lengths = self._count_bytes()

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[dict[str, Any]]]:
        """Pickle :attr:`spec`."""
        return Tokenizer, (self.spec,)

    @property
    def end_text(self) -> str:
        """The text that stands for the end token in markup."""
        return (self._fast.id_to_token(self.end_id) if self._fast is not None else None) or END_TOKEN

    @property
    def begin_id(self) -> int | None:
        """The token for the beginning of a text; None where there is none."""
        ids: list[int] = self.encode_markup(self.begin_text).ids.tolist() if self.begin_text else []
        return ids[0] if len(ids) == 1 else None

    @cached_property
    def added_before(self) -> list[int]:
        """The tokens that the files of the tokenizer put before every text; nothing here does, but who compares with other programs."""
        if self._fast is None:
            return []
        found = self._fast.encode("a", add_special_tokens=True)
        return [token for token, _ in takewhile(lambda pair: pair[1], zip(found.ids, found.special_tokens_mask, strict=True))]

    def encode(self, text: str) -> Encoded:
        """Turn text into tokens, without special tokens.

        :param text: any text.
        :return: ids, and the character position of each token.
        """
        import numpy as np

        if self._fast is None:
            data = text.encode("utf-8", "surrogatepass")
            return self._with_starts(np.frombuffer(data, dtype=np.uint8).astype(np.int32), text)
        ids = self._pairs.encode(text) if self._pairs is not None else None
        if ids is not None:
            return self._with_starts(ids, text)
        return self._encode_with(self._fast, text)

    def encode_markup(self, text: str) -> Encoded:
        """Turn the text of a chat template into tokens: special tokens in it are special tokens.

        :param text: any text.
        :return: ids, and the character position of each token.
        """
        import numpy as np

        if self._fast is not None:
            return self._encode_with(self._markup, text)
        first, *others = (np.frombuffer(part.encode("utf-8", "surrogatepass"), dtype=np.uint8).astype(np.int32) for part in text.split(END_TOKEN))
        return self._with_starts(np.concatenate([first, *(ids for part in others for ids in ([self.end_id], part))]).astype(np.int32), text)

    def decode(self, ids: Iterable[int]) -> str:
        """Turn token ids into text; the end token becomes nothing, broken UTF-8 the replacement character.

        :param ids: token ids.
        :return: the text.
        """
        kept = [int(i) for i in ids if i != self.end_id]
        if self._fast is None:
            return bytes(i for i in kept if i < 256).decode("utf-8", "replace")
        return self._fast.decode(kept, skip_special_tokens=False)

    @cached_property
    def special_ids(self) -> list[int]:
        """The ids of the special tokens."""
        return [self.end_id] if self._fast is None else [i for i, token in self._fast.get_added_tokens_decoder().items() if token.special]

    @property
    def writes_all(self) -> bool:
        """Whether any text comes back as it was: there is a token for each byte, and nothing is normalized."""
        return self._fast is None or self._pairs is not None

    def lost(self, text: str, ids: np.ndarray | None = None) -> Counter[str]:
        """Count the visible characters that do not come back from the tokens of a text: unknown ones, and those that a normalizer writes another way.

        :param text: any text.
        :param ids: its tokens, where they are known.
        """
        if self._fast is None:
            return Counter()
        unknown = self._unknown_id
        written = self._fast.decode([i for i in (self.encode(text).ids if ids is None else ids).tolist() if i != unknown], skip_special_tokens=False)
        return Counter("".join(text.split())) - Counter(written)

    @cached_property
    def _unknown_id(self) -> int | None:
        """The id of the token that stands for what has none."""
        if self._fast is None:
            return None
        model = json.loads(self.spec["json"])["model"]
        return model.get("unk_id") if model.get("unk_token") is None else self._fast.token_to_id(model["unk_token"])

    @cached_property
    def _markup(self) -> tokenizers.Tokenizer:
        """The same tokenizer, but special tokens in a text are special."""
        fast = _read_fast(self.spec)
        fast.no_truncation()
        fast.no_padding()
        return fast

    def _count_bytes(self) -> np.ndarray | None:
        """Give the length in bytes of each token of a byte-level vocabulary; None where tokens are not bytes."""
        import numpy as np

        lengths = np.ones(self.vocab_size, dtype=np.int64)
        if self._fast is None:
            lengths[self.end_id] = len(END_TOKEN)  # which only markup has
            return lengths
        if "ByteLevel" not in repr(self._fast.pre_tokenizer) or "add_prefix_space=True" in repr(self._fast.pre_tokenizer):
            return None
        for token, i in self._fast.get_vocab(with_added_tokens=False).items():
            lengths[i] = len(token)  # byte-level vocabularies write each byte as one printable character
        for i, added in self._fast.get_added_tokens_decoder().items():
            lengths[i] = len(added.content.encode())
        return lengths

    def _encode_with(self, fast: tokenizers.Tokenizer, text: str) -> Encoded:
        """Encode with the library: its offsets are slow, so they are asked for only where byte lengths don't tell the positions."""
        import numpy as np

        try:
            if self._byte_lengths is not None:
                encoding = fast.encode_batch_fast([text], add_special_tokens=False)[0]
                ids = np.array(encoding.ids, dtype=np.int32)
                if self._byte_lengths[ids].sum() == len(text.encode("utf-8", "surrogatepass")):  # else a normalizer changed the text
                    return self._with_starts(ids, text)
            return _with_offsets(fast, text)
        except BaseException as error:
            if type(error) is not Exception and not type(error).__module__.startswith("pyo3"):  # see _read_fast
                raise
            raise UserError(f"tokenizer {self.name}: cannot turn {text[:40]!r} into tokens ({error}); choose another --tokenizer.") from None

    def _with_starts(self, ids: np.ndarray, text: str) -> Encoded:
        """Add the positions to tokens whose bytes, joined, are the text: a character starts at each byte that is no UTF-8 continuation."""
        import numpy as np

        assert self._byte_lengths is not None
        borders = np.zeros(len(ids) + 1, dtype=np.int64)
        np.cumsum(self._byte_lengths[ids], out=borders[1:])
        if text.isascii():
            return Encoded(ids, borders, np.ones(len(borders), dtype=bool))
        data = np.frombuffer(text.encode("utf-8", "surrogatepass"), dtype=np.uint8)
        first = np.ones(len(data) + 1, dtype=bool)
        np.not_equal(data & 0xC0, 0x80, out=first[:-1])
        before = np.zeros(len(data) + 1, dtype=np.int64)
        np.cumsum(first[:-1], out=before[1:])
        return Encoded(ids, before[borders], first[borders])


def _read_fast(spec: dict[str, Any]) -> tokenizers.Tokenizer:
    """Read the tokenizer of a spec; raises UserError when it cannot be read."""
    import tokenizers

    try:
        return tokenizers.Tokenizer.from_str(spec["json"])
    except BaseException as error:
        if not is_of_the_library(error):
            raise
        raise UserError(f"tokenizer {spec['name']}: cannot be read ({error}).") from None


def is_of_the_library(error: BaseException) -> bool:
    """Tell whether this is how `tokenizers` says that a file is broken: a bare exception, or where it panics what is no Exception."""
    return not isinstance(error, (KeyboardInterrupt, SystemExit)) and (isinstance(error, Exception) or type(error).__module__.startswith("pyo3"))


def _with_offsets(fast: tokenizers.Tokenizer, text: str) -> Encoded:
    """Encode with the library's own offsets; white space between two tokens belongs to the second."""
    import numpy as np

    encoding = fast.encode(text, add_special_tokens=False)
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    ends = np.maximum.accumulate(offsets[:, 1]) if len(offsets) else offsets[:, 1]
    starts = np.concatenate([[0], ends])
    cuttable = np.ones(len(starts), dtype=bool)
    if len(offsets):
        starts[-1] = len(text)
        cuttable[1:-1] = offsets[1:, 0] >= ends[:-1]
        _divide_runs(text, offsets, starts, cuttable)
    return Encoded(np.array(encoding.ids, dtype=np.int32), starts, cuttable)


def _divide_runs(text: str, offsets: np.ndarray, starts: np.ndarray, cuttable: np.ndarray) -> None:
    """Place tokens that have the offsets of a whole run of characters, as a Unigram model gives to the bytes of unknown ones: each is one byte of the run.

    :param offsets: the library's [n, 2].
    :param starts: changed where a run has as many bytes as tokens; so is `cuttable`.
    """
    import numpy as np

    firsts = np.flatnonzero(np.concatenate([[True], (offsets[1:] != offsets[:-1]).any(axis=1)]))
    sizes = np.diff(firsts, append=len(offsets))
    for first, size in zip(firsts[sizes > 1].tolist(), sizes[sizes > 1].tolist(), strict=True):
        begin, end = offsets[first].tolist()
        data = np.frombuffer(text[begin:end].encode("utf-8", "surrogatepass"), dtype=np.uint8)
        if end - begin > 1 and len(data) == size:
            leads = (data & 0xC0) != 0x80
            starts[first + 1:first + size] = begin + leads.cumsum()[:-1]
            cuttable[first + 1:first + size] = leads[1:]

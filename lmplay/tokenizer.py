"""Tokenizers: text to token ids with character positions, and back.  Ground floor; `tokenizers` and `transformers` load on demand.

A tokenizer here is three things: an encoder that knows where in the text each token starts, a decoder, and an end token, which
also starts a sample that has no prompt.  It can say all of itself as a small plain value (`spec`), which checkpoints carry.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import UserError
from .hub import hub_problem

if TYPE_CHECKING:
    import numpy as np
    import tokenizers

END_TOKEN = "<|endoftext|>"
# The smallest byte-level vocabulary: 256 bytes and the end token.
SMALLEST_VOCAB = 257
# What a special token for the end of a text is called in the vocabularies people use, in order of preference.
_END_NAMES = (END_TOKEN, "</s>", "<eos>", "<|end_of_text|>", "<|eot_id|>", "<|im_end|>", "[SEP]")
_WAYS_OUT = ("Ways out: --tokenizer FOLDER (with tokenizer.json, or vocab.json and merges.txt), --tokenizer train:8192 (trained on the plan's text), "
             "or --tokenizer bytes.")


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

    def __init__(self, spec: dict[str, Any]):
        """Build from what :attr:`spec` said.

        :param spec: `kind` ("bytes" or "fast"), `name` (what the user asked for) and, for "fast", `json` (the tokenizer.json) and `end_id`.
        """
        self.spec = spec
        self.name: str = spec["name"]
        self._fast: tokenizers.Tokenizer | None = None
        if spec["kind"] == "bytes":
            self.vocab_size, self.end_id = SMALLEST_VOCAB, SMALLEST_VOCAB - 1
        else:
            import tokenizers

            self._fast = tokenizers.Tokenizer.from_str(spec["json"])
            self._fast.no_truncation()
            self._fast.no_padding()
            self._fast.encode_special_tokens = True  # "<|endoftext|>" in a text is text, not an end
            # Ids may have gaps: the model needs a row for the largest.
            self.vocab_size = max(self._fast.get_vocab(with_added_tokens=True).values()) + 1
            self.end_id = spec["end_id"]
        self._byte_lengths = self._count_bytes()

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[dict[str, Any]]]:
        """Go to another process by what :attr:`spec` says."""
        return Tokenizer, (self.spec,)

    def encode(self, text: str) -> Encoded:
        """Turn text into tokens, without special tokens.

        :param text: any text.
        :return: ids, and the character position of each token.
        """
        import numpy as np

        data = text.encode("utf-8", "surrogatepass")
        if self._fast is None:
            ids = np.frombuffer(data, dtype=np.uint8).astype(np.int32)
        else:
            encoding = self._fast.encode_batch_fast([text], add_special_tokens=False)[0]
            ids = np.array(encoding.ids, dtype=np.int32)
        if self._byte_lengths is not None:
            borders = np.concatenate([[0], np.cumsum(self._byte_lengths[ids])])
            if borders[-1] == len(data):  # else a normalizer changed the text: ask for offsets
                return _from_byte_borders(ids, borders, data)
        return self._with_offsets(text)

    def decode(self, ids: Iterable[int]) -> str:
        """Turn token ids into text; the end token becomes nothing, broken UTF-8 the replacement character.

        :param ids: token ids.
        :return: the text.
        """
        kept = [int(i) for i in ids if i != self.end_id]
        if self._fast is None:
            return bytes(i for i in kept if i < 256).decode("utf-8", "replace")
        return self._fast.decode(kept, skip_special_tokens=False)

    def _count_bytes(self) -> np.ndarray | None:
        """Give the length in bytes of each token of a byte-level vocabulary; None where tokens are not bytes."""
        import numpy as np

        lengths = np.ones(self.vocab_size, dtype=np.int64)
        if self._fast is None:
            lengths[self.end_id] = 0
            return lengths
        if "ByteLevel" not in repr(self._fast.pre_tokenizer) or "add_prefix_space=True" in repr(self._fast.pre_tokenizer):
            return None
        for token, i in self._fast.get_vocab(with_added_tokens=False).items():
            lengths[i] = len(token)  # byte-level vocabularies write each byte as one printable character
        for i, added in self._fast.get_added_tokens_decoder().items():
            lengths[i] = len(added.content.encode())
        return lengths

    def _with_offsets(self, text: str) -> Encoded:
        """Encode with the library's own offsets; white space between two tokens belongs to the second."""
        import numpy as np

        assert self._fast is not None
        encoding = self._fast.encode(text, add_special_tokens=False)
        offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
        ends = np.maximum.accumulate(offsets[:, 1]) if len(offsets) else offsets[:, 1]
        starts = np.concatenate([[0], ends])
        cuttable = np.ones(len(starts), dtype=bool)
        if len(offsets):
            starts[-1] = len(text)
            cuttable[1:-1] = offsets[1:, 0] >= ends[:-1]
        return Encoded(np.array(encoding.ids, dtype=np.int32), starts, cuttable)


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer by what the user said (not `train:N`, see :func:`train_tokenizer`).

    :param name: `bytes`, a folder of tokenizer files, a tokenizer.json, or a name of the hub.
    :return: the tokenizer.
    :raises UserError: when it cannot be had, with the ways out.
    """
    if name == "bytes":
        return Tokenizer({"kind": "bytes", "name": "bytes"})
    path = Path(name).expanduser()
    if path.is_dir() or path.suffix == ".json":
        fast, end = _from_files(path)
    else:
        fast, end = _from_hub(name)
    return _finish(fast, name, end)


def train_tokenizer(texts: Iterator[str], vocab_size: int) -> Tokenizer:
    """Train a byte-level BPE; the same texts give the same tokenizer.

    :param texts: what to learn from.
    :param vocab_size: tokens, the 256 bytes and the end token included; fewer come out where the text is too short for more.
    :return: the tokenizer.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    fast = tokenizers.Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END_TOKEN], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    fast.train_from_iterator(texts, trainer)
    return _finish(fast, f"train:{vocab_size}", END_TOKEN)


def trained_size(name: str) -> int | None:
    """Read `train:N`.

    :param name: what the user said.
    :return: N, or None when it is another kind of tokenizer.
    :raises UserError: when N is not a number or too small.
    """
    kind, colon, size = name.partition(":")
    if kind != "train" or not colon:
        return None
    if not size.isdecimal() or int(size) < SMALLEST_VOCAB:
        raise UserError(f"tokenizer '{name}': allowed is train:N with N from {SMALLEST_VOCAB} (256 bytes and the end token), such as train:4096.")
    return int(size)


def _from_byte_borders(ids: np.ndarray, borders: np.ndarray, data: bytes) -> Encoded:
    """Turn byte positions into character positions: a character starts at each byte that is no UTF-8 continuation."""
    import numpy as np

    first = (np.frombuffer(data, dtype=np.uint8) & 0xC0) != 0x80
    before = np.concatenate([[0], np.cumsum(first)])
    cuttable = np.concatenate([first, [True]])[borders]
    return Encoded(ids, before[borders], cuttable)


def _from_files(path: Path) -> tuple[tokenizers.Tokenizer, str | None]:
    """Read tokenizer.json, or the older pair vocab.json and merges.txt."""
    import json

    import tokenizers
    from tokenizers import ByteLevelBPETokenizer

    file = path if path.suffix == ".json" else path / "tokenizer.json"
    end = None
    try:
        config = file.parent / "tokenizer_config.json"
        if config.is_file():
            end = json.loads(config.read_text(encoding="utf-8")).get("eos_token")
            end = end.get("content") if isinstance(end, dict) else end
        if file.is_file():
            return tokenizers.Tokenizer.from_file(str(file)), end
        if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
            pair = ByteLevelBPETokenizer(str(path / "vocab.json"), str(path / "merges.txt"))
            return tokenizers.Tokenizer.from_str(pair.to_str()), end
    except Exception as error:  # the library raises bare Exception for a broken file
        raise UserError(f"tokenizer {file}: cannot be read ({error}). {_WAYS_OUT}") from None
    raise UserError(f"tokenizer {path}: no tokenizer.json and no vocab.json with merges.txt there. {_WAYS_OUT}")


def _from_hub(name: str) -> tuple[tokenizers.Tokenizer, str | None]:
    """Load by hub name: from this machine's cache, else from the hub if it answers."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        loaded = AutoTokenizer.from_pretrained(name, local_files_only=True)
    except Exception:  # not in the cache: OSError, ValueError, ImportError … depending on what is missing
        reason = hub_problem()
        if reason is None:
            try:
                loaded = AutoTokenizer.from_pretrained(name)
            except Exception as error:
                reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:160]
        if reason is not None:
            raise UserError(f"tokenizer '{name}': not in this machine's cache, and the hub did not give it ({reason}). {_WAYS_OUT}") from None
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"tokenizer '{name}': it has no fast form (tokenizer.json), which lmplay needs. {_WAYS_OUT}")
    return backend, loaded.eos_token


def _finish(fast: tokenizers.Tokenizer, name: str, end: str | None) -> Tokenizer:
    """Settle the end token, adding one where the vocabulary has none, and drop what would add tokens by itself."""
    import tokenizers

    candidates = [end] if end else []
    end_id = next((i for i in map(fast.token_to_id, (*candidates, *_END_NAMES)) if i is not None), None)
    if end_id is None:
        fast.add_special_tokens([tokenizers.AddedToken(END_TOKEN, special=True)])
        end_id = fast.token_to_id(END_TOKEN)
    return Tokenizer({"kind": "fast", "name": name, "json": fast.to_str(), "end_id": end_id})

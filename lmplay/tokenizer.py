"""Tokenizers: text to token ids with character positions, and back.  Ground floor; `tokenizers` and `transformers` load on demand.

A tokenizer here is three things: an encoder that knows where in the text each token starts, a decoder, and an end token, which
also starts a sample that has no prompt.  It may know how chats are written (`chat_template`).  It can say all of itself as a small plain
value (`spec`), which checkpoints carry.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .bytepairs import BytePairs, same_as
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
# Kinds of tokenizer, as tokenizer_config.json names them, of which tokenizer.json says all.
_WHOLE_IN_FILE = ("GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizer", "GPTNeoXTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")
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

        :param spec: `kind` ("bytes" or "fast"), `name` (what the user asked for) and, for "fast", `json` (the tokenizer.json) and `end_id`; where there
            are any, `chat_template` (Jinja) and `begin_text` (the text of the token for the beginning of a text).
        """
        self.spec = spec
        self.name: str = spec["name"]
        self.chat_template: str | None = spec.get("chat_template")
        self.begin_text: str = spec.get("begin_text", "")
        self._fast: tokenizers.Tokenizer | None = None
        self._pairs: BytePairs | None = None
        if spec["kind"] == "bytes":
            self.vocab_size, self.end_id = SMALLEST_VOCAB, SMALLEST_VOCAB - 1
        else:
            import tokenizers

            self._fast = tokenizers.Tokenizer.from_str(spec["json"])
            self._fast.no_truncation()
            self._fast.no_padding()
            self._fast.encode_special_tokens = True  # "<|endoftext|>" in a text is text, not an end
            self._pairs = same_as(self._fast)
            # Ids may have gaps: the model needs a row for the largest.
            self.vocab_size = max(self._fast.get_vocab(with_added_tokens=True).values()) + 1
            self.end_id = spec["end_id"]
        self._byte_lengths = self._count_bytes()

    def __reduce__(self) -> tuple[type[Tokenizer], tuple[dict[str, Any]]]:
        """Go to another process by what :attr:`spec` says."""
        return Tokenizer, (self.spec,)
    @property
    def end_text(self) -> str:
        """The text that stands for the end token in markup."""
        return (self._fast.id_to_token(self.end_id) if self._fast is not None else None) or END_TOKEN

    def encode(self, text: str) -> Encoded:
        """Turn text into tokens, without special tokens.

        :param text: any text.
        :return: ids, and the character position of each token.
        """
        import numpy as np

        if self._fast is None:
            data = text.encode("utf-8", "surrogatepass")
            return self._place(np.frombuffer(data, dtype=np.uint8).astype(np.int32), text)
        ids = self._pairs.encode(text) if self._pairs is not None else None
        if ids is not None:
            return self._place(ids, text)
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
        return self._place(np.concatenate([first, *(ids for part in others for ids in ([self.end_id], part))]).astype(np.int32), text)

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
    def _markup(self) -> tokenizers.Tokenizer:
        """The same tokenizer, but special tokens in a text are special."""
        import tokenizers

        assert self._fast is not None
        fast = tokenizers.Tokenizer.from_str(self.spec["json"])
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

        if self._byte_lengths is not None:
            encoding = fast.encode_batch_fast([text], add_special_tokens=False)[0]
            ids = np.array(encoding.ids, dtype=np.int32)
            if self._byte_lengths[ids].sum() == len(text.encode("utf-8", "surrogatepass")):  # else a normalizer changed the text
                return self._place(ids, text)
        return _with_offsets(fast, text)

    def _place(self, ids: np.ndarray, text: str) -> Encoded:
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
        return _finish(_from_files(path), name)
    return _finish(_from_hub(name), name)


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
    return _finish(_Found(fast, END_TOKEN), f"train:{vocab_size}")


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
    return Encoded(np.array(encoding.ids, dtype=np.int32), starts, cuttable)


@dataclass(frozen=True)
class _Found:
    """A tokenizer as its files have it, and what stands beside it: the texts of its end and begin tokens, its chat template."""

    fast: tokenizers.Tokenizer
    end: str | None = None
    begin: str | None = None
    chat_template: str | None = None


def _from_files(path: Path) -> _Found:
    """Read tokenizer.json, or the older pair vocab.json and merges.txt."""
    import json

    import tokenizers
    from tokenizers import ByteLevelBPETokenizer

    file = path if path.suffix == ".json" else path / "tokenizer.json"
    try:
        config, jinja = file.parent / "tokenizer_config.json", file.parent / "chat_template.jinja"
        said = json.loads(config.read_text(encoding="utf-8")) if config.is_file() else {}
        template = jinja.read_text(encoding="utf-8") if jinja.is_file() else said.get("chat_template")
        beside = _text_of(said.get("eos_token")), _text_of(said.get("bos_token")), _default_template(template)
        if file.is_file():
            return _Found(tokenizers.Tokenizer.from_file(str(file)), *beside)
        if (path / "vocab.json").is_file() and (path / "merges.txt").is_file():
            pair = ByteLevelBPETokenizer(str(path / "vocab.json"), str(path / "merges.txt"))
            return _Found(tokenizers.Tokenizer.from_str(pair.to_str()), *beside)
    except Exception as error:  # the library raises bare Exception for a broken file
        raise UserError(f"tokenizer {file}: cannot be read ({error}). {_WAYS_OUT}") from None
    raise UserError(f"tokenizer {path}: no tokenizer.json and no vocab.json with merges.txt there. {_WAYS_OUT}")


def _text_of(token: Any) -> str | None:
    """Read a token of tokenizer_config.json, which is a text or says more about it."""
    return token.get("content") if isinstance(token, dict) else token


def _default_template(template: Any) -> str | None:
    """Choose the chat template: the only one, or of several the one named "default"."""
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    return template.get("default") if isinstance(template, dict) else template


def _from_cache(name: str) -> _Found | None:
    """Read the files of a hub name that this machine has, if they say all there is to know: `transformers` takes seconds to import."""
    import json

    from huggingface_hub import try_to_load_from_cache

    try:
        paths = [try_to_load_from_cache(name, file) for file in ("tokenizer.json", "tokenizer_config.json", "config.json")]
        fast, said, model = (json.loads(Path(path).read_text(encoding="utf-8")) if isinstance(path, str) else {} for path in paths)
    except (OSError, ValueError):  # a damaged file, or what can be no name of the hub
        return None
    kind = said.get("tokenizer_class", {"gpt2": "GPT2Tokenizer"}.get(model.get("model_type")))
    stated = "eos_token" in said or kind == "GPT2Tokenizer"
    added = {token["id"]: token["content"] for token in fast.get("added_tokens", ())}
    same = all(added.get(int(number)) == token["content"] for number, token in said.get("added_tokens_decoder", {}).items())
    if not isinstance(paths[0], str) or kind not in _WHOLE_IN_FILE or not stated or not same or said.get("add_prefix_space"):
        return None
    found = _from_files(Path(paths[0]).parent)
    return found if found.end else replace(found, end=END_TOKEN, begin=END_TOKEN)


def _from_hub(name: str) -> _Found:
    """Load by hub name: from this machine's cache, else from the hub if it answers."""
    cached = _from_cache(name)
    if cached is not None:
        return cached
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
    return _Found(backend, loaded.eos_token, loaded.bos_token, _default_template(loaded.chat_template))


def _finish(found: _Found, name: str) -> Tokenizer:
    """Settle the end token, adding one where the vocabulary has none, and drop what would add tokens by itself."""
    import tokenizers

    fast, candidates = found.fast, [found.end] if found.end else []
    end_id = next((i for i in map(fast.token_to_id, (*candidates, *_END_NAMES)) if i is not None), None)
    if end_id is None:
        fast.add_special_tokens([tokenizers.AddedToken(END_TOKEN, special=True)])
        end_id = fast.token_to_id(END_TOKEN)
    beside = {"chat_template": found.chat_template, "begin_text": found.begin}
    return Tokenizer({"kind": "fast", "name": name, "json": fast.to_str(), "end_id": end_id, **{key: text for key, text in beside.items() if text}})

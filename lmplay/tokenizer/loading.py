"""Loading a tokenizer from files, this machine's cache or the hub, and training one.  Ground floor; `tokenizers` and `transformers` load on demand."""
from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from ..hub import hub_problem
from ..paths import expanded
from .byte_pairs import SPLITS
from .sentencepiece_models import read_sentencepiece
from .tiktoken_files import is_tiktoken, read_tiktoken
from .tokenizer import END_NAMES, END_TOKEN, SMALLEST_VOCAB, Tokenizer, count_ids, is_of_the_library

if TYPE_CHECKING:
    import tokenizers

# Kinds of tokenizer, as tokenizer_config.json names them, which tokenizer.json describes completely.
_WHOLE_IN_FILE = ("GPT2Tokenizer", "GPT2TokenizerFast", "GPTNeoXTokenizer", "GPTNeoXTokenizerFast", "PreTrainedTokenizerFast", "TokenizersBackend")
# What tokenizer_config.json says of a token, and the keys of its special tokens, in the order of `transformers`.
_TOKEN_KEYS = ("content", "single_word", "lstrip", "rstrip", "normalized", "special")
_SPECIAL_KEYS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_WAYS_OUT = ("Ways out: --tokenizer FOLDER (with tokenizer.json, tokenizer.model, or vocab.json and merges.txt), --tokenizer train:8192 (trained on the plan's "
             "text), or --tokenizer bytes.")
# Files that are a tokenizer by themselves, by their suffix.
_SUFFIXES = (".json", ".model", ".tiktoken")


def load_tokenizer(name: str) -> Tokenizer:
    """Load a tokenizer by what the user said (not `train:N`, see :func:`train_tokenizer`).

    :param name: `bytes`, a folder of tokenizer files, a file (tokenizer.json, a SentencePiece `.model`, a `.tiktoken`, the `.lmp` of a model that has it), or a
        name of the hub.
    :return: the tokenizer.
    :raises UserError: when it cannot be had, with the ways out.
    """
    if name == "bytes":
        return Tokenizer({"kind": "bytes", "name": "bytes"})
    path = expanded(name)
    if path.suffix == ".lmp":
        return _of_model(path, name)
    if path.is_dir() or path.suffix in _SUFFIXES:
        return _finish(_from_files(path), name)
    return _finish(_from_hub(name), name)


def train_tokenizer(texts: Iterator[str], vocab_size: int, digits: int | None = None) -> Tokenizer:
    """Train a byte-level BPE; the same texts give the same tokenizer.

    :param texts: what to learn from.
    :param vocab_size: tokens, the 256 bytes and the end token included; fewer come out where the text is too short for more.
    :param digits: the most digits of a token, 1 or 3; words are split then as Qwen 2 and Llama 3 do. None = as GPT-2 does, digits without limit.
    :return: the tokenizer.
    """
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    fast = tokenizers.Tokenizer(models.BPE())
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False) if digits is None else pre_tokenizers.Sequence([
        pre_tokenizers.Split(tokenizers.Regex(SPLITS[digits]), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    fast.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[END_TOKEN], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    fast.train_from_iterator(texts, trainer)
    return _finish(_Found(fast, END_TOKEN), f"train:{vocab_size}{f',digits={digits}' if digits else ''}")


def trained_size(name: str) -> int | None:
    """Read the N of `train:N`, see :func:`training_options`; None when it is another kind of tokenizer."""
    options = training_options(name)
    return options[0] if options is not None else None


def training_options(name: str) -> tuple[int, int | None] | None:
    """Read `train:N` or `train:N,digits=D`.

    :param name: what the user said.
    :return: N and D, None where it is not given; or None when it is another kind of tokenizer.
    :raises UserError: when N is not a number or too small, or D is not allowed.
    """
    kind, colon, options = name.partition(":")
    if kind != "train" or not colon:
        return None
    size, comma, option = options.partition(",")
    key, _, digits = option.partition("=")
    if not size.isdecimal() or int(size) < SMALLEST_VOCAB or (comma and (key != "digits" or digits not in map(str, SPLITS))):
        raise UserError(f"tokenizer '{name}': allowed is train:N with N from {SMALLEST_VOCAB} (256 bytes and the end token), such as train:4096, and "
                        "train:N,digits=1 or train:N,digits=3 for tokens of at most one or three digits.")
    return int(size), int(digits) if comma else None


@dataclass(frozen=True)
class _Found:
    """A tokenizer as its files have it, and what stands beside it: the texts of its end and begin tokens, its chat template; what a user should know of it."""

    fast: tokenizers.Tokenizer
    end: str | None = None
    begin: str | None = None
    chat_template: str | None = None
    note: str | None = None


def _of_model(path: Path, name: str) -> Tokenizer:
    """Take the tokenizer of a trained model; raises UserError where there is none."""
    import torch

    try:
        spec = torch.load(path, weights_only=True, map_location="cpu", mmap=True)["model"]["state_args"]["tokenizer"]
        return Tokenizer({**spec, "name": name})
    except FileNotFoundError:
        raise UserError(f"tokenizer '{name}': there is no such file as {path}. {_WAYS_OUT}") from None
    except UserError:
        raise
    except Exception as error:  # damaged bytes can raise anything
        raise UserError(f"tokenizer '{name}': is no model of lmplay, or damaged ({type(error).__name__}: {_first_line(error)}). {_WAYS_OUT}") from None


def _from_files(path: Path) -> _Found:
    """Read a folder or a file as the library `transformers` does, by itself where the files say all."""
    said = _read_json(path / "tokenizer_config.json") if path.is_dir() else {}
    kind = said.get("tokenizer_class")
    if kind in (None, *_WHOLE_IN_FILE) and not said.get("add_prefix_space") and "auto_map" not in said:
        return _as_written(path)
    try:
        return _with_transformers(str(path), local=True)
    except Exception as error:  # it needs code of its own, or a file that lmplay doesn't
        note = f"tokenizer {path}: transformers does not open it as {kind} ({_first_line(error)}); its ids are those that its file alone gives."
        return replace(_as_written(path), note=note)


def _as_written(path: Path) -> _Found:
    """Read the file of a tokenizer, and what stands beside it."""
    file = _file_of(path) if path.is_dir() else path
    try:
        jinja, said = file.parent / "chat_template.jinja", _read_json(file.parent / "tokenizer_config.json")
        template = jinja.read_text(encoding="utf-8") if jinja.is_file() else said.get("chat_template")
        found = _read_file(file)
        _add_special_tokens(found.fast, said)
    except UserError:
        raise
    except BaseException as error:
        if not is_of_the_library(error):
            raise
        raise UserError(f"tokenizer {file}: cannot be read ({_first_line(error)}). {_WAYS_OUT}") from None
    return replace(found, end=_text_of(said.get("eos_token")) or found.end, begin=_text_of(said.get("bos_token")) or found.begin,
                   chat_template=_default_template(template))


def _file_of(folder: Path) -> Path:
    """Choose the file of a folder: tokenizer.json, else vocab.json (with merges.txt), else the only `.model` or `.tiktoken`."""
    if (folder / "tokenizer.json").is_file():
        return folder / "tokenizer.json"
    if (folder / "vocab.json").is_file() and (folder / "merges.txt").is_file():
        return folder / "vocab.json"
    others = [folder / "tokenizer.model"] if (folder / "tokenizer.model").is_file() else sorted((*folder.glob("*.model"), *folder.glob("*.tiktoken")))
    if len(others) == 1:
        return others[0]
    several = f" but several others ({', '.join(file.name for file in others[:4])}): name one of them" if others else ", no .model and no .tiktoken there"
    raise UserError(f"tokenizer {folder}: no tokenizer.json, no vocab.json with merges.txt{several}. {_WAYS_OUT}")


def _read_file(file: Path) -> _Found:
    """Read a tokenizer from its file; raises what the libraries raise."""
    import tokenizers
    from tokenizers import ByteLevelBPETokenizer

    if file.name == "vocab.json" and file.with_name("merges.txt").is_file():  # the older form of tokenizer.json
        return _Found(tokenizers.Tokenizer.from_str(ByteLevelBPETokenizer(str(file), str(file.with_name("merges.txt"))).to_str()))
    if file.suffix == ".json":
        return _Found(tokenizers.Tokenizer.from_file(str(file)))
    return _Found(read_tiktoken(file)) if is_tiktoken(file) else _Found(*read_sentencepiece(file))


def _first_line(error: BaseException) -> str:
    """Give the first line of what a library says."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)[:160]


def _read_json(file: Path) -> dict[str, Any]:
    """Read a file of settings; none is an empty one.

    :raises UserError: when it cannot be read.
    """
    import json

    try:
        return dict(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else {}
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise UserError(f"tokenizer {file}: cannot be read ({error}). {_WAYS_OUT}") from None


def _add_special_tokens(fast: tokenizers.Tokenizer, said: dict[str, Any]) -> None:
    """Add the tokens that stand in tokenizer_config.json alone, in the order in which `transformers` does."""
    from tokenizers import AddedToken

    there = {repr(token) for token in fast.get_added_tokens_decoder().values()}
    listed = [AddedToken(**{key: value for key, value in token.items() if key in _TOKEN_KEYS})
              for _, token in sorted(said.get("added_tokens_decoder", {}).items(), key=lambda entry: int(entry[0]))]
    wanted = [token for token in listed if repr(token) not in there]
    known = {token.content for token in (*fast.get_added_tokens_decoder().values(), *wanted)}
    extra = said.get("extra_special_tokens") or said.get("additional_special_tokens") or []
    for name in (*(_text_of(said.get(key)) for key in _SPECIAL_KEYS), *map(_text_of, extra.values() if isinstance(extra, dict) else extra)):
        if name and name not in known:
            known.add(name)
            wanted.append(AddedToken(name, special=True))
    fast.add_tokens(wanted)


def _text_of(token: Any) -> str | None:
    """Read a token of tokenizer_config.json, which is a text or says more about it."""
    return token.get("content") if isinstance(token, dict) else token


def _default_template(template: Any) -> str | None:
    """Choose the chat template: the only one, or of several the one named "default"."""
    if isinstance(template, list):
        template = {entry["name"]: entry["template"] for entry in template}
    return template.get("default") if isinstance(template, dict) else template


def _from_cache(name: str) -> _Found | None:
    """Read the files of a hub name that this machine has, if they are complete: `transformers` takes seconds to import."""
    from huggingface_hub import try_to_load_from_cache

    try:
        paths = [try_to_load_from_cache(name, file) for file in ("tokenizer.json", "tokenizer_config.json", "config.json")]
        said, model = (_read_json(Path(path)) if isinstance(path, str) else {} for path in paths[1:])
    except (OSError, ValueError, UserError):  # a damaged file, or what can be no name of the hub
        return None
    kind = said.get("tokenizer_class", {"gpt2": "GPT2Tokenizer"}.get(str(model.get("model_type"))))
    stated = "eos_token" in said or kind == "GPT2Tokenizer"
    if not isinstance(paths[0], str) or kind not in _WHOLE_IN_FILE or not stated or said.get("add_prefix_space"):
        return None
    found = _as_written(Path(paths[0]).parent)
    return found if found.end else replace(found, end=END_TOKEN, begin=END_TOKEN)


def _from_hub(name: str) -> _Found:
    """Load by hub name: from this machine's cache, else from the hub if it answers."""
    cached = _from_cache(name)
    if cached is not None:
        return cached
    try:
        return _with_transformers(name, local=True)
    except UserError:
        raise
    except Exception:  # not in the cache: OSError, ValueError, ImportError … depending on what is missing
        reason = hub_problem()
    if reason is None:
        try:
            return _with_transformers(name, local=False)
        except UserError:
            raise
        except Exception as error:
            reason = _first_line(error)
    raise UserError(f"tokenizer '{name}': not in this machine's cache, and the hub did not give it ({reason}). {_WAYS_OUT}")


def _with_transformers(name: str, local: bool) -> _Found:
    """Load a tokenizer of the hub or a folder with `transformers`; raises what that raises."""
    from transformers import AutoTokenizer
    from transformers.utils import logging

    logging.set_verbosity_error()
    loaded = AutoTokenizer.from_pretrained(name, local_files_only=local, trust_remote_code=False)
    backend = getattr(loaded, "backend_tokenizer", None)
    if backend is None:
        raise UserError(f"tokenizer '{name}': it has no fast form (tokenizer.json), which lmplay needs. {_WAYS_OUT}")
    return _Found(backend, loaded.eos_token, loaded.bos_token, _default_template(loaded.chat_template))


def _finish(found: _Found, name: str) -> Tokenizer:
    """Build the tokenizer; where the vocabulary has no end token, add one."""
    import tokenizers

    fast, candidates = found.fast, [found.end] if found.end else []
    end_id = next((i for i in map(fast.token_to_id, (*candidates, *END_NAMES)) if i is not None), None)
    if end_id is None:
        fast.add_special_tokens([tokenizers.AddedToken(END_TOKEN, special=True)])
        end_id = fast.token_to_id(END_TOKEN)
    assert end_id is not None
    count_ids(fast, end_id, name)  # writing it as JSON goes through all ids
    beside = {"chat_template": found.chat_template, "begin_text": found.begin}
    spec = {"kind": "fast", "name": name, "json": fast.to_str(), "end_id": end_id, **{key: text for key, text in beside.items() if text}}
    return Tokenizer(spec, found.note)

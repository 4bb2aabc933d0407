"""What must hold before the first test: the surroundings of whoever runs them do not matter."""
import os
import signal
import tempfile

# As many processes as cores run the tests: each with one thread, as the programs have that they start. Read when torch is loaded.
os.environ["OMP_NUM_THREADS"] = "1"

# What tests compile does not belong into the user's own cache.
os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", os.path.join(tempfile.gettempdir(), "lmplay-tests-compiled"))

# The hub's client reads its environment once, when it is imported: here, before a test changes it for itself.
os.environ.pop("HF_HUB_OFFLINE", None)

import huggingface_hub.constants  # noqa: F401
import pytest

# A shell lets what it runs in the background ignore these, and so would the programs that the tests start and send them to.
for _number, _handler in (("SIGINT", signal.default_int_handler), ("SIGHUP", signal.SIG_DFL)):
    if hasattr(signal, _number) and signal.getsignal(getattr(signal, _number)) is signal.SIG_IGN:
        signal.signal(getattr(signal, _number), _handler)


@pytest.fixture
def word_pieces(tmp_path):
    """A tokenizer of words and parts of words, as BERT's."""
    import tokenizers

    from lmplay.tokenizer import load_tokenizer

    fast = tokenizers.Tokenizer(tokenizers.models.WordPiece({"[UNK]": 0, "cat": 1, "##s": 2, "[SEP]": 3}, unk_token="[UNK]"))
    fast.normalizer = tokenizers.normalizers.BertNormalizer()
    fast.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    fast.save(str(tmp_path / "tokenizer.json"))
    return load_tokenizer(str(tmp_path / "tokenizer.json"))

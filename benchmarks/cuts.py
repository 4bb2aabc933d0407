"""Where texts are cut: shares of sentence, clause, word and character ends, cuts at a wrong place, and agreement with known sentences, beside other libraries.

`python benchmarks/cuts.py bad FILE ... [--tokenizer=NAME ...]` cuts all texts of files (txt, py, md, jsonl), and texts made here, for several tokenizers, and
counts cuts that lie inside a word or do not lie where their label says, by rules of its own. `python benchmarks/cuts.py languages` takes the example sentences
that spaCy ships for some sixty languages (`pip install spacy`; nothing of it is run), joined: their bounds are known. Beside ours stand `pysbd`, `sentencex`
and ICU (`icu4py`) where installed; times are CPU seconds of this process, the libraries taking turns.
"""
from __future__ import annotations

import ast
import importlib.util
import json
import re
import sys
import time
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

from lmplay.data.continuation import Cutter
from lmplay.data.samples import Sample
from lmplay.data.sentences import Cut, gaps
from lmplay.tokenizer import load_tokenizer, train_tokenizer

UNSPACED = ("zh", "ja", "th", "lo", "km", "my", "bo")
_MARKS = re.compile(r"[.!?…‼⁇⁈⁉;。！？｡．।॥።፧。؟۔:)\]}\"'”’»›*_`」』）】》〉]|[^\w\s,、，]")
# Characters before and behind a cut that are looked at.
_AROUND = 2000
_COMMAS = re.compile(r"[,;:–—·،؛、，；：―၊፣፤፥፦)\]}\"'”’»›」』）】》〉]|[^\w\s]")


def texts_of(path: Path) -> Iterator[str]:
    """Give the texts of a file: all strings of a row, or the whole."""
    if path.suffix != ".jsonl":
        yield path.read_text(encoding="utf-8", errors="replace")
        return
    for line in path.read_text(encoding="utf-8").splitlines():
        waiting = [json.loads(line)]
        while waiting:
            value = waiting.pop()
            if isinstance(value, str) and len(value) > 200:
                yield value
            waiting.extend(value.values() if isinstance(value, dict) else value if isinstance(value, list) else ())


def made_texts() -> Iterator[str]:
    """Give indented, bulleted and code-like texts."""
    sentence = ["The cat sat down, and it slept.", "Who was it?", "“No,” she said.", "It cost 3.5 dollars, e.g. in May!", "Then all went home"]
    for indent in (1, 2, 4, 8, 13, 40):
        for line_end in ("\n", "\r\n", "\n\n", "\r"):
            yield line_end.join(" " * (indent * (1 + number % 3)) + sentence[number % 5] + " " + sentence[(number * 3) % 5] for number in range(120))
            yield line_end.join(" " * (indent * (number % 3)) + f"{'-*•'[number % 3]} {sentence[number % 5]}" for number in range(120))
            yield line_end.join("\t" * (indent % 4) + f"{number}. {sentence[number % 5]}" for number in range(120))
            yield line_end.join(" " * (indent * (number % 4)) + f"value_{number} = call(a, b.c)[{number}]  # {sentence[number % 5]}" for number in range(120))


def is_bad(text: str, position: int, cut: Cut) -> bool:
    """Tell whether a cut is inside a word, or not where its label says."""
    before, after = text[max(0, position - _AROUND):position].rstrip(), text[position:position + _AROUND].lstrip()
    gap = text[max(0, position - _AROUND) + len(before):position + min(_AROUND, len(text) - position) - len(after)]
    if not gap and before and after and before[-1].isalnum() and after[0].isalnum() and before[-1] < "\u0e00":
        return True
    last = before[-1:]
    if cut == Cut.SENTENCE:
        return not _MARKS.match(last) and len(re.findall(r"\r\n|[\n\r\v\f\x85\u2028\u2029]", gap)) < 2
    return cut == Cut.CLAUSE and not _COMMAS.match(last) and not re.search(r"[\n\r\v\f\x85\u2028\u2029]", gap) and last < "\u0e00"


def bad_cuts(files: list[Path], names: list[str]) -> None:
    """Print, for each tokenizer, the cuts by kind and those at a wrong place."""
    groups: dict[str, list[str]] = defaultdict(list)
    for file in files:
        groups[file.parent.name or file.name].extend(texts_of(file))
    groups["made"] = list(made_texts())
    learned = [text[:3000] for texts in groups.values() for text in texts[:40]]
    tokenizers = [load_tokenizer("bytes"), train_tokenizer(iter(learned), 300), train_tokenizer(iter(learned), 8192), *map(load_tokenizer, names)]
    print(f"{'tokenizer':28} {'texts':22} {'cuts':>9} {'sentence':>9} {'clause':>8} {'word':>8} {'char':>7} {'bad':>5}")
    for tokenizer in tokenizers:
        for group, texts in groups.items():
            found: Counter[Cut] = Counter()
            bad: list[tuple[str, str, str]] = []
            for number, text in enumerate(texts):
                position = 0
                for piece in Cutter(tokenizer, (96, 256)[number % 2]).cut(Sample("", text)):
                    position += len(piece.truth)
                    if not piece.last:
                        found[piece.cut] += 1
                        if piece.cut != Cut.CHARACTER and is_bad(text, position, piece.cut):
                            bad.append((piece.cut.name, text[max(0, position - 30):position], text[position:position + 20]))
            cuts = max(1, found.total())
            shares = " ".join(f"{found[cut] / cuts:8.2%}" for cut in (Cut.SENTENCE, Cut.CLAUSE, Cut.WORD, Cut.CHARACTER))
            print(f"{Path(tokenizer.name).name[-28:]:28} {group[:22]:22} {found.total():9,} {shares} {len(bad):5}", *bad[:2], flush=True)


def known_sentences() -> dict[str, list[str]]:
    """Read the example sentences of the installed spaCy, by language; its code is not run."""
    spec = importlib.util.find_spec("spacy")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("spaCy is not installed: pip install spacy")
    found = {}
    for file in sorted(Path(spec.submodule_search_locations[0]).glob("lang/*/examples.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.List):
                texts = [entry.value.strip() for entry in node.value.elts if isinstance(entry, ast.Constant) and isinstance(entry.value, str)]
                sentences = [text for text in texts if text and unicodedata.category(text[-1])[0] == "P"]  # headlines have no mark: nobody can see their end
                if len(sentences) > 2:
                    found[file.parent.name] = sentences
    return found


def joined(language: str, sentences: list[str]) -> tuple[str, list[tuple[int, int]]]:
    """Join sentences; give the text, and the first and last position of each gap between two."""
    space, text, bounds = "" if language in UNSPACED else " ", "", []
    for sentence in sentences:
        if text:
            bounds.append((len(text), len(text) + len(space)))
        text += (space if text else "") + sentence
    return text, bounds


def ours(_: str, text: str) -> list[int]:
    """Give our sentence ends in a text."""
    return [first for first, _, cut in gaps(text, 0, len(text), len(text.rstrip())) if cut == Cut.SENTENCE]


def others() -> dict[str, Callable[[str, str], list[int]]]:
    """Give the same of the libraries that are installed."""
    found: dict[str, Callable[[str, str], list[int]]] = {}
    if importlib.util.find_spec("pysbd"):
        import pysbd
        from pysbd.languages import LANGUAGE_CODES

        def by_pysbd(language: str, text: str) -> list[int]:
            segmenter = pysbd.Segmenter(language=language if language in LANGUAGE_CODES else "en", clean=False, char_span=True)
            return [span.start + len(span.sent.rstrip()) for span in segmenter.segment(text)]
        found["pysbd"] = by_pysbd
    if importlib.util.find_spec("sentencex"):
        import sentencex

        def by_sentencex(language: str, text: str) -> list[int]:
            ends, position = [], 0
            for sentence in sentencex.segment(language, text):
                position = max(position, text.find(sentence.strip(), position)) + len(sentence.strip())
                ends.append(position)
            return ends
        found["sentencex"] = by_sentencex
    if importlib.util.find_spec("icu4py"):
        from icu4py.breakers import SentenceBreaker

        def by_icu(language: str, text: str) -> list[int]:
            units = text.encode("utf-16-le")  # ICU counts in these
            ends = (len(units[:2 * end].decode("utf-16-le")) for _, end in SentenceBreaker(text, language).segments())
            return [len(text[:end].rstrip()) for end in ends]
        found["ICU"] = by_icu
    return found


def compare_languages() -> None:
    """Print by language how cuts end, and which sentence ends each library finds; then sums and speed."""
    splitters = {"ours": ours, **others()}
    totals, seconds, characters = defaultdict(Counter), Counter(), 0
    tokenizer = load_tokenizer("bytes")
    print("| language | cuts | sentence | clause | word | character |", " | ".join(f"{name} P / R" for name in splitters), "|")
    for language, sentences in known_sentences().items():
        text, bounds = joined(language, sentences)
        kinds = Counter(piece.cut for context in (192, 320, 512) for piece in Cutter(tokenizer, context).cut(Sample("", text)) if not piece.last)
        cells = []
        for name, split in splitters.items():
            began = time.process_time()
            ends = [end for end in split(language, text) if end < len(text)]
            seconds[name] += time.process_time() - began
            right = sum(any(first <= end <= last for first, last in bounds) for end in ends)
            totals[name].update(right=right, found=len(ends), known=len(bounds))
            cells.append(f"{right / len(ends) if ends else 0:.2f} / {right / len(bounds):.2f}")
        characters += len(text)
        cuts = max(1, kinds.total())
        shares = " | ".join(f"{kinds[cut] / cuts:.0%}" for cut in (Cut.SENTENCE, Cut.CLAUSE, Cut.WORD, Cut.CHARACTER))
        print(f"| {language} | {kinds.total()} | {shares} |", " | ".join(cells), "|")
    for name, sums in totals.items():
        print(f"{name}: P {sums['right'] / sums['found']:.3f}  R {sums['right'] / sums['known']:.3f}  {characters / seconds[name]:,.0f} characters/s")


if __name__ == "__main__":
    if sys.argv[1:2] == ["languages"]:
        compare_languages()
    elif sys.argv[1:2] == ["bad"]:
        given = [word for word in sys.argv[2:] if not word.startswith("--tokenizer=")]
        bad_cuts([Path(word) for word in given], [word.removeprefix("--tokenizer=") for word in sys.argv[2:] if word not in given])
    else:
        sys.exit(__doc__)

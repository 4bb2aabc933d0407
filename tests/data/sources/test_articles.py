"""Lines that are joined into articles at their headings: nothing lost, indexed and streamed alike, and positions."""
from contextlib import suppress

import pytest
from helpers import write_rows
from hypothesis import given, settings
from hypothesis import strategies as st
from rows import Flow, FlowStream, Rows
from stages import open_stage, refused_data

from lmplay.data.reader import Order, open_reader
from lmplay.data.sources import BadRow
from lmplay.data.sources.articles import join_articles
from lmplay.errors import UserError
from lmplay.plan.load import plan_from_dataset, plan_from_json

# As the rows of wikitext on the hub are.
WIKI = ["", " = Robert Boulter = \n", "", " Robert Boulter is an actor . \n", " He had a part . \n", "", " = = Career = = \n", "", " = 5 is a number . \n",
        " = = = 2000 – 2005 = = = \n", "", " In 2000 he played . \n", "", " = Du Fu = \n", "", " Du Fu was a poet . \n", ""]
ARTICLES = [{"title": "Robert Boulter", "text": " Robert Boulter is an actor . \n He had a part . \n\n = = Career = = \n\n = 5 is a number . \n"
             " = = = 2000 – 2005 = = = \n\n In 2000 he played . "}, {"title": "Du Fu", "text": " Du Fu was a poet . "}]


def lines(texts):
    return [{"text": text} for text in texts]


class Broken(Flow):
    """A stream in which some rows cannot be read, and which fails once in between."""

    fails_at = None

    def open(self, state=None):
        return BrokenStream(self, state or 0)


class BrokenStream(FlowStream):
    def __init__(self, source, place):
        super().__init__(source.all, place)
        self.source = source

    def __next__(self):
        if self.place == self.source.fails_at:
            self.source.fails_at = None
            raise ConnectionError
        row = super().__next__()
        if isinstance(row, BadRow):
            raise row
        return row


class BrokenRows(Rows):
    def __getitem__(self, index):
        if isinstance(self.rows[index], BadRow):
            raise self.rows[index]
        return self.rows[index]


def read(stream):
    """Read rows to the end; what cannot be read by its reason."""
    found = []
    while True:
        try:
            found.append(next(stream))
        except StopIteration:
            return found
        except BadRow as bad:
            found.append(bad.reason)


def test_the_rows_of_wikitext_become_articles():
    source = join_articles(Rows(lines(WIKI)), "text")
    assert [source[i] for i in range(source.n_rows)] == ARTICLES
    assert read(join_articles(Flow(lines(WIKI)), "text").open()) == ARTICLES
    assert source.location(1) == "rows, row 14"
    assert source.columns == ("title", "text")


LINES = st.lists(st.sampled_from(["", " \n", " = A title = \n", "= B =", " = = Part = = \n", " Some text . \n", "More text", " = 7 \n", None, 5, "bad"]),
                 max_size=60)


@given(LINES, st.integers(0, 60), st.integers(1, 7), st.integers(0, 70))
@settings(max_examples=300)
def test_nothing_is_lost_and_a_stream_goes_on_from_any_position(texts, stop, buffer, fails_at):
    rows = [BadRow("damaged", "here", "is damaged.") if text == "bad" else {"text": text} for text in ["", "= First =", "", *texts]]
    source, flow = join_articles(BrokenRows(rows), "text"), Broken(rows)
    streamed = join_articles(flow, "text")
    whole = read(streamed.open())
    articles = [row for row in whole if isinstance(row, dict)]
    n_articles = source.n_rows - (len(whole) - len(articles))
    assert [source[i] for i in range(n_articles)] == articles
    wanted = "".join("".join(row["text"].split()) for row in rows if isinstance(row, dict) and isinstance(row["text"], str))
    assert "".join("".join(f"= {row['title']} ={row['text']}".split()) if row["title"] else "".join(row["text"].split()) for row in articles) == wanted
    assert sorted(reason for reason in whole if isinstance(reason, str)) == sorted(
        {"bad": "damaged", None: "null", 5: "not text"}[text] for text in texts if text in ("bad", None, 5))
    for number in range(n_articles, source.n_rows):
        with pytest.raises(BadRow):
            source[number]
    stream = streamed.open()
    for _ in range(min(stop, len(whole))):
        with suppress(BadRow):
            next(stream)
    assert read(streamed.open(stream.state())) == whole[stop:]
    flow.fails_at = fails_at  # a reading that has failed goes on where it was
    found = []
    try:
        while True:
            try:
                found.append(next(stream))
            except BadRow as bad:
                found.append(bad.reason)
            except ConnectionError:
                pass
    except StopIteration:
        pass
    assert found == whole[stop:]


@given(st.integers(0, 40), st.integers(1, 9))
def test_a_reader_of_streamed_articles_goes_on_from_any_position(stop, buffer):
    rows = lines([line for i in range(30) for line in (f" = Article {i} = \n", "", *[f" Line {n} . \n" for n in range(i % 4)], "")])
    untouched, resumed = (open_reader(join_articles(Flow(rows), "text"), Order(1, True, buffer, 0.1)) for _ in range(2))
    for _ in range(stop):
        untouched.next()
    resumed.restore(untouched.state())
    assert [resumed.next() for _ in range(60)] == [untouched.next() for _ in range(60)]


def test_an_article_without_end_is_ended():
    rows = lines([" = One = \n", "", *[" A long line of an article that never ends . \n" * 500] * 200])
    source = join_articles(Rows(rows), "text")
    assert source.n_rows > 3
    assert sum(len(source[i]["text"]) for i in range(source.n_rows)) == pytest.approx(sum(len(row["text"]) for row in rows), rel=1e-3)


@pytest.mark.parametrize("make", [Rows, Flow])
def test_rows_without_headings_are_refused(make):
    with pytest.raises(UserError, match=r"joins rows at headings, and none is there; a heading is a row such as '= Title =' between empty rows"):
        join_articles(make(lines(["Some text"] * 50)), "text")


def test_a_plan_joins_rows_of_any_column(tmp_path):
    path = write_rows(tmp_path / "a.jsonl", [{"line": line, "n": 1} for line in WIKI])
    data = open_stage(tmp_path, {"dataset": {"path": str(path), "columns": {"text": "line"}, "rows": "articles"}, "shuffle": False})
    samples = list(iter(data.open_samples().next, None))
    assert [(sample.prompt, sample.truth) for sample in samples] == [(f"{row['title']}\n\n", row["text"]) for row in ARTICLES]
    lined = open_stage(tmp_path, {"dataset": {"path": str(path), "columns": {"text": "line"}}})
    assert data.fingerprints() != lined.fingerprints()
    pairs = write_rows(tmp_path / "b.jsonl", [{"prompt": "a", "truth": "b"}])
    assert "joins texts, and no text column was found (its columns: prompt, truth)" in refused_data(pairs, rows="articles")


def test_wikitext_is_read_as_articles_unless_told_otherwise():
    spec, = plan_from_dataset("wikitext").stages[0].dataset
    assert (spec.path, spec.rows) == ("Salesforce/wikitext", "articles")
    spec, = plan_from_json({"stages": [{"name": "s", "dataset": {"path": "wikitext", "rows": "lines"}}]}).stages[0].dataset
    assert spec.rows == "lines"


def test_where_articles_begin_is_kept_and_never_stale(tmp_path, monkeypatch):
    from lmplay.data.sources import articles, index

    monkeypatch.setattr(index, "_SETTLED_SECONDS", -60)
    monkeypatch.setattr(index, "_LEAST_BYTES", 0)
    path = write_rows(tmp_path / "a.jsonl", lines(WIKI))

    def texts():
        source = open_stage(tmp_path, {"dataset": {"path": str(path), "rows": "articles"}, "epochs": 1, "validation": 0}).sources[0]
        return [source[i] for i in range(source.n_rows)]

    assert texts() == ARTICLES
    with monkeypatch.context() as patch:
        patch.setattr(articles, "_split", None)  # a second scan would fail
        assert texts() == ARTICLES
    path.write_text(path.read_text().replace(" = Du Fu = ", " = Li Bai = "))
    assert [row["title"] for row in texts()] == ["Robert Boulter", "Li Bai"]
    path.write_text(path.read_text().replace(" = Li Bai = ", " . Li Bai . "))
    assert [row["title"] for row in texts()] == ["Robert Boulter"]

"""The report: one file, whole in itself, that a browser draws without complaint."""
import html.parser
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from lmplay.plotstats.__main__ import main

pytest.importorskip("plotly")
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def write_run(folder: Path, name: str, rows: int, **settings) -> None:
    for kind in ("train", "validate"):
        steps = list(range(1, rows + 1))
        columns = {"step": steps, "samples": [4 * i for i in steps], "tokens": [100 * i for i in steps], "loss": [5 / (1 + i / 50) + 0.5 for i in steps],
                   "accuracy": [None if i % 2 else 0.5 for i in steps], "bits_per_byte": [1 / i for i in steps], "lr": [0.1] * rows, "floor": [0.5] * rows,
                   "skipped_batches": [int(i == 7) for i in steps], "forced_cuts": [2] * rows}
        stages = [{"name": "a", "done": True, "from_samples": 0, "from_tokens": 0, "to_samples": 2 * rows, "to_tokens": 50 * rows,
                   "floor_nats_per_token": 0.5, "floor_bits_per_byte": 0.2},
                  {"name": "b</script><!--<script>", "done": False, "from_samples": 2 * rows, "from_tokens": 50 * rows,
                   "to_samples": 4 * rows, "to_tokens": 100 * rows,
                   "floor_nats_per_token": None, "floor_bits_per_byte": None}]
        (folder / f"{name}_{kind}_stats.json").write_text(json.dumps({
            "format": 1, "kind": kind, "model": name, "experiment": "gpt2ish", "stage": None, "totals": {}, "best": None, "final": None, "stages": stages,
            "columns": columns, "clock": {"seconds": [0.1 * i for i in steps], "tokens_per_second": [1000.0] * rows, "data_wait_share": [0.0] * rows,
                                          "resumes": [{"samples": 8, "tokens": 200, "seconds": 0.2}],
                                          "saves": [{"samples": i, "tokens": 25 * i, "seconds": 0.1} for i in range(1, 101)],
                                          "stages": [{"from_seconds": 0, "to_seconds": 1}, {"from_seconds": 1, "to_seconds": 2}]}}))
    resolved = {"lr": 0.1, "seed": 0, "model": name, "model_args": {"embed_dim": 8}, "plan": {"stages": []}, **settings}
    (folder / f"{name}_settings.json").write_text(json.dumps(resolved))
    texts = [{"step": i, "samples": 8 * i, "prompt": "Once <b>", "text": f"there was {name} number {i}<i>"} for i in range(1, rows // 4 + 1)]
    (folder / f"{name}_samples.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts) + '{"prompt')


class Page(html.parser.HTMLParser):
    """Collects tags with what would load something from elsewhere, and the data."""

    def __init__(self, text: str):
        super().__init__()
        self.outside, self.data, self._in_data = [], "", False
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.outside += [value for name, value in attributes if name in ("src", "href") and value]
        self._in_data = ("id", "data") in attributes

    def handle_data(self, data):
        if self._in_data:
            self.data += data


@pytest.fixture
def report(tmp_path):
    write_run(tmp_path, "first", 400)
    write_run(tmp_path, "second", 90, lr=0.2)
    assert main(["--out-dir", str(tmp_path), "--html", str(tmp_path / "report.html")]) == 0
    return tmp_path / "report.html"


def test_the_report_is_whole_in_itself_and_has_all_runs(report):
    text = report.read_text()
    page = Page(text)
    assert page.outside == []
    data = json.loads(page.data)
    assert [run["name"] for run in data["runs"]] == ["first", "second"]
    assert data["runs"][0]["stages"][1]["name"] == "b</script><!--<script>"
    [loss] = [chart for chart in data["charts"] if (chart["kind"], chart["column"]) == ("validate", "loss")]
    line = loss["lines"][1]["line"]
    assert line["samples"] == [4 * i for i in range(1, 91)]
    assert line["seconds"][:2] == [0.1, 0.2]
    assert line["y"][0] == pytest.approx(5 / 1.02 + 0.5)
    differing = text.split("What differs")[1].split("</table>")[0]
    assert ">lr<" in differing
    assert ">seed<" not in differing


def rows_of(text, heading):
    """Give the cells of the first table behind a heading."""
    table = text.split(heading)[1].split("</table>")[0].split("<tbody>")[1]
    return [re.sub(r"</t[hd]>", "|", row) for row in re.findall(r"<tr>(.*?)</tr>", table)]


def cells(row):
    return [re.sub("<[^>]*>", "", cell) for cell in row.split("|")[:-1]]


def test_the_tables_say_what_happened(report):
    text = report.read_text()
    events = [cells(row) for row in rows_of(text, "<h2>Events</h2>")]
    assert [row[:3] for row in events[:4]] == [["first", "resumed", "8"], ["first", "batch skipped", "28"], ["first", "saved, first of 100", "1"],
                                               ["first", "saved, last of 100", "100"]]
    assert events[1][3:] == ["700", "0.7s"]
    stages = [cells(row) for row in rows_of(text, "<h3>Stages</h3>")]
    assert [row[:5] for row in stages[:2]] == [["first", "a", "800", "20,000", "1.0s"],
                                 ["first", "b&lt;/script&gt;&lt;!--&lt;script&gt; …", "800", "20,000", "1.0s"]]
    assert stages[0][5] == "20,000"
    assert {len(row) for row in stages} == {12}


def test_texts_stand_side_by_side_at_a_few_places(report):
    text = report.read_text()
    assert "Once &lt;b&gt;" in text
    rows = [cells(row) for row in rows_of(text, "What they write")]
    assert len(rows) == 24
    assert rows[0] == ["8", "there was first number 1&lt;i&gt;", "there was second number 1&lt;i&gt;"]
    assert rows[-1] == ["800", "there was first number 100&lt;i&gt;", ""]
    assert [row[0] for row in rows] == sorted({row[0] for row in rows}, key=int)


def test_the_newest_text_since_the_place_before_says_where_it_is_from(tmp_path):
    for name, places in (("a", [100, 200, 300]), ("b", [90, 110, 190, 201]), ("c", [80])):
        write_run(tmp_path, name, 5)
        (tmp_path / f"{name}_samples.jsonl").write_text("".join(json.dumps({"samples": i, "prompt": "", "text": f"{name}{i}"}) + "\n" for i in places))
    assert main(["--out-dir", str(tmp_path), "--html", str(tmp_path / "r.html")]) == 0
    rows = [cells(row) for row in rows_of((tmp_path / "r.html").read_text(), "What they write")]
    assert rows == [["100", "a100", "at 90 b90", "at 80 c80"], ["200", "a200", "at 190 b190", ""], ["300", "a300", "at 201 b201", ""]]


def test_theme_baseline_and_marks_are_in_the_data(tmp_path):
    write_run(tmp_path, "a", 50)
    write_run(tmp_path, "b", 50)
    assert main(["--out-dir", str(tmp_path), "--html", str(tmp_path / "r.html"), "--theme", "dark", "--baseline", "b"]) == 0
    data = json.loads(Page((tmp_path / "r.html").read_text()).data)
    assert (data["theme"], data["baseline"]) == ("dark", "b")
    assert data["runs"][0]["marks"] == {"resumed": [{"samples": 8, "tokens": 200, "seconds": 0.2}], "saved": [],
                                        "skipped": [{"samples": 28, "tokens": 700, "seconds": pytest.approx(0.7)}]}


def test_a_long_history_stays_small(tmp_path):
    write_run(tmp_path, "long", 40_000)
    assert main(["--out-dir", str(tmp_path), "--html", str(tmp_path / "r.html")]) == 0
    charts = json.loads(Page((tmp_path / "r.html").read_text()).data)["charts"]
    drawn = [part for chart in charts for line in chart["lines"] for part in (line["line"], line["raw"]) if part]
    assert max(len(values) for part in drawn for values in part.values()) < 5000


def test_a_file_that_cannot_be_written_is_named(tmp_path, capsys):
    write_run(tmp_path, "a", 5)
    assert main(["--out-dir", str(tmp_path), "--html", "/nowhere/r.html"]) == 2
    assert "/nowhere/r.html" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="no browser here")
@pytest.mark.parametrize("width", [1400, 400])
def test_a_browser_draws_it(report, tmp_path, width):
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-component-update",
             f"--user-data-dir={tmp_path / 'profile'}", f"--window-size={width},2000", "--virtual-time-budget=10000", "--enable-logging=stderr"]
    done = subprocess.run([BROWSER, *flags, "--dump-dom", f"file://{report}"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0
    assert done.stdout.count('class="main-svg"') >= 5
    assert done.stdout.count("scatterlayer") >= 5
    assert done.stdout.count("▲") > 5
    assert "CONSOLE" not in done.stderr  # errors of the page's script
